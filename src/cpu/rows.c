/* rows.c: packs queries, finds the rows of K, V and mask by their strides, and writes results back. */
#include "rows.h"
#include <math.h>
#include <string.h>

static const void *address(const void *base, int64_t elements, attn_type type) {
    return (const char *)base + elements * (int64_t)attn_type_size(type);
}

static int64_t position(const attn_call *call, const attn_row_block *rows, int r) { return (rows->first + r) / call->plan->group; }
static int64_t head(const attn_call *call, const attn_row_block *rows, int r) {
    return rows->head_kv * call->plan->group + (rows->first + r) % call->plan->group;
}

bool attn_row_block_of(const attn_call *call, int64_t b, int64_t head_kv, int64_t block, attn_row_block *rows) {
    const attn_plan *plan = call->plan;
    *rows = (attn_row_block){ .b = b, .head_kv = head_kv, .block = block, .first = block * plan->block_rows };
    rows->sequence = attn_sequence_of(call->problem, call->args, b);
    int64_t all = plan->group * rows->sequence.len_q, count = all - rows->first;
    if (count <= 0) return false;
    rows->count = (int)(count < plan->block_rows ? count : plan->block_rows);
    rows->way = attn_plan_way(plan, call->machine->kernels, all);
    for (int64_t i = position(call, rows, 0); i <= position(call, rows, rows->count - 1); i++) {
        attn_range seen = attn_visible(call->problem, &rows->sequence, i);
        if (seen.lo >= seen.hi) continue;
        if (rows->keys.lo == rows->keys.hi)
            rows->keys = seen;
        else {
            if (seen.lo < rows->keys.lo) rows->keys.lo = seen.lo;
            if (seen.hi > rows->keys.hi) rows->keys.hi = seen.hi;
        }
    }
    return true;
}

static const void *query(const attn_call *call, const attn_row_block *rows, int r) {
    const attn_problem *p = call->problem;
    int64_t at = rows->b * p->q.batch + head(call, rows, r) * p->q.head + position(call, rows, r) * p->q.row;
    return address(call->args->q, at, p->type_q);
}

/* `lanes` rows of a wide tile from row r on, dims d .. d + count - 1, by way of the scores, which are free until the first block of keys */
static void pack_lanes(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, int r, int64_t d, int64_t count) {
    const attn_kernels *kernels = call->machine->kernels;
    const int tile = kernels->tile_rows;
    for (int i = 0; i < kernels->lanes; i++) {
        float *to = scratch->scores + i * ATTN_SCORES_LD;
        if (r + i >= rows->count) {
            memset(to, 0, ATTN_SCORES_LD * sizeof(float));
            continue;
        }
        kernels->load(to, address(query(call, rows, r + i), d, call->problem->type_q), call->problem->type_q, count);
        for (int64_t n = 0; call->problem->scale < 0.0f && n < count; n++) to[n] = -to[n];
    }
    kernels->turn(scratch->q + r / tile * tile * call->problem->dim_qk + d * tile + r % tile, scratch->scores, ATTN_SCORES_LD, count);
}

/* [row][q_stride]; wide: [tile][dim_qk][tile_rows]. A negative scale's sign goes into the queries, where it is exact. */
static void pack_queries(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch) {
    const attn_kernels *kernels = call->machine->kernels;
    const int64_t stride = call->plan->q_stride, dim = call->problem->dim_qk;
    const bool negative = call->problem->scale < 0.0f;
    if (rows->way != ATTN_WIDE) {
        memset(scratch->q, 0, (size_t)(rows->count * stride) * sizeof(float));
        for (int r = 0; r < rows->count; r++) kernels->load(scratch->q + r * stride, query(call, rows, r), call->problem->type_q, dim);
        for (int64_t i = 0; negative && i < rows->count * stride; i++) scratch->q[i] = -scratch->q[i];
        return;
    }
    for (int64_t d = 0; d < dim; d += ATTN_BLOCK)
        for (int r = 0; r < rows->count; r += kernels->lanes)
            pack_lanes(call, rows, scratch, r, d, dim - d < ATTN_BLOCK ? dim - d : ATTN_BLOCK);
}

