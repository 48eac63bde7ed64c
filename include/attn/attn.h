/* attn.h: the public API of libattn, exact scaled dot-product attention, and its manual.
 *
 * For query row i of query head h in batch b, with key head g = h / (heads_q / heads_kv):
 *     s_j   = scale * (q_i . k_j); with a softcap c > 0, then s_j = c * tanh(s_j / c)
 *     s_j  += mask_ij (additive masks) - slope_h * |i + d - j| (ALiBi)          d: the band's diagonal, see attn_problem
 *     out_i = sum of exp(s_j) * v_j over the visible j, divided by sum of exp(s_j) (+ exp(sink_h) where sinks are given)
 *     lse_i = natural log of that divisor
 * j is visible to i iff j < len_kv[b], j is in the band, a bool mask is true there and an additive mask is not -inf there.
 * A row that sees nothing: out = 0, lse = -inf (with a sink: lse = sink). What is invisible never changes a bit of any result; keys at
 * or past len_kv and keys outside the band are never read. A NaN or Inf in a visible key reaches the rows that see it and no other.
 * Every intermediate is float32, whatever the types of the tensors. The error bound is in docs/numerics.md.
 * The bits of a row depend on its problem, inputs and kernel: not on threads, passes, or the other sequences of its batch.
 *
 *     attn_context *context;
 *     attn_problem problem;
 *     attn_args args = ATTN_ARGS_INIT;
 *     attn_open(&context, NULL);
 *     attn_problem_init(&problem, ATTN_BHLD, ATTN_BF16, 1, 32, 2, 1, 1024, 128);
 *     args.q = q; args.k = k; args.v = v; args.out = out;
 *     attn_status status = attn_forward(context, &problem, &args);
 *     if (status != ATTN_OK) puts(attn_status_text(status));
 *     attn_close(context);
 *
 * One rule finds every row, in any layout. For sequence b, head h, row i, in elements of the tensor's own type:
 *     base + b * batch + h * head + i * row
 * Strides may be 0 (broadcast; not in out and lse) or negative; the last axis is contiguous. Pointers need only the alignment of
 * their element type. A call that fails has written nothing. The library never prints, aborts or raises a signal. */
#ifndef ATTN_H
#define ATTN_H
#include <stddef.h>
#include <stdint.h>

