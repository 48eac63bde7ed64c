/* problem.c: the rules that a problem and its arguments must meet, its dense strides, and which keys a row may see. */
#include "problem.h"
#include "overlap.h"
#include <math.h>
#include <string.h>

/* Elements of a tensor stay below 2^55, beyond any memory there is: sizes in bytes, and sizes rounded up to whole tiles, then fit in 64
 * bits wherever they are worked out. */
enum { ELEMENT_BITS = 55, WORKSPACE_ALIGNMENT = 64 };

/* The structs as they first came out; what is added later lies behind. */
enum {
    FIRST_PROBLEM = offsetof(attn_problem, mask) + sizeof(attn_mask_strides),
    FIRST_ARGS = offsetof(attn_args, workspace_size) + sizeof(size_t)
};

const char *attn_status_text(attn_status status) {
    switch (status) {
#define STATUS_TEXT(name, number, text)                                                                                                    \
    case ATTN_##name:                                                                                                                      \
        return text;
        ATTN_STATUS_LIST(STATUS_TEXT)
#undef STATUS_TEXT
    case ATTN_STATUS_MAX:
        break;
    }
    return "unknown status";
}

size_t attn_type_size(attn_type type) {
    switch (type) {
    case ATTN_F32:
        return 4;
    case ATTN_F16:
    case ATTN_BF16:
        return 2;
    case ATTN_BOOL:
        return 1;
    case ATTN_NONE:
        break;
    }
    return 0;
}

static attn_status stamp_check(uint32_t stamp, size_t first, size_t known) {
    size_t size = stamp & 0xffff;
    if (stamp - size != 0x41540000u || size < first) return ATTN_ERROR_UNINITIALISED;
    return size > known ? ATTN_ERROR_NEWER : ATTN_OK;
}

/* ---- setting up ---- */

static bool is_layout(attn_layout layout) { return layout == ATTN_BHLD || layout == ATTN_BLHD; }