void attn_rows_begin(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, attn_work *work) {
    const attn_problem *p = call->problem;
    pack_queries(call, rows, scratch);
    *work = (attn_work){
        .type_q = p->type_q,
        .type_k = p->type_k,
        .type_v = p->type_v,
        .way = rows->way,
        .fast = call->machine->fast,
        .rows = rows->count,
        .dim_qk = p->dim_qk,
        .dim_v = p->dim_v,
        .q_stride = call->plan->q_stride,
        .o_stride = call->plan->o_stride,
        .scale = fabsf(p->scale),
        .softcap = p->softcap,
        .q = scratch->q,
        .lo = scratch->lo,
        .hi = scratch->hi,
        .scores = scratch->scores,
        .convert = scratch->convert,
        .packed = scratch->packed,
        .tile = scratch->tile,
    };
    int padded = (rows->count + ATTN_LANES_MAX - 1) / ATTN_LANES_MAX * ATTN_LANES_MAX;
    for (int r = 0; r < padded; r++) {
        scratch->lo[r] = scratch->hi[r] = 0;
        scratch->slopes[r] = call->args->slopes && r < rows->count ? call->args->slopes[head(call, rows, r)] : 0.0f;
        scratch->diagonal[r] = 0.0f;
    }
    if (call->args->slopes) {
        work->slopes = scratch->slopes;
        work->diagonal = scratch->diagonal;
    }
    if (call->machine->kernels->begin) call->machine->kernels->begin(work);
}

void attn_rows_end(const attn_call *call, const attn_work *work) {
    if (call->machine->kernels->end) call->machine->kernels->end(work);
}

/* count entries, `stride` elements apart, side by side */
static void gather(void *to, const char *from, int64_t stride, size_t size, int count) {
    for (int j = 0; j < count; j++) memcpy((char *)to + (size_t)j * size, from + j * stride * (int64_t)size, size);
}

/* Mask values of row r's visible keys into `to`; false where all are 0, and then `to` may not have been written. */
static bool load_mask_row(const attn_call *call, const attn_scratch *scratch, int r, float *to) {
    const attn_problem *p = call->problem;
    const size_t size = attn_type_size(p->type_mask);
    const int lo = scratch->lo[r], count = scratch->hi[r] - lo;
    const char *from = (const char *)scratch->mask_rows[r] + lo * p->mask.key * (int64_t)size;
    uint32_t dense[ATTN_BLOCK];
    if (count <= 0) return false;
    if (p->mask.key != 1) {
        gather(dense, from, p->mask.key, size, count);
        from = (const char *)dense;
    }
    return call->machine->kernels->load_mask(to + lo, from, p->type_mask, count);
}

/* Mask values of the block's rows; rows that see the same keys through the same entries (heads of a group, broadcast rows) share them.
 * false where every entry that a row may see is 0. */
static bool load_masks(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, int64_t key) {
    const attn_problem *p = call->problem;
    const int64_t group = call->plan->group;
    bool any = false;
    for (int r = 0; r < rows->count; r++) {
        int64_t at =
            rows->b * p->mask.batch + head(call, rows, r) * p->mask.head + position(call, rows, r) * p->mask.row + key * p->mask.key;
        scratch->mask_rows[r] = address(call->args->mask, at, p->type_mask);
        int twin = -1;
        if (r > 0 && scratch->mask_rows[r - 1] == scratch->mask_rows[r])
            twin = r - 1;
        else if (r >= group && scratch->mask_rows[r - group] == scratch->mask_rows[r])
            twin = (int)(r - group);
        if (twin >= 0 && scratch->lo[twin] == scratch->lo[r] && scratch->hi[twin] == scratch->hi[r]) {
            scratch->bias_rows[r] = scratch->bias_rows[twin];
            continue;
        }
        float *to = scratch->bias + (int64_t)r * ATTN_BLOCK;
        bool differs = load_mask_row(call, scratch, r, to);
        scratch->bias_rows[r] = differs ? to : scratch->zero;
        any |= differs;
    }
    return any;
}

/* Which of the keys first .. end - 1 any row sees through its mask; shrinks the range to those at its ends. */
static void seen_keys(const attn_row_block *rows, const attn_scratch *scratch, attn_work *work) {
    unsigned char *seen = scratch->seen;
    memset(seen, 0, ATTN_BLOCK);
    for (int r = 0; r < rows->count; r++) {
        const float *bias = scratch->bias_rows[r];
        if (r > 0 && bias == scratch->bias_rows[r - 1] && scratch->lo[r] == scratch->lo[r - 1] && scratch->hi[r] == scratch->hi[r - 1])
            continue;
        for (int j = scratch->lo[r]; j < scratch->hi[r]; j++) seen[j] |= bias[j] != -INFINITY;
    }
    while (work->first < work->end && !seen[work->first]) work->first++;
    while (work->first < work->end && !seen[work->end - 1]) work->end--;
    if (memchr(seen + work->first, 0, (size_t)(work->end - work->first))) work->seen = seen;
}

