/* pairs.tmpl.h: thin scores of bf16 queries with bf16 keys by dot products of pairs: no widening, and twice the products of a multiply-add.
 * LANES / 4 rows share a vector, each with four neighbouring pairs of the head dim, so keys are read by broadcasts and a score is the sum
 * of four lanes. The sum's order is the same whatever the number of rows: rows that are not there are zeros. */
enum { PAIR_LANES = 4, PAIR_ROWS = LANES / PAIR_LANES, PAIR_COUNT = 2 * PAIR_LANES, PAIR_CHAIN = CHAIN / 2 * PAIR_COUNT, PAIR_KEYS = 4 };

/* One or two rows are as fast without: memory is what they wait for. As with thin and wide, that depends on the sequence's rows alone.
 *
 * These dot products take subnormal numbers for zero, inputs and results. Beside usual queries that is nothing: what a flushed key or
 * product loses is less than 2^60 * 2^-126 for each element, and no scale up to 2^30 makes that visible in a weight. Other rows (NaN, Inf,
 * near float32's ends) go the float32 way: that depends on the row's own query alone, so nothing hidden shows and no other row can tell. */
#define PAIR_BELOW 0x1.fep-101f /* the largest bf16 that is not usual: the next is 2^-100 */
#define PAIR_LIMIT 0x1p60f
#define PAIR_SCALE_LIMIT 0x1p30f
static bool pairs_suit(const attn_work *w) {
    return w->rows > 2 && w->type_q == ATTN_BF16 && w->type_k == ATTN_BF16 && w->way == ATTN_THIN && w->scale <= PAIR_SCALE_LIMIT;
}

static bool pair_usual(const float *q, int64_t count) {
    vec_mask usual = vec_eq(vec_zero(), vec_zero());
    for (int64_t i = 0; i < count; i += LANES) {
        vec x = vec_load(q + i), size = vec_select(vec_eq(x, vec_zero()), vec_set1(1.0f), vec_abs(x));
        usual = vec_and(usual, vec_and(vec_lt(size, vec_set1(PAIR_LIMIT)), vec_lt(vec_set1(PAIR_BELOW), size)));
    }
    float unusual[LANES];
    vec_store(unusual, vec_select(usual, vec_zero(), vec_set1(1.0f)));
    return vec_hmax(vec_load(unusual)) == 0.0f;
}

/* Packs queries as [row / PAIR_ROWS][dim / PAIR_COUNT][PAIR_ROWS][PAIR_COUNT] with zeros behind rows and dim, and in the place of unusual
 * rows; their bits are returned. */
static uint64_t pair_queries(const attn_work *w, uint16_t *to) {
    const int64_t steps = w->q_stride / PAIR_COUNT;
    uint64_t unusual = 0;
    for (int r = 0; r < (w->rows + PAIR_ROWS - 1) / PAIR_ROWS * PAIR_ROWS; r++) {
        const float *q = w->q + r * w->q_stride;
        const bool usual = r < w->rows && pair_usual(q, w->q_stride);
        if (r < w->rows && !usual) unusual |= (uint64_t)1 << r;
        uint16_t *row = to + (r / PAIR_ROWS * steps * PAIR_ROWS + r % PAIR_ROWS) * PAIR_COUNT;
        for (int64_t i = 0; i < w->q_stride; i++) {
            uint32_t bits = 0;
            if (usual) memcpy(&bits, q + i, sizeof bits);
            row[i / PAIR_COUNT * PAIR_ROWS * PAIR_COUNT + i % PAIR_COUNT] = (uint16_t)(bits >> 16);
        }
    }
    return unusual;
}