/* Sizes are not checked yet: a product that does not fit becomes the largest number, which the check finds too large. */
static int64_t times(int64_t a, int64_t b) {
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

static attn_strides dense(attn_layout layout, int64_t heads, int64_t rows, int64_t dim) {
    attn_strides strides = { .batch = times(times(heads, rows), dim) };
    strides.head = layout == ATTN_BHLD ? times(rows, dim) : dim;
    strides.row = layout == ATTN_BHLD ? dim : times(heads, dim);
    return strides;
}

static void set_dense(attn_problem *problem, attn_layout layout) {
    problem->q = dense(layout, problem->heads_q, problem->len_q, problem->dim_qk);
    problem->k = dense(layout, problem->heads_kv, problem->len_kv, problem->dim_qk);
    problem->v = dense(layout, problem->heads_kv, problem->len_kv, problem->dim_v);
    problem->out = dense(layout, problem->heads_q, problem->len_q, problem->dim_v);
    problem->lse = dense(ATTN_BHLD, problem->heads_q, problem->len_q, 1);
}

attn_status attn_problem_setup(attn_problem *problem, uint32_t stamp, attn_layout layout, attn_type type, int64_t batch, int64_t heads_q,
                               int64_t heads_kv, int64_t len_q, int64_t len_kv, int64_t dim) {
    if (problem == NULL) return ATTN_ERROR_NULL_PROBLEM;
    attn_status status = stamp_check(stamp, FIRST_PROBLEM, sizeof *problem);
    if (status != ATTN_OK) return status;
    if (!is_layout(layout)) {
        problem->stamp = 0; /* attn_problem_init does not pass the error on: the next call must not take an earlier problem for this one */
        return ATTN_ERROR_LAYOUT;
    }
    attn_problem made = { .stamp = stamp, .align = ATTN_TOP_LEFT, .type_mask = ATTN_NONE };
    made.type_q = made.type_k = made.type_v = made.type_out = type;
    made.batch = batch;
    made.heads_q = heads_q;
    made.heads_kv = heads_kv;
    made.len_q = len_q;
    made.len_kv = len_kv;
    made.dim_qk = made.dim_v = dim;
    made.left = made.right = ATTN_UNBOUNDED;
    made.scale = dim > 0 ? (float)(1.0 / sqrt((double)dim)) : 1.0f;
    set_dense(&made, layout);
    memcpy(problem, &made, stamp & 0xffff);
    return ATTN_OK;
}

attn_status attn_problem_dense(attn_problem *problem, attn_layout layout) {
    if (problem == NULL) return ATTN_ERROR_NULL_PROBLEM;
    attn_status status = stamp_check(problem->stamp, FIRST_PROBLEM, sizeof *problem);
    if (status != ATTN_OK) return status;
    if (!is_layout(layout)) return ATTN_ERROR_LAYOUT;
    set_dense(problem, layout);
    return ATTN_OK;
}

/* ---- the problem ---- */

static bool is_float(attn_type type) { return type == ATTN_F32 || type == ATTN_F16 || type == ATTN_BF16; }

static attn_status sizes_check(const attn_problem *p) {
    if (p->batch < 0) return ATTN_ERROR_BATCH;
    if (p->heads_q < 1) return ATTN_ERROR_HEADS_Q;
    if (p->heads_kv < 1) return ATTN_ERROR_HEADS_KV;
    if (p->heads_q % p->heads_kv != 0) return ATTN_ERROR_HEADS_NOT_MULTIPLE;
    if (p->len_q < 0) return ATTN_ERROR_LEN_Q;
    if (p->len_kv < 0) return ATTN_ERROR_LEN_KV;
    if (p->dim_qk < 1) return ATTN_ERROR_DIM_QK;
    if (p->dim_v < 1) return ATTN_ERROR_DIM_V;
    return ATTN_OK;
}

static attn_status values_check(const attn_problem *p) {
    if (!is_float(p->type_q)) return ATTN_ERROR_TYPE_Q;
    if (!is_float(p->type_k)) return ATTN_ERROR_TYPE_K;
    if (!is_float(p->type_v)) return ATTN_ERROR_TYPE_V;
    if (!is_float(p->type_out)) return ATTN_ERROR_TYPE_OUT;
    if (p->type_mask != ATTN_NONE && p->type_mask != ATTN_BOOL && !is_float(p->type_mask)) return ATTN_ERROR_TYPE_MASK;
    if (!isfinite(p->scale)) return ATTN_ERROR_SCALE;
    if (!(p->softcap >= 0.0f) || !isfinite(p->softcap)) return ATTN_ERROR_SOFTCAP;
    if (p->align != ATTN_TOP_LEFT && p->align != ATTN_BOTTOM_RIGHT) return ATTN_ERROR_ALIGN;
    if (p->left < 0 && p->left != ATTN_UNBOUNDED) return ATTN_ERROR_LEFT;
    if (p->right < 0 && p->right != ATTN_UNBOUNDED) return ATTN_ERROR_RIGHT;
    return ATTN_OK;
}

/* Lengths of 0 count as 1: what a kernel works out for such a problem has to fit too. */
static bool count_fits(int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
    int64_t count = times(times(batch > 1 ? batch : 1, heads), times(rows > 1 ? rows : 1, dim));
    return count < INT64_C(1) << ELEMENT_BITS;
}

static bool counts_fit(const attn_problem *p) {
    return count_fits(p->batch, p->heads_q, p->len_q, p->dim_qk) && count_fits(p->batch, p->heads_q, p->len_q, p->dim_v) &&
           count_fits(p->batch, p->heads_kv, p->len_kv, p->dim_qk) && count_fits(p->batch, p->heads_kv, p->len_kv, p->dim_v);
}

/* The stride of an axis that nobody steps along may hold anything: 0 keeps it out of the arithmetic of kernels. */
static void drop_unused_strides(attn_problem *p) {
    attn_strides *tensors[] = { &p->q, &p->out, &p->lse, &p->k, &p->v };
    for (int t = 0; t < 5; t++) {
        int64_t heads = t < 3 ? p->heads_q : p->heads_kv, rows = t < 3 ? p->len_q : p->len_kv;
        bool empty = p->batch == 0 || rows == 0;
        if (empty || p->batch == 1) tensors[t]->batch = 0;
        if (empty || heads == 1) tensors[t]->head = 0;
        if (empty || rows == 1) tensors[t]->row = 0;
    }
    bool empty = p->type_mask == ATTN_NONE || p->batch == 0 || p->len_q == 0 || p->len_kv == 0;
    if (empty || p->batch == 1) p->mask.batch = 0;
    if (empty || p->heads_q == 1) p->mask.head = 0;
    if (empty || p->len_q == 1) p->mask.row = 0;
    if (empty || p->len_kv == 1) p->mask.key = 0;
}

/* What a call reads and writes. What is written comes first: out must meet nothing behind it, then lse, then the workspace. */
enum { OUT, LSE, WORKSPACE, Q, K, V, MASK, SINKS, SLOPES, LEN_Q, LEN_KV, STATES, REGIONS };

typedef struct region {
    uint64_t first, end; /* addresses; both 0: empty */
    attn_extent extent;
} region;

/* False where a stride in bytes does not fit. */
static bool rows_extent(attn_extent *extent, const attn_strides *strides, int64_t batch, int64_t heads, int64_t rows, int64_t dim,
                        attn_type type) {
    int64_t bytes = (int64_t)attn_type_size(type);
    *extent = (attn_extent){ .size = { batch, heads, rows, 1 }, .run = dim * bytes };
    return !__builtin_mul_overflow(strides->batch, bytes, &extent->stride[0]) &&
           !__builtin_mul_overflow(strides->head, bytes, &extent->stride[1]) &&
           !__builtin_mul_overflow(strides->row, bytes, &extent->stride[2]);
}

static bool mask_extent(attn_extent *extent, const attn_problem *p, int64_t len_q, int64_t len_kv) {
    int64_t bytes = (int64_t)attn_type_size(p->type_mask);
    *extent = (attn_extent){ .size = { p->batch, p->heads_q, len_q, len_kv }, .run = bytes };
    return !__builtin_mul_overflow(p->mask.batch, bytes, &extent->stride[0]) &&
           !__builtin_mul_overflow(p->mask.head, bytes, &extent->stride[1]) &&
           !__builtin_mul_overflow(p->mask.row, bytes, &extent->stride[2]) &&
           !__builtin_mul_overflow(p->mask.key, bytes, &extent->stride[3]);
}

static bool written_extents(region *regions, const attn_problem *p, attn_type type_out, int64_t len_q) {
    return rows_extent(&regions[OUT].extent, &p->out, p->batch, p->heads_q, len_q, p->dim_v, type_out) &&
           rows_extent(&regions[LSE].extent, &p->lse, p->batch, p->heads_q, len_q, 1, ATTN_F32);
}

static bool read_extents(region *regions, const attn_problem *p, int64_t len_q, int64_t len_kv) {
    return rows_extent(&regions[Q].extent, &p->q, p->batch, p->heads_q, len_q, p->dim_qk, p->type_q) &&
           rows_extent(&regions[K].extent, &p->k, p->batch, p->heads_kv, len_kv, p->dim_qk, p->type_k) &&
           rows_extent(&regions[V].extent, &p->v, p->batch, p->heads_kv, len_kv, p->dim_v, p->type_v) &&
           mask_extent(&regions[MASK].extent, p, len_q, len_kv);
}

attn_status attn_problem_check(const attn_problem *given, attn_problem *problem) {
    if (given == NULL) return ATTN_ERROR_NULL_PROBLEM;
    attn_status status = stamp_check(given->stamp, FIRST_PROBLEM, sizeof *given);
    if (status != ATTN_OK) return status;
    size_t size = given->stamp & 0xffff;
    memcpy(problem, given, size);
    memset((char *)problem + size, 0, sizeof *problem - size);
    if ((status = sizes_check(problem)) != ATTN_OK) return status;
    if ((status = values_check(problem)) != ATTN_OK) return status;
    if (!counts_fit(problem)) return ATTN_ERROR_TOO_LARGE;
    drop_unused_strides(problem);

    static const int tensors[] = { OUT, LSE, Q, K, V, MASK };
    region regions[REGIONS];
    if (!written_extents(regions, problem, problem->type_out, problem->len_q)) return ATTN_ERROR_TOO_LARGE;
    if (!read_extents(regions, problem, problem->len_q, problem->len_kv)) return ATTN_ERROR_TOO_LARGE;
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        int64_t lowest, end;
        if (!attn_extent_bounds(&regions[tensors[t]].extent, &lowest, &end)) return ATTN_ERROR_TOO_LARGE;
    }
    return attn_extent_overlaps_itself(&regions[OUT].extent) ? ATTN_ERROR_OUT_STRIDES : ATTN_OK;
}