#if defined _WIN32 && defined ATTN_SHARED
#define ATTN_API __declspec(dllimport)
#elif defined __GNUC__ && !defined _WIN32
#define ATTN_API __attribute__((visibility("default")))
#else
#define ATTN_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status: one code for each rule that can be broken; codes keep their numbers ---- */
#define ATTN_STATUS_LIST(X)                                                                                                               \
    X(OK, 0, "success")                                                                                                                   \
    X(ERROR_NULL_CONTEXT, 1, "context: must not be NULL")                                                                                 \
    X(ERROR_NULL_PROBLEM, 2, "problem: must not be NULL")                                                                                 \
    X(ERROR_NULL_ARGS, 3, "args: must not be NULL")                                                                                       \
    X(ERROR_NULL_RESULT, 4, "result: the pointer to write the answer to must not be NULL")                                                \
    X(ERROR_UNINITIALISED, 5, "stamp: the struct was not set up by its init function or ATTN_..._INIT")                                   \
    X(ERROR_NEWER, 6, "stamp: the struct is of a newer attn.h than this library")                                                         \
    X(ERROR_BATCH, 7, "batch: must be 0 or more")                                                                                         \
    X(ERROR_HEADS_Q, 8, "heads_q: must be 1 or more")                                                                                     \
    X(ERROR_HEADS_KV, 9, "heads_kv: must be 1 or more")                                                                                   \
    X(ERROR_HEADS_NOT_MULTIPLE, 10, "heads_q: must be a multiple of heads_kv")                                                            \
    X(ERROR_LEN_Q, 11, "len_q: must be 0 or more")                                                                                        \
    X(ERROR_LEN_KV, 12, "len_kv: must be 0 or more")                                                                                      \
    X(ERROR_DIM_QK, 13, "dim_qk: must be 1 or more")                                                                                      \
    X(ERROR_DIM_V, 14, "dim_v: must be 1 or more")                                                                                        \
    X(ERROR_TOO_LARGE, 15, "problem: a size or stride is so large that 64-bit addresses overflow")                                        \
    X(ERROR_TYPE_Q, 16, "type_q: must be f32, f16 or bf16")                                                                               \
    X(ERROR_TYPE_K, 17, "type_k: must be f32, f16 or bf16")                                                                               \
    X(ERROR_TYPE_V, 18, "type_v: must be f32, f16 or bf16")                                                                               \
    X(ERROR_TYPE_OUT, 19, "type_out: must be f32, f16 or bf16")                                                                           \
    X(ERROR_TYPE_MASK, 20, "type_mask: must be none, bool, f32, f16 or bf16")                                                             \
    X(ERROR_SCALE, 21, "scale: must be finite")                                                                                           \
    X(ERROR_SOFTCAP, 22, "softcap: must be 0 (none) or positive and finite")                                                              \
    X(ERROR_ALIGN, 23, "align: must be top-left or bottom-right")                                                                         \
    X(ERROR_LEFT, 24, "left: must be 0 or more, or ATTN_UNBOUNDED")                                                                       \
    X(ERROR_RIGHT, 25, "right: must be 0 or more, or ATTN_UNBOUNDED")                                                                     \
    X(ERROR_OUT_STRIDES, 26, "out: strides make rows of the output overlap each other")                                                   \
    X(ERROR_LSE_STRIDES, 27, "lse: strides make entries of lse overlap each other")                                                       \
    X(ERROR_NULL_Q, 28, "q: must not be NULL")                                                                                            \
    X(ERROR_NULL_K, 29, "k: must not be NULL")                                                                                            \
    X(ERROR_NULL_V, 30, "v: must not be NULL")                                                                                            \
    X(ERROR_NULL_OUT, 31, "out: must not be NULL")                                                                                        \
    X(ERROR_NULL_MASK, 32, "mask: type_mask is set but the pointer is NULL")                                                              \
    X(ERROR_MASK_UNTYPED, 33, "mask: a pointer is given but type_mask is none")                                                           \
    X(ERROR_LEN_Q_RANGE, 34, "args.len_q: an entry is negative or above problem.len_q")                                                   \
    X(ERROR_LEN_KV_RANGE, 35, "args.len_kv: an entry is negative or above problem.len_kv")                                                \
    X(ERROR_MISALIGNED, 36, "args: a pointer is not aligned to its element type")                                                         \
    X(ERROR_OUT_OVERLAPS, 37, "out: overlaps an input, lse or the workspace")                                                             \
    X(ERROR_LSE_OVERLAPS, 38, "lse: overlaps an input or the workspace")                                                                  \
    X(ERROR_WORKSPACE_TOO_SMALL, 39, "workspace_size: less than attn_workspace asks for")                                                 \
    X(ERROR_WORKSPACE_MISALIGNED, 40, "workspace: must be 64-byte aligned")                                                               \
    X(ERROR_WORKSPACE_OVERLAPS, 41, "workspace: overlaps an input")                                                                       \
    X(ERROR_DEVICE, 42, "device: unknown, or not in this build")                                                                          \
    X(ERROR_ISA, 43, "isa: unknown, or not usable on this machine")                                                                       \
    X(ERROR_THREADS, 44, "threads: must be between 0 (all) and 1024")                                                                     \
    X(ERROR_EXECUTOR, 45, "executor: run must not be NULL and threads must be between 1 and 1024")                                        \
    X(ERROR_PASSES, 46, "passes: must be 0 (the plan decides), 1 or 2")                                                                   \
    X(ERROR_CHUNK, 47, "chunk: must be 0 (the default) or positive")                                                                      \
    X(ERROR_COUNT, 48, "count: must be 0 or more")                                                                                        \
    X(ERROR_NULL_STATES, 49, "states: the array, or an entry's out or lse, is NULL")                                                      \
    X(ERROR_STATE_OVERLAPS, 50, "states: an entry overlaps out or lse")                                                                   \
    X(ERROR_CEILING, 51, "ceiling: unknown, or this device or ISA has none such")                                                         \
    X(ERROR_OUT_OF_MEMORY, 52, "memory: the system has none left for the context or its workspace")                                       \
    X(ERROR_LAYOUT, 53, "layout: must be bhld or blhd")                                                                                   \
    X(ERROR_PRECISION, 54, "precision: must be exact or fast")                                                                            \
    X(ERROR_INDEX, 55, "index: the device has no unit of this number")                                                                    \
    X(ERROR_PLUGIN, 56, "device: its plugin is not there, or is not this library's")                                                      \
    X(ERROR_DRIVER, 57, "device: the driver is missing, too old, or has failed")                                                          \
    X(ERROR_HOST_POINTER, 58, "args: a pointer is not of memory that the device can reach")