/* Bytes to the row that lies some kilobytes of rows further: far enough for memory to answer, near enough to still be cached then. */
static int64_t ahead(int64_t row, int64_t dim, attn_type type) {
    const int64_t distance = 16384;
    int64_t rows = distance / (dim * (int64_t)attn_type_size(type));
    return (int64_t)((uint64_t)(rows > 1 ? rows : 1) * (uint64_t)row); /* wraps: a prefetch may go anywhere */
}

static void point_keys(const attn_call *call, const attn_row_block *rows, int64_t key, attn_work *work) {
    const attn_problem *p = call->problem;
    work->k = address(call->args->k, rows->b * p->k.batch + rows->head_kv * p->k.head + key * p->k.row, p->type_k);
    work->v = address(call->args->v, rows->b * p->v.batch + rows->head_kv * p->v.head + key * p->v.row, p->type_v);
    work->k_row = p->k.row * (int64_t)attn_type_size(p->type_k);
    work->v_row = p->v.row * (int64_t)attn_type_size(p->type_v);
    work->k_ahead = ahead(work->k_row, p->dim_qk, p->type_k);
    work->v_ahead =
        (int64_t)(ATTN_RUN * (uint64_t)work->v_row); /* panels walk a run several times: what comes after it is fetched meanwhile */
}

bool attn_rows_keys(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, int64_t key, int count,
                    attn_work *work) {
    work->first = count;
    work->end = 0;
    work->bias = NULL;
    work->seen = NULL;
    for (int r = 0; r < rows->count; r++) {
        int64_t i = position(call, rows, r);
        attn_range range = attn_visible(call->problem, &rows->sequence, i);
        int64_t lo = range.lo - key, hi = range.hi - key;
        if (lo < 0) lo = 0;
        if (hi > count) hi = count;
        if (lo >= hi) lo = hi = 0;
        scratch->lo[r] = (int32_t)lo;
        scratch->hi[r] = (int32_t)hi;
        scratch->diagonal[r] = (float)((double)i + (double)rows->sequence.diagonal - (double)key);
        if (lo < hi && lo < work->first) work->first = (int)lo;
        if (lo < hi && hi > work->end) work->end = (int)hi;
    }
    if (work->first >= work->end) return false;
    bool masked = call->args->mask && load_masks(call, rows, scratch, key);
    if (masked) {
        work->bias = scratch->bias_rows;
        seen_keys(rows, scratch, work);
        if (work->first >= work->end) return false;
    }
    work->mixed = masked;
    for (int r = 0; r < rows->count; r++) work->mixed |= scratch->lo[r] > work->first || scratch->hi[r] < work->end;
    point_keys(call, rows, key, work);
    return true;
}

void attn_rows_finish(const attn_call *call, const attn_row_block *rows, attn_states states) {
    const attn_problem *p = call->problem;
    const int64_t size = (int64_t)attn_type_size(p->type_out);
    for (int r = 0; r < rows->count; r++) {
        int64_t h = head(call, rows, r), i = position(call, rows, r);
        double m = states.m[r], l = states.l[r], sum = l;
        if (call->args->sinks) {
            double sink = call->args->sinks[h];
            sum = l == 0.0 ? 0.0 : l + exp(sink - m);
            if (call->args->lse) m = l == 0.0 ? sink : sink > m ? sink + log1p(l * exp(m - sink)) : m + log(sum);
        } else if (call->args->lse)
            m = l == 0.0 ? -INFINITY : m + log(l);
        if (call->args->lse) call->args->lse[rows->b * p->lse.batch + h * p->lse.head + i * p->lse.row] = (float)m;
        char *out = (char *)call->args->out + (rows->b * p->out.batch + h * p->out.head + i * p->out.row) * size;
        call->machine->kernels->finish(out, p->type_out, states.o + r * call->plan->o_stride, (float)sum, p->dim_v);
    }
}