/* ---- the arguments ---- */

static attn_status args_copy(const attn_args *given, attn_args *args) {
    if (given == NULL) return ATTN_ERROR_NULL_ARGS;
    attn_status status = stamp_check(given->stamp, FIRST_ARGS, sizeof *given);
    if (status != ATTN_OK) return status;
    size_t size = given->stamp & 0xffff;
    memcpy(args, given, size);
    memset((char *)args + size, 0, sizeof *args - size);
    return ATTN_OK;
}

static bool aligned(const void *pointer, size_t size) { return (uintptr_t)pointer % size == 0; }

/* A tensor without elements needs no pointer. */
static attn_status null_check(const attn_problem *p, const attn_args *a) {
    bool rows = p->batch > 0 && p->len_q > 0, keys = p->batch > 0 && p->len_kv > 0;
    if (rows && a->q == NULL) return ATTN_ERROR_NULL_Q;
    if (keys && a->k == NULL) return ATTN_ERROR_NULL_K;
    if (keys && a->v == NULL) return ATTN_ERROR_NULL_V;
    if (rows && a->out == NULL) return ATTN_ERROR_NULL_OUT;
    if (rows && keys && p->type_mask != ATTN_NONE && a->mask == NULL) return ATTN_ERROR_NULL_MASK;
    return a->mask != NULL && p->type_mask == ATTN_NONE ? ATTN_ERROR_MASK_UNTYPED : ATTN_OK;
}