/* Four keys with `groups` of PAIR_ROWS rows; sums of one part of the dim */
static ALWAYS_INLINE void pair_part(int groups, vec *sum, const uint16_t *q, int64_t group, const char *k, int64_t k_row, int64_t dim,
                                    const char *soon) {
    UNROLL for (int i = 0; i < groups * PAIR_KEYS; i++) sum[i] = vec_zero();
    int64_t d = 0;
    for (; d + PAIR_COUNT <= dim; d += PAIR_COUNT) {
        vec kv[PAIR_KEYS];
        UNROLL for (int n = 0; n < PAIR_KEYS; n++) kv[n] = vec_set1_quarter((const uint16_t *)(k + n * k_row) + d);
        if (soon) vec_prefetch(soon + d * 2 * PAIR_KEYS);
        UNROLL for (int g = 0; g < groups; g++) {
            vec qv = vec_load((const float *)(const void *)(q + g * group + d * PAIR_ROWS));
            IN_REGISTER(qv);
            UNROLL for (int n = 0; n < PAIR_KEYS; n++) sum[g * PAIR_KEYS + n] = vec_dot(qv, kv[n], sum[g * PAIR_KEYS + n]);
        }
    }
    if (d < dim) UNROLL for (int n = 0; n < PAIR_KEYS; n++) {
            vec kv = vec_set1_quarter_part((const uint16_t *)(k + n * k_row) + d, (int)(dim - d));
            UNROLL for (int g = 0; g < groups; g++) sum[g * PAIR_KEYS + n] =
                vec_dot(vec_load((const float *)(const void *)(q + g * group + d * PAIR_ROWS)), kv, sum[g * PAIR_KEYS + n]);
        }
}

/* scores of the rows of each group with four keys */
static ALWAYS_INLINE void pair_tile(int groups, float *s, int rows, const uint16_t *q, int64_t group, const char *k, int64_t k_row,
                                    int64_t dim, const char *soon) {
    vec sum[2 * PAIR_KEYS], part[2 * PAIR_KEYS];
    pair_part(groups, sum, q, group, k, k_row, dim < PAIR_CHAIN ? dim : PAIR_CHAIN, soon);
    for (int64_t d = PAIR_CHAIN; d < dim; d += PAIR_CHAIN) {
        pair_part(groups, part, q + d * PAIR_ROWS, group, k + d * 2, k_row, dim - d < PAIR_CHAIN ? dim - d : PAIR_CHAIN,
                  soon ? soon + d * 2 * PAIR_KEYS : soon);
        UNROLL for (int i = 0; i < groups * PAIR_KEYS; i++) sum[i] = vec_add(sum[i], part[i]);
    }
    UNROLL for (int g = 0; g < groups; g++) {
        vec *t = sum + g * PAIR_KEYS;
        float out[LANES];
        vec_store(out, vec_fold(vec_fold(t[0], t[1], 1), vec_fold(t[2], t[3], 1), 2)); /* [row][key] */
        UNROLL for (int r = 0; r < PAIR_ROWS; r++) if (g * PAIR_ROWS + r < rows)
            memcpy(s + (g * PAIR_ROWS + r) * ATTN_SCORES_LD, out + r * PAIR_KEYS, PAIR_KEYS * sizeof(float));
    }
}

static void pair_scores(const attn_work *w, const uint16_t *queries, const char *k, int64_t k_row, int first, int end) {
    const int64_t group = w->q_stride * PAIR_ROWS;
    for (int j = first; j < end; j += PAIR_KEYS) {
        if (j + PAIR_KEYS > end && end - first >= PAIR_KEYS) j = end - PAIR_KEYS;
        const char *at = k + j * k_row;
        const bool few = j + PAIR_KEYS > end; /* than that: one, again and again */
        const int64_t step = few ? 0 : k_row;
        for (int r = 0; r < w->rows; r += 2 * PAIR_ROWS) {
            float *s = w->scores + r * ATTN_SCORES_LD + j;
            const uint16_t *q = queries + r / PAIR_ROWS * group;
            const char *soon = r == 0 ? at + w->k_ahead : NULL;
            if (w->rows - r > PAIR_ROWS)
                pair_tile(2, s, w->rows - r, q, group, at, step, w->dim_qk, soon);
            else
                pair_tile(1, s, w->rows - r, q, group, at, step, w->dim_qk, soon);
        }
        if (few) j -= PAIR_KEYS - 1;
    }
}