typedef enum attn_status {
#define ATTN_STATUS_ENUM(name, number, text) ATTN_##name = number,
    ATTN_STATUS_LIST(ATTN_STATUS_ENUM)
#undef ATTN_STATUS_ENUM
        ATTN_STATUS_MAX = 0x7fffffff /* not a status: fixes the enum's width */
} attn_status;

/* The rule in words ("heads_q: must be a multiple of heads_kv"); never NULL. Any thread. */
ATTN_API const char *attn_status_text(attn_status status);

/* What the loader or the device's driver said where this thread's last call gave ERROR_PLUGIN or ERROR_DRIVER; never NULL. */
ATTN_API const char *attn_failure(void);

/* "major.minor.patch" of the library in use. Any thread. */
ATTN_API const char *attn_version(void);

/* Every struct begins with a stamp: a mark and the struct's size as the caller was compiled, so that a struct that nobody set up is an
 * error and an older caller's shorter struct is read no further than it goes. */
#define ATTN_STAMP(type) (0x41540000u + (uint32_t)sizeof(type))

/* ---- the problem: what is asked. A value without pointers; set up by attn_problem_init, then adjusted ---- */
typedef enum attn_type { ATTN_NONE = 0, ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_BOOL /* one byte, 0 or not */ } attn_type;
typedef enum attn_layout { ATTN_BHLD = 0, ATTN_BLHD } attn_layout;
typedef enum attn_align { ATTN_TOP_LEFT = 0, ATTN_BOTTOM_RIGHT } attn_align;
#define ATTN_UNBOUNDED INT64_C(-1)

typedef struct attn_strides { int64_t batch, head, row; } attn_strides;                /* elements */
typedef struct attn_mask_strides { int64_t batch, head, row, key; } attn_mask_strides; /* elements; 0 broadcasts */

typedef struct attn_problem {
    uint32_t stamp;                   /* set by attn_problem_init */
    attn_type type_q, type_k, type_v; /* f32, f16 or bf16, in any mix */
    attn_type type_out;
    int64_t batch, heads_q, heads_kv; /* heads_q a multiple of heads_kv */
    int64_t len_q, len_kv;            /* rows of each sequence, or the most of any where args give lengths */
    int64_t dim_qk, dim_v;            /* elements of a row of q and k; of v and out */
    attn_strides q, k, v, out, lse;   /* lse is f32, one entry a row */
    float scale;                      /* 1/sqrt(dim_qk) by init; 0 and negative are legal */
    float softcap;                    /* 0: none */
    /* The band: row i sees key j iff i + d - left <= j <= i + d + right, d = offset + (align is bottom-right ? len_kv[b] - len_q[b] : 0).
     * ATTN_UNBOUNDED removes a side. Causal: right = 0. A sliding window of w keys: left = w - 1, right = 0. */
    attn_align align;
    attn_type type_mask; /* none; bool (true: takes part); or f32, f16, bf16 (added to s after softcap, not scaled; -inf hides) */
    int64_t offset, left, right;
    attn_mask_strides mask; /* all 0 by init */
} attn_problem;

/* Dense strides in the layout, one type throughout, dim_v = dim_qk = dim, the default scale, no band (align top-left, left = right =
 * ATTN_UNBOUNDED), no mask, lse dense as [batch, heads_q, len_q]. Checks nothing: the calls that take the problem do. */
static inline void attn_problem_init(attn_problem *problem, attn_layout layout, attn_type type, int64_t batch, int64_t heads_q,
                                     int64_t heads_kv, int64_t len_q, int64_t len_kv, int64_t dim);
/* The same for callers that do not compile this header: stamp is ATTN_STAMP(attn_problem). A wrong stamp leaves the struct untouched. */
ATTN_API attn_status attn_problem_setup(attn_problem *problem, uint32_t stamp, attn_layout layout, attn_type type, int64_t batch,
                                        int64_t heads_q, int64_t heads_kv, int64_t len_q, int64_t len_kv, int64_t dim);
/* After a change of sizes (dim_v, say): dense strides for q, k, v, out and lse again, in the layout. */
ATTN_API attn_status attn_problem_dense(attn_problem *problem, attn_layout layout);