static bool all_aligned(const attn_problem *p, const attn_args *a) {
    return aligned(a->q, attn_type_size(p->type_q)) && aligned(a->k, attn_type_size(p->type_k)) &&
           aligned(a->v, attn_type_size(p->type_v)) && aligned(a->out, attn_type_size(p->type_out)) &&
           (a->mask == NULL || aligned(a->mask, attn_type_size(p->type_mask))) && aligned(a->lse, sizeof *a->lse) &&
           aligned(a->sinks, sizeof *a->sinks) && aligned(a->slopes, sizeof *a->slopes) && aligned(a->len_q, sizeof *a->len_q) &&
           aligned(a->len_kv, sizeof *a->len_kv);
}

/* The largest of the lengths; `limit` where none are given. False where one is out of range. */
static bool lengths_fit(const int32_t *lengths, int64_t batch, int64_t limit, int64_t *most) {
    *most = limit;
    if (lengths == NULL || batch == 0) return true;
    int32_t low = lengths[0], high = lengths[0];
    for (int64_t b = 1; b < batch; b++) {
        low = lengths[b] < low ? lengths[b] : low;
        high = lengths[b] > high ? lengths[b] : high;
    }
    *most = high;
    return low >= 0 && high <= limit;
}

static attn_status workspace_check(const attn_args *args, size_t needed) {
    if (args->workspace == NULL) return ATTN_OK;
    if (args->workspace_size < needed) return ATTN_ERROR_WORKSPACE_TOO_SMALL;
    return aligned(args->workspace, WORKSPACE_ALIGNMENT) ? ATTN_OK : ATTN_ERROR_WORKSPACE_MISALIGNED;
}

