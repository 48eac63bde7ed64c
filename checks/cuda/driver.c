/* driver.c: what only the driver's own interface can set up: contexts that are not the runtime's, and addresses without memory behind them.
 */
#include "checks.h"
#include "device.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* ---- the driver, by its entries: nothing here is linked with it ---- */
static void *entry(const char *name, unsigned version) {
    void *found = NULL;
    enum cudaDriverEntryPointQueryResult result;
    CHECK_CUDA(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result));
    CHECK(found != NULL, "the driver has no %s", name);
    if (found == NULL) exit(CHECK_EXIT_FAILED);
    return found;
}

/* Calls a function of cuda.h, in that header's version of it. */
#define DRIVER(name, ...)                                                                                                                  \
    do {                                                                                                                                   \
        __typeof__(&(name)) call_;                                                                                                         \
        void *entry_ = entry(#name, CUDA_VERSION);                                                                                         \
        memcpy(&call_, &entry_, sizeof call_);                                                                                             \
        const CUresult result_ = call_(__VA_ARGS__);                                                                                       \
        CHECK(result_ == CUDA_SUCCESS, "%s gave %d", #name, (int)result_);                                                                 \
    } while (0)

/* ---- the caller's context ---- */
static CUcontext current(void) {
    CUcontext context = NULL;
    DRIVER(cuCtxGetCurrent, &context);
    return context;
}

/* Every kind of call, with `want` current before and after it. */
static void keeps(attn_context *context, CUcontext want) {
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    attn_context *other;
    attn_options options = ATTN_OPTIONS_INIT;
    void *memory = NULL;
    double host[64] = { 0 }, rate = 0.0;
    options.device = ATTN_CUDA;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_BF16, 1, 1, 1, 1, 1, 8);
    CHECK_OK(attn_open(&other, &options), "open");
    CHECK(current() == want, "open has changed the current context");
    attn_close(other);
    CHECK(current() == want, "close has changed the current context");
    CHECK_OK(attn_alloc(context, 4096, &memory), "alloc");
    CHECK(current() == want, "alloc has changed the current context");
    CHECK_OK(attn_copy(context, memory, host, sizeof host), "copy");
    CHECK(current() == want, "copy has changed the current context");
    CHECK_OK(attn_reserve(context, &problem), "reserve");
    CHECK(current() == want, "reserve has changed the current context");
    args.q = args.k = args.v = memory;
    args.out = (char *)memory + 1024;
    CHECK_OK(attn_forward(context, &problem, &args), "forward");
    CHECK(current() == want, "forward has changed the current context");
    CHECK_OK(attn_wait(context), "wait");
    CHECK(current() == want, "wait has changed the current context");
    CHECK_OK(attn_measure(context, ATTN_FMA_F32, &rate), "measure");
    CHECK(current() == want, "measure has changed the current context");
    attn_free(context, memory);
    CHECK(current() == want, "free has changed the current context");
}

static void *without_context(void *given) {
    (void)given;
    CHECK(current() == NULL, "a new thread has a context");
    attn_context *context = device_open(ATTN_EXACT, 0);
    keeps(context, NULL);
    attn_close(context);
    CHECK(current() == NULL, "close has made a context current");
    return NULL;
}

/* By the oldest form: the newest one's parameters differ from header to header. */
static void make_context(CUcontext *context, CUdevice gpu) {
    CUresult (*call)(CUcontext *, unsigned, CUdevice);
    void *found = entry("cuCtxCreate", 3020);
    memcpy(&call, &found, sizeof call);
    CHECK(call(context, 0, gpu) == CUDA_SUCCESS, "cuCtxCreate");
}

void check_contexts(void) {
    pthread_t thread;
    CUcontext own;
    CUdevice gpu;
    DRIVER(cuInit, 0);
    CHECK(pthread_create(&thread, NULL, without_context, NULL) == 0 && pthread_join(thread, NULL) == 0, "thread");
    DRIVER(cuDeviceGet, &gpu, 0);
    make_context(&own, gpu);
    attn_context *context = device_open(ATTN_EXACT, 0);
    keeps(context, own);
    for (int i = 0; i < device_kinds_count; i++) { /* memory, streams and kernels of that context */
        calling c;
        device_make(&c, context, &device_kinds[i]);
        results want = device_run(&c);
        device_start(&c, NULL);
        device_compare(&c, &want, "in a context of the caller's");
        CHECK(current() == own, "a call has changed the current context");
        free(want.bytes);
        device_free(&c);
    }
    attn_close(context);
    DRIVER(cuCtxDestroy, own);
}

/* ---- addresses without memory ---- */
enum { SHIFT = 13, GRANULES = 3 }; /* rows that the first key lies past the range's begin, so that no tile ends where memory does */

typedef struct range {
    CUdeviceptr first;
    size_t granule; /* bytes that are mapped together */
    CUmemGenericAllocationHandle memory[GRANULES];
    bool mapped[GRANULES];
} range;

static CUmemAllocationProp property(void) {
    CUmemAllocationProp p;
    memset(&p, 0, sizeof p);
    p.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    p.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    return p;
}

static size_t granule(void) {
    const CUmemAllocationProp p = property();
    size_t size = 0;
    DRIVER(cuMemGetAllocationGranularity, &size, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    return size;
}

/* Bit n of `which`: whether there is memory in granule n. */
static range range_make(unsigned which) {
    range r = { .granule = granule() };
    const CUmemAllocationProp p = property();
    const CUmemAccessDesc access = { p.location, CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
    DRIVER(cuMemAddressReserve, &r.first, GRANULES * r.granule, 0, 0, 0);
    for (int n = 0; n < GRANULES; n++) {
        const CUdeviceptr at = r.first + (size_t)n * r.granule;
        r.mapped[n] = which >> n & 1;
        if (!r.mapped[n]) continue;
        DRIVER(cuMemCreate, &r.memory[n], r.granule, &p, 0);
        DRIVER(cuMemMap, at, r.granule, 0, r.memory[n], 0);
        DRIVER(cuMemSetAccess, at, r.granule, &access, 1);
    }
    return r;
}

static void range_free(const range *r) {
    for (int n = 0; n < GRANULES; n++) {
        if (!r->mapped[n]) continue;
        DRIVER(cuMemUnmap, r->first + (size_t)n * r->granule, r->granule);
        DRIVER(cuMemRelease, r->memory[n]);
    }
    DRIVER(cuMemAddressFree, r->first, GRANULES * r->granule);
}

/* A tensor's rows `from` and on, `rows` of them, where they belong in the range; the address of row 0. */
static const void *moved(const range *r, const void *whole, size_t row, size_t from, size_t rows) {
    char *base = (char *)(uintptr_t)r->first + SHIFT * row;
    CHECK_CUDA(cudaMemcpy(base + from * row, (const char *)whole + from * row, rows * row, cudaMemcpyDeviceToDevice));
    return base;
}

/* Keys beyond args.len_kv, or left of a window, have no memory: results are those of whole tensors. */
static void one_hole(attn_context *context, attn_type type, const char *kernel, int64_t len_q, bool window) {
    const size_t row = 128 * check_size(type);
    range k = range_make(window ? 5 : 1), v = range_make(window ? 5 : 1);
    const int64_t each = (int64_t)(k.granule / row), len_kv = window ? GRANULES * each - SHIFT : each - SHIFT;
    const int64_t first = window ? (GRANULES - 1) * each - SHIFT : 0;
    kind one = { .name = window ? "a hole left of the window" : "a hole past the length",
                 .kernel = kernel,
                 .type = type,
                 .batch = 1,
                 .heads_q = 4,
                 .heads_kv = 1,
                 .len_q = len_q,
                 .len_kv = window ? len_kv : len_kv + 500,
                 .dim_qk = 128,
                 .dim_v = 128,
                 .left = window ? len_kv - len_q - first : -1,
                 .causal = true,
                 .lengths = !window };
    const int32_t length = (int32_t)len_kv;
    calling c;
    device_make(&c, context, &one);
    if (!window) CHECK_CUDA(cudaMemcpy((void *)(uintptr_t)c.args.len_kv, &length, sizeof length, cudaMemcpyHostToDevice));
    results want = device_run(&c);
    c.args.k = moved(&k, c.args.k, row, (size_t)first, (size_t)(len_kv - first));
    c.args.v = moved(&v, c.args.v, row, (size_t)first, (size_t)(len_kv - first));
    device_start(&c, NULL);
    const cudaError_t error = cudaDeviceSynchronize();
    CHECK(error == cudaSuccess, "%s, %s, %lld rows: %s", one.name, kernel, (long long)len_q, cudaGetErrorString(error));
    if (error != cudaSuccess) exit(CHECK_EXIT_FAILED); /* and of CUDA in this process */
    device_compare(&c, &want, "with memory only where it counts");
    free(want.bytes);
    device_free(&c);
    range_free(&k);
    range_free(&v);
}

void check_holes(void) {
    CHECK_CUDA(cudaFree(NULL)); /* the runtime's context becomes current */
    attn_context *context = device_open(ATTN_EXACT, 0), *fast = device_open(ATTN_FAST, 0);
    for (int window = 0; window < 2; window++) {
        one_hole(context, ATTN_F32, "general", 1, window);
        one_hole(context, ATTN_F32, "general", 40, window);
        one_hole(context, ATTN_BF16, "decode", 1, window);
        one_hole(context, ATTN_BF16, "decode", 4, window);
        if (window) continue; /* prefill reads blocks that a window cuts as a whole */
        one_hole(context, ATTN_BF16, "prefill", 200, window);
        one_hole(fast, ATTN_F16, "prefill", 200, window);
    }
    attn_close(context);
    attn_close(fast);
}