/* ---- the arguments: where it is. NULL for what is not used ---- */
typedef struct attn_args {
    uint32_t stamp; /* attn_args args = ATTN_ARGS_INIT; */
    const void *q, *k, *v;
    void *out;                     /* rows below len_q[b] are written whole; nothing else is touched */
    float *lse;
    const void *mask;              /* problem's type_mask and mask strides; read only where row and key are inside lengths and band */
    const float *sinks;            /* [heads_q]: one more score a row, that has no value */
    const float *slopes;           /* [heads_q]: ALiBi */
    const int32_t *len_q, *len_kv; /* [batch]: actual lengths, at most the problem's */
    void *workspace;               /* at least attn_workspace bytes, 64-byte aligned, its contents of no matter; NULL: the context's own */
    size_t workspace_size;         /* bytes */
    void *stream;                  /* cuda: the cudaStream_t or CUstream to work in; NULL: the default stream. CPUs: not looked at */
} attn_args;
#define ATTN_ARGS_INIT { ATTN_STAMP(attn_args), NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, 0, NULL }

/* ---- the context: a device, its threads, its kernels. Calls on one context from several threads are safe (they take turns) ---- */
typedef struct attn_context attn_context;
typedef enum attn_device {
    ATTN_CPU = 0,
    ATTN_REFERENCE, /* the specification, in double: slow, exact */
    ATTN_CUDA       /* NVIDIA GPUs, by the plugin libattn_cuda.so: docs/cuda.md */
} attn_device;
typedef void (*attn_job)(void *state, size_t index);
/* The host's own threads: call job(state, i) once for every i < count, in any order; return when all are done. A run that may itself call
 * attn_forward on the context (a thread that helps out while it waits) must do so with a workspace: the context's own is in use. */
typedef struct attn_executor {
    void (*run)(void *host, attn_job job, void *state, size_t count);
    void *host;
    int threads; /* how many may run at once: count is never more */
} attn_executor;
/* The run of an executor whose host is the address of GOMP_parallel in the OpenMP library that the caller uses (GCC's, LLVM's and Intel's
 * have it): its threads, which otherwise spin beside the library's after each parallel region of the caller's. Not in the child of a fork
 * whose parent ran OpenMP: GCC's hangs there. */
ATTN_API void attn_run_openmp(void *host, attn_job job, void *state, size_t count);
/* Exact: every intermediate is float32-grade. Fast: probabilities may be rounded to 16 bits for a matrix unit where many rows share a key
 * head; attn_explanation.weight_error says by how much. Sums, maxima and partial outputs stay float32, and so does lse. */
typedef enum attn_precision { ATTN_EXACT = 0, ATTN_FAST } attn_precision;
typedef struct attn_options {
    uint32_t stamp;                /* attn_options options = ATTN_OPTIONS_INIT; */
    attn_device device;
    int threads;                   /* 0: one for each CPU this process may use; 1: none but the caller's */
    int passes;                    /* 0: the plan decides; 1 or 2: forced (same bits either way) */
    int64_t chunk;                 /* keys to a chunk; 0: the library's default. Under 512 more folds, which the bound counts */
    const char *isa;               /* one of those that attn_describe lists ("avx2"); NULL: the best, up to ATTN_ISA in the environment */
    const attn_executor *executor; /* NULL: the library's threads. Copied */
    attn_precision precision;
    int index;                     /* cuda: which GPU, as the driver counts them; others: 0 */
} attn_options;
#define ATTN_OPTIONS_INIT { ATTN_STAMP(attn_options), ATTN_CPU, 0, 0, 0, NULL, NULL, ATTN_EXACT, 0 }

/* options NULL: the defaults. *context is NULL after an error. */
ATTN_API attn_status attn_open(attn_context **context, const attn_options *options);
ATTN_API void attn_close(attn_context *context); /* NULL is fine */

/* ---- memory of the device, for programs that have no allocator of their own for it; plain memory where the device is a CPU ---- */
ATTN_API attn_status attn_alloc(attn_context *context, size_t bytes, void **memory); /* aligned to 256 bytes; NULL for 0 bytes */
ATTN_API void attn_free(attn_context *context, void *memory);                        /* after attn_wait; NULL is fine */
/* Host to device, device to host, or within either; after what the default stream has to do, and done when it returns. */
ATTN_API attn_status attn_copy(attn_context *context, void *to, const void *from, size_t bytes);
/* Returns when everything asked of the device, in all streams, is done; with ERROR_DRIVER where something of it has failed. */
ATTN_API attn_status attn_wait(attn_context *context);