/* At full length, as for out. */
static bool lse_overlaps_itself(const attn_problem *p) {
    attn_extent extent;
    return !rows_extent(&extent, &p->lse, p->batch, p->heads_q, p->len_q, 1, ATTN_F32) || attn_extent_overlaps_itself(&extent);
}

/* Puts the region's extent at an address, or makes it empty; false where it leaves the address space. */
static bool place(region *r, const void *base) {
    r->first = r->end = 0;
    r->extent.base = (uintptr_t)base;
    return base == NULL || attn_extent_addresses(&r->extent, &r->first, &r->end);
}

static bool place_bytes(region *r, const void *base, uint64_t count, size_t size) {
    r->first = r->end = 0;
    if (base == NULL) return true;
    uint64_t bytes = count * size;
    if (bytes > INT64_MAX) return false;
    r->extent = (attn_extent){ .size = { 1, 1, 1, 1 }, .run = (int64_t)bytes };
    return place(r, base);
}

static bool meet(const region *a, const region *b) {
    return a->first < b->end && b->first < a->end && attn_extents_overlap(&a->extent, &b->extent);
}

static attn_status overlaps_check(const region *regions) {
    static const attn_status codes[] = { ATTN_ERROR_OUT_OVERLAPS, ATTN_ERROR_LSE_OVERLAPS, ATTN_ERROR_WORKSPACE_OVERLAPS };
    for (int written = OUT; written <= WORKSPACE; written++) {
        for (int other = written + 1; other < REGIONS; other++) {
            if (meet(&regions[written], &regions[other])) return codes[written];
        }
    }
    return ATTN_OK;
}

attn_status attn_args_check(const attn_problem *problem, const attn_args *given, size_t workspace, bool remote, attn_args *args) {
    int64_t len_q, len_kv;
    attn_status status = args_copy(given, args);
    if (status != ATTN_OK) return status;
    if ((status = null_check(problem, args)) != ATTN_OK) return status;
    if (!all_aligned(problem, args)) return ATTN_ERROR_MISALIGNED;
    if (!lengths_fit(remote ? NULL : args->len_q, problem->batch, problem->len_q, &len_q)) return ATTN_ERROR_LEN_Q_RANGE;
    if (!lengths_fit(remote ? NULL : args->len_kv, problem->batch, problem->len_kv, &len_kv)) return ATTN_ERROR_LEN_KV_RANGE;
    if (args->lse != NULL && lse_overlaps_itself(problem)) return ATTN_ERROR_LSE_STRIDES;
    if ((status = workspace_check(args, workspace)) != ATTN_OK) return status;

    uint64_t batch = (uint64_t)problem->batch, heads = (uint64_t)problem->heads_q;
    region r[REGIONS];
    r[STATES].first = r[STATES].end = 0;
    bool fits = written_extents(r, problem, problem->type_out, len_q) && read_extents(r, problem, len_q, len_kv) &&
                place(&r[OUT], args->out) && place(&r[LSE], args->lse) && place(&r[Q], args->q) && place(&r[K], args->k) &&
                place(&r[V], args->v) && place(&r[MASK], args->mask) && place_bytes(&r[WORKSPACE], args->workspace, workspace, 1) &&
                place_bytes(&r[SINKS], args->sinks, heads, sizeof *args->sinks) &&
                place_bytes(&r[SLOPES], args->slopes, heads, sizeof *args->slopes) &&
                place_bytes(&r[LEN_Q], args->len_q, batch, sizeof *args->len_q) &&
                place_bytes(&r[LEN_KV], args->len_kv, batch, sizeof *args->len_kv);
    if (remote && problem->len_kv == 0) args->k = args->v = args->mask = NULL; /* these may point anywhere, and devices look at pointers */
    return fits ? overlaps_check(r) : ATTN_ERROR_TOO_LARGE;
}

/* ---- the arguments of a merge ---- */

static attn_status states_check(const attn_problem *p, const attn_state *states, int64_t count) {
    if (count < 0) return ATTN_ERROR_COUNT;
    if (count == 0) return ATTN_OK;
    if (states == NULL) return ATTN_ERROR_NULL_STATES;
    if ((uint64_t)count > INT64_MAX / sizeof *states) return ATTN_ERROR_TOO_LARGE;
    if (!aligned(states, _Alignof(attn_state))) return ATTN_ERROR_MISALIGNED;
    bool rows = p->batch > 0 && p->len_q > 0;
    for (int64_t i = 0; i < count; i++) {
        if (rows && (states[i].out == NULL || states[i].lse == NULL)) return ATTN_ERROR_NULL_STATES;
        if (!aligned(states[i].out, sizeof(float)) || !aligned(states[i].lse, sizeof(float))) return ATTN_ERROR_MISALIGNED;
    }
    return ATTN_OK;
}

/* `regions` hold what the call writes. A state has the strides of out and lse, in f32. */
static attn_status states_overlap_check(const attn_problem *p, int64_t len_q, const attn_state *states, int64_t count,
                                        const region *regions) {
    region state[REGIONS];
    if (!written_extents(state, p, ATTN_F32, len_q)) return ATTN_ERROR_TOO_LARGE;
    for (int64_t i = 0; i < count; i++) {
        if (!place(&state[OUT], states[i].out) || !place(&state[LSE], states[i].lse)) return ATTN_ERROR_TOO_LARGE;
        for (int part = OUT; part <= LSE; part++) {
            if (meet(&state[part], &regions[OUT]) || meet(&state[part], &regions[LSE])) return ATTN_ERROR_STATE_OVERLAPS;
            if (meet(&state[part], &regions[WORKSPACE])) return ATTN_ERROR_WORKSPACE_OVERLAPS;
        }
    }
    return ATTN_OK;
}

attn_status attn_merge_check(const attn_problem *problem, const attn_state *states, int64_t count, const attn_args *given, size_t workspace,
                             bool remote, attn_args *args) {
    int64_t len_q;
    attn_status status = args_copy(given, args);
    if (status != ATTN_OK) return status;
    args->q = args->k = args->v = args->mask = NULL;
    args->sinks = args->slopes = NULL;
    args->len_kv = NULL;
    if ((status = states_check(problem, states, count)) != ATTN_OK) return status;
    if (problem->batch > 0 && problem->len_q > 0 && args->out == NULL) return ATTN_ERROR_NULL_OUT;
    if (!all_aligned(problem, args)) return ATTN_ERROR_MISALIGNED;
    if (!lengths_fit(remote ? NULL : args->len_q, problem->batch, problem->len_q, &len_q)) return ATTN_ERROR_LEN_Q_RANGE;
    if (args->lse != NULL && lse_overlaps_itself(problem)) return ATTN_ERROR_LSE_STRIDES;
    if ((status = workspace_check(args, workspace)) != ATTN_OK) return status;

    region r[REGIONS];
    for (int k = 0; k < REGIONS; k++) r[k].first = r[k].end = 0;
    bool fits = written_extents(r, problem, problem->type_out, len_q) && place(&r[OUT], args->out) && place(&r[LSE], args->lse) &&
                place_bytes(&r[WORKSPACE], args->workspace, workspace, 1) &&
                place_bytes(&r[LEN_Q], args->len_q, (uint64_t)problem->batch, sizeof *args->len_q) &&
                place_bytes(&r[STATES], states, (uint64_t)count, sizeof *states);
    if (!fits) return ATTN_ERROR_TOO_LARGE;
    if ((status = overlaps_check(r)) != ATTN_OK) return status;
    return states_overlap_check(problem, len_q, states, count, r);
}

/* ---- what a row may see ---- */

static int64_t plus(int64_t a, int64_t b) {
    int64_t sum;
    if (!__builtin_add_overflow(a, b, &sum)) return sum;
    return a < 0 ? INT64_MIN : INT64_MAX;
}

attn_sequence attn_sequence_of(const attn_problem *problem, const attn_args *args, int64_t b) {
    attn_sequence s = { problem->len_q, problem->len_kv, problem->offset };
    if (args != NULL && args->len_q != NULL) s.len_q = args->len_q[b];
    if (args != NULL && args->len_kv != NULL) s.len_kv = args->len_kv[b];
    if (problem->align == ATTN_BOTTOM_RIGHT) s.diagonal = plus(s.diagonal, s.len_kv - s.len_q);
    return s;
}