/* ---- the work ----
 * On cuda every pointer is of memory that the GPU can reach (attn_alloc, cudaMalloc, managed); calls return at once, the work follows in
 * args->stream; lengths outside of 0 to the problem's count as the nearer of these, since nobody reads them beforehand. Two calls at a time
 * need two workspaces: those that bring none share the context's, and must be in one stream. With a workspace, a call can be captured into
 * a graph. */
/* Bytes that a forward or merge of the problem needs on this context: exact, linear in len_q, no score matrix. */
ATTN_API attn_status attn_workspace(attn_context *context, const attn_problem *problem, size_t *bytes);
/* Grows the context's own workspace for the problem now, so that later calls without a workspace do not allocate. */
ATTN_API attn_status attn_reserve(attn_context *context, const attn_problem *problem);
/* The attention. With args->workspace nothing is allocated; without, the context's own is used and grown when needed. */
ATTN_API attn_status attn_forward(attn_context *context, const attn_problem *problem, const attn_args *args);

/* States of disjoint sets of keys merge into the state of their union, in index order. A state is an f32 out with its lse, both with the
 * problem's strides for out and lse; one with lse = -inf is the identity, whatever its out holds. Of args, out (any type), lse, len_q and
 * the workspace are used; a sink belongs into exactly one of the states. count 0 gives out = 0, lse = -inf. */
typedef struct attn_state { const float *out, *lse; } attn_state;
ATTN_API attn_status attn_merge(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count,
                                const attn_args *args);

/* What would run, and why. Counts are for the problem's full lengths. */
typedef struct attn_explanation {
    uint32_t stamp;                 /* attn_explanation explanation = ATTN_EXPLANATION_INIT; */
    int passes, threads;            /* threads that would take part */
    int64_t chunk, chunks;          /* keys to a chunk; chunks a row block is cut into */
    int64_t rows, jobs;             /* rows (query heads of a key head x positions) that share one reading of K and V; jobs of work */
    size_t workspace;               /* bytes */
    double bytes, operations;       /* q, k, v, out and mask once, in bytes; 4 * dim for each visible pair (dim_qk and dim_v averaged) */
    const char *device, *isa;
    const char *kernel;             /* such as "thin" (few rows, keys read in place) or "wide" */
    char reason[256];               /* why this plan, and why not the next faster one */
    double weight_error;            /* what rounding may take from a probability, relative to it; 0 where it stays float32, as always in
                                     * ATTN_EXACT on CPUs. bf16: 2^-8. The bound of out grows by this times the sum of p|v| */
} attn_explanation;
#define ATTN_EXPLANATION_INIT { ATTN_STAMP(attn_explanation), 0, 0, 0, 0, 0, 0, 0, 0.0, 0.0, NULL, NULL, NULL, { 0 }, 0.0 }
ATTN_API attn_status attn_explain(attn_context *context, const attn_problem *problem, attn_explanation *explanation);

/* ---- about the context and the machine ---- */
typedef struct attn_description {
    uint32_t stamp;           /* attn_description description = ATTN_DESCRIPTION_INIT; */
    int threads;              /* that a call on this context may use, the caller's own included */
    const char *device, *isa; /* in use */
    const char *isas;         /* every one that this build has and this machine can run, space separated, best last */
    const char *pool;         /* whose threads: "pthreadpool", "pthreads" (the library's own), "executor" or "none" */
} attn_description;
#define ATTN_DESCRIPTION_INIT { ATTN_STAMP(attn_description), 0, NULL, NULL, NULL, NULL }
ATTN_API attn_status attn_describe(attn_context *context, attn_description *description); /* strings live as long as the context */

/* The machine's ceilings, measured now (about a second; allocates) on the context's threads with its ISA's own instructions. */
typedef enum attn_ceiling {
    ATTN_DRAM_READ = 0, /* bytes a second */
    ATTN_FMA_F32,       /* operations a second, 2 to a multiply-add */
    ATTN_DOT_BF16       /* the same of bf16 numbers with float32 sums; ATTN_ERROR_CEILING where the ISA has no such instruction */
} attn_ceiling;
ATTN_API attn_status attn_measure(attn_context *context, attn_ceiling ceiling, double *per_second);

static inline void attn_problem_init(attn_problem *problem, attn_layout layout, attn_type type, int64_t batch, int64_t heads_q,
                                     int64_t heads_kv, int64_t len_q, int64_t len_kv, int64_t dim) {
    (void)attn_problem_setup(problem, ATTN_STAMP(attn_problem), layout, type, batch, heads_q, heads_kv, len_q, len_kv, dim);
}

#ifdef __cplusplus
}
#endif
#endif