__extension__ typedef __int128 exact; /* holds every sum of offset, lengths and band */

static exact exact_diagonal(const attn_problem *problem, const attn_sequence *sequence) {
    return (exact)problem->offset + (problem->align == ATTN_BOTTOM_RIGHT ? sequence->len_kv - sequence->len_q : 0);
}

attn_range attn_visible(const attn_problem *problem, const attn_sequence *sequence, int64_t i) {
    const int64_t len = sequence->len_kv;
    const exact diagonal = i + exact_diagonal(problem, sequence);
    exact lo = problem->left >= 0 ? diagonal - problem->left : 0, hi = problem->right >= 0 ? diagonal + problem->right + 1 : len;
    attn_range range = { lo < 0 ? 0 : lo > len ? len : (int64_t)lo, hi < 0 ? 0 : hi > len ? len : (int64_t)hi };
    if (range.hi < range.lo) range.hi = range.lo;
    return range;
}

/* Rows see a number of keys that is linear in i between the rows where an edge of the band meets an edge of the keys: each such piece is
 * its length times the mean of its ends. */
static double sequence_pairs(const attn_problem *p, const attn_sequence *s) {
    const exact diagonal = exact_diagonal(p, s);
    exact edges[4] = { 0, 0, 0, 0 };
    int64_t from = 0;
    if (p->left >= 0) edges[0] = p->left - diagonal;
    if (p->left >= 0) edges[1] = edges[0] + s->len_kv;
    if (p->right >= 0) edges[2] = -1 - p->right - diagonal;
    if (p->right >= 0) edges[3] = edges[2] + s->len_kv;
    double pairs = 0.0;
    while (from < s->len_q) {
        int64_t to = s->len_q;
        for (int k = 0; k < 4; k++) {
            if (edges[k] > from && edges[k] < to) to = (int64_t)edges[k];
        }
        attn_range first = attn_visible(p, s, from), last = attn_visible(p, s, to - 1);
        pairs += (double)(to - from) * 0.5 * (double)(first.hi - first.lo + last.hi - last.lo);
        from = to;
    }
    return pairs;
}

double attn_visible_pairs(const attn_problem *problem, const attn_args *args) {
    bool uniform = args == NULL || (args->len_q == NULL && args->len_kv == NULL);
    double pairs = 0.0;
    for (int64_t b = 0; b < (uniform ? 1 : problem->batch); b++) {
        attn_sequence sequence = attn_sequence_of(problem, args, b);
        pairs += sequence_pairs(problem, &sequence);
    }
    return uniform ? (double)problem->batch * pairs : pairs;
}

static double tensor_bytes(attn_type type, int64_t batch, int64_t heads, int64_t len, int64_t dim) {
    return (double)attn_type_size(type) * (double)batch * (double)heads * (double)len * (double)dim;
}

void attn_problem_work(const attn_problem *p, double *bytes, double *operations) {
    *operations = 2.0 * (double)(p->dim_qk + p->dim_v) * attn_visible_pairs(p, NULL) * (double)p->heads_q;
    *bytes = tensor_bytes(p->type_q, p->batch, p->heads_q, p->len_q, p->dim_qk) +
             tensor_bytes(p->type_out, p->batch, p->heads_q, p->len_q, p->dim_v) +
             tensor_bytes(p->type_k, p->batch, p->heads_kv, p->len_kv, p->dim_qk) +
             tensor_bytes(p->type_v, p->batch, p->heads_kv, p->len_kv, p->dim_v);
    if (p->batch > 0 && p->len_q > 0 && p->len_kv > 0)
        *bytes += tensor_bytes(p->type_mask, p->mask.batch ? p->batch : 1, p->mask.head ? p->heads_q : 1, p->mask.row ? p->len_q : 1,
                               p->mask.key ? p->len_kv : 1);
}
