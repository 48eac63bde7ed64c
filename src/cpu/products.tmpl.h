/* products.tmpl.h: the two products for one storage type of K and V, and the conversions of its rows. Included once for each type with
 * T (the element), NAME (f32, f16, bf16), SET (the vectors that one load of keys or values brings in). All bits of a score or of a weighted
 * sum depend on its own row alone: not on how many rows or keys share the tile. */
#define CAT3_(a, b, c) a##_##b##_##c
#define CAT3(a, b, c) CAT3_(a, b, c)
#define CAT4_(a, b, c, d) a##_##b##_##c##_##d
#define CAT4(a, b, c, d) CAT4_(a, b, c, d)
#define LOAD CAT3(vec, load, NAME)
#define LOAD_PART CAT4(vec, load, NAME, part)
#define STORE_PART CAT4(vec, store, NAME, part)
#define LOAD_SET CAT4(vec, load, NAME, set)
#define LOAD_SET_PART(to, p, count) CAT4(vec, load, NAME, set_part)(to, p, count)
#if defined VALUES_IN_SETS
#define VSET SET
#define LOAD_VALUES LOAD_SET
#define LOAD_VALUES_PART LOAD_SET_PART
#else
#define VSET 1
#define LOAD_VALUES(to, p) (*(to) = LOAD(p))
#define LOAD_VALUES_PART(to, p, count) (*(to) = LOAD_PART(p, vec_part_of(count)))
#endif

/* The sums of all lanes of LANES vectors, vector i's in lane i: one tree for all, the same for every tile. */
static ALWAYS_INLINE vec CAT3(fold_tile, NAME, x)(vec *sum) {
    static const int steps[] = { 4, 1, 2, 8 };
    int done = 0;
    UNROLL for (int n = 0; n < 4; n++) {
        const int step = steps[n];
        if (step >= LANES) continue;
        done |= step;
        UNROLL for (int i = 0; i < LANES; i++) if (!(i & done)) sum[i] = vec_fold(sum[i], sum[i + step], step);
    }
    return sum[0];
}

/* Where tiles of more rows prefetch keys: a while ahead, a line for each line they read, in the order of addresses. */
typedef struct CAT3(pace, NAME, x) {
    int64_t ahead, key_step, dim_step; /* bytes to what is fetched meanwhile; from line to line of a step; from step to step */
} CAT3(pace, NAME, x);

/* One set of the dim of `side` keys with `rows` queries; sums of row r and key n are sum[r * LANES / rows + n]. */
static ALWAYS_INLINE void CAT3(thin_step, NAME, x)(int rows, int side, vec *sum, const float *q, int64_t ldq, const char *const *kp,
                                                   int64_t d, const char *soon, int64_t key_step) {
    enum { MOST = LANES, BYTES = SET * LANES * (int)sizeof(T) };
    vec kv[MOST][SET];
    UNROLL for (int n = 0; n < side; n++) LOAD_SET(kv[n], (const T *)kp[n] + d);
    if (side > 1) UNROLL for (int n = 0; n < side; n += BYTES < 64 ? 2 : 1) vec_prefetch(soon + n * key_step);
    UNROLL for (int h = 0; h < SET; h++) UNROLL for (int r = 0; r < rows; r++) {
        vec qv = vec_load(q + r * ldq + d + h * LANES);
        if (rows > 4 || sizeof(T) < 4) IN_REGISTER(qv); /* fewer rows wait for memory, and better so at an even pace */
        UNROLL for (int n = 0; n < side; n++) sum[r * (LANES / rows) + n] = vec_fma(qv, kv[n][h], sum[r * (LANES / rows) + n]);
    }
}

/* Products of `rows` queries with LANES / rows keys, summed lane by lane: lanes run along the head dim. One or two rows take key after key,
 * in the order of addresses that hardware prefetchers follow; more rows take `side` keys side by side, which they do not follow. */
static ALWAYS_INLINE void CAT3(thin_keys, NAME, x)(int rows, int side, vec *sum, const float *q, int64_t ldq, const char *k, int64_t k_row,
                                                   int64_t dim, const CAT3(pace, NAME, x) * pace) {
    enum { MOST = LANES, COUNT = SET * LANES };
    const int keys = LANES / rows;
    const char *soon = k + pace->ahead;
    UNROLL for (int i = 0; i < LANES; i++) sum[i] = vec_zero();
    UNROLL for (int n0 = 0; n0 < keys; n0 += side) {
        const char *kp[MOST];
        UNROLL for (int n = 0; n < side; n++) kp[n] = k + (n0 + n) * k_row;
        int64_t d = 0;
        for (; rows > 4 && d + 2 * COUNT <= dim; d += 2 * COUNT, soon += 2 * pace->dim_step) {
            CAT3(thin_step, NAME, x)(rows, side, sum + n0, q, ldq, kp, d, soon, pace->key_step);
            CAT3(thin_step, NAME, x)(rows, side, sum + n0, q, ldq, kp, d + COUNT, soon + pace->dim_step, pace->key_step);
        }
        for (; d + COUNT <= dim; d += COUNT, soon += pace->dim_step)
            CAT3(thin_step, NAME, x)(rows, side, sum + n0, q, ldq, kp, d, soon, pace->key_step);
        if (d < dim) UNROLL for (int n = 0; n < side; n++) {
                vec kv[SET];
                LOAD_SET_PART(kv, (const T *)kp[n] + d, (int)(dim - d));
                UNROLL for (int h = 0; h < SET; h++) UNROLL for (int r = 0; r < rows; r++) sum[r * keys + n0 + n] =
                    vec_fma(vec_load(q + r * ldq + d + h * LANES), kv[h], sum[r * keys + n0 + n]);
            }
    }
}

/* Scores of `rows` queries with keys first .. end - 1; queries lie as vec_load_NAME_set brings keys in. Long dims are summed in parts,
 * CHAIN products to a lane. The last tile may do some keys again. */
static ALWAYS_INLINE void CAT3(thin_tiles, NAME, x)(int rows, int side, float *s, const float *q, int64_t ldq, const char *k, int64_t k_row,
                                                    int first, int end, int64_t dim_qk, int64_t ahead) {
    enum { PART = CHAIN * LANES, BYTES = SET * LANES * (int)sizeof(T) };
    const int keys = LANES / rows;
    const bool dense = k_row == dim_qk * (int64_t)sizeof(T) && dim_qk <= PART; /* fetched by address, or by row */
    const CAT3(pace, NAME, x) pace = { ahead, dense ? BYTES : k_row, dense ? side * BYTES : BYTES };
    for (int j = first; j < end; j += keys) {
        if (j + keys > end) j = end - keys;
        vec sum[LANES], scores = vec_zero();
        for (int64_t d = 0; d < dim_qk; d += PART) {
            const int64_t dim = dim_qk - d < PART ? dim_qk - d : PART;
            const char *from = k + j * k_row + d * (int64_t)sizeof(T);
            CAT3(thin_keys, NAME, x)(rows, side, sum, q + d, ldq, from, k_row, dim, &pace);
            vec folded = CAT3(fold_tile, NAME, x)(sum);
            scores = d == 0 ? folded : vec_add(scores, folded);
        }
        float out[LANES];
        vec_store(out, scores);
        if (rows > 4) IN_MEMORY(out); /* many short pieces: faster loaded again than taken from the vector */
        UNROLL for (int r = 0; r < rows; r++) memcpy(s + r * ATTN_SCORES_LD + j, out + r * keys, (size_t)keys * sizeof(float));
    }
}

/* The same for fewer keys than a tile has, one after the other. */
static void CAT3(thin_scores, NAME, few)(const attn_work *w, const float *q, const char *k, int64_t k_row, int first, int end) {
    enum { PART = CHAIN * LANES, COUNT = SET * LANES };
    for (int j = first; j < end; j++)
        for (int r = 0; r < w->rows; r++) {
            vec scores = vec_zero();
            for (int64_t d0 = 0; d0 < w->dim_qk; d0 += PART) {
                vec sum[LANES];
                for (int i = 0; i < LANES; i++) sum[i] = vec_zero();
                for (int64_t d = d0; d < w->dim_qk && d < d0 + PART; d += COUNT) {
                    vec kv[SET];
                    LOAD_SET_PART(kv, (const T *)(k + j * k_row) + d, w->dim_qk - d < COUNT ? (int)(w->dim_qk - d) : COUNT);
                    for (int h = 0; h < SET; h++) sum[0] = vec_fma(vec_load(q + r * w->q_stride + d + h * LANES), kv[h], sum[0]);
                }
                vec folded = CAT3(fold_tile, NAME, x)(sum);
                scores = d0 == 0 ? folded : vec_add(scores, folded);
            }
            float out[LANES];
            vec_store(out, scores);
            w->scores[r * ATTN_SCORES_LD + j] = out[0];
        }
}

static void CAT3(thin_scores, NAME, all)(const attn_work *w, const float *queries, const char *k, int64_t k_row, int first, int end) {
    if (end - first < LANES) {
        CAT3(thin_scores, NAME, few)(w, queries, k, k_row, first, end);
        return;
    }
    for (int r = 0; r < w->rows;) {
        const int left = w->rows - r;
#define TILES(n, side)                                                                                                                     \
    if (left >= (n) && (n) <= THIN_ROWS) {                                                                                                 \
        CAT3(thin_tiles, NAME, x)                                                                                                          \
        (n, side, w->scores + r * ATTN_SCORES_LD, queries + r * w->q_stride, w->q_stride, k, k_row, first, end, w->dim_qk, w->k_ahead);    \
        r += (n);                                                                                                                          \
        continue;                                                                                                                          \
    }
#if THIN_TILES >= 8
        TILES(8, LANES / 8)
#endif
#if THIN_TILES >= 4
        TILES(4, 2)
#endif
        TILES(2, sizeof(T) < 4 && LANES > 4 ? 2 : 1)
        TILES(1, 1)
#undef TILES
    }
}

/* o[row][d ..] += sum over one chain of keys of p[row][key] * v[key][d ..] for ns sets, the last of them `part` numbers. Where `lines`, as
 * many cache lines from `soon` on are prefetched with every key; returns where that ended. */
static ALWAYS_INLINE const char *CAT3(values_panel, NAME, x)(int rows, int ns, float *o, int64_t ldo, const float *p, int64_t p_row,
                                                             int64_t p_key, const char *v, int64_t v_row, int keys, int part,
                                                             const char *soon, int64_t step, int lines) {
    enum { MOST = 16 * ROW_TILES };
    const bool by_column = (int)VALUES_MOST > (int)ACCUMULATORS; /* registers hold all weights beside one set of values, or all values */
    const int rows_by_column = by_column ? rows : 0, rows_by_row = rows - rows_by_column;
    vec acc[MOST];
    UNROLL for (int i = 0; i < rows * ns * VSET; i++) acc[i] = vec_zero();
    KEEP_LOOP for (int j = 0; j < keys; j++) {
        const T *vp = (const T *)(v + j * v_row);
        for (int line = 0; line < lines; line++) vec_prefetch(soon + 64 * line);
        soon += step;
        vec pv[ROW_TILES], vv[16];
        UNROLL for (int r = 0; r < rows_by_column; r++) {
            pv[r] = vec_set1(p[r * p_row + j * p_key]);
            IN_REGISTER(pv[r]);
        }
        UNROLL for (int c = 0; c < ns; c++) {
            if (c < ns - 1)
                LOAD_VALUES(vv + c * VSET, vp + c * VSET * LANES);
            else
                LOAD_VALUES_PART(vv + c * VSET, vp + c * VSET * LANES, part);
            if (by_column || rows == 1) UNROLL for (int h = 0; h < VSET; h++) IN_ORDER(vv[c * VSET + h]);
            UNROLL for (int h = 0; h < VSET; h++) UNROLL for (int r = 0; r < rows_by_column; r++) acc[(r * ns + c) * VSET + h] =
                vec_fma(pv[r], vv[c * VSET + h], acc[(r * ns + c) * VSET + h]);
        }
        UNROLL for (int r = 0; r < rows_by_row; r++) {
            vec one = vec_set1(p[r * p_row + j * p_key]);
            IN_REGISTER(one);
            UNROLL for (int c = 0; c < ns * VSET; c++) acc[r * ns * VSET + c] = vec_fma(one, vv[c], acc[r * ns * VSET + c]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < ns * VSET; c++) {
        float *to = o + r * ldo + c * LANES;
        vec_store(to, vec_add(vec_load(to), acc[r * ns * VSET + c]));
    }
    return soon;
}

/* All of dim_v for `rows` rows and one chain of keys. Whole rows of V at once are read in the order of addresses, which needs no help; it
 * is worth some sums that no register holds. Panels of them are not: the chain that lies `ahead` is prefetched meanwhile. */
static ALWAYS_INLINE void CAT3(values_rows, NAME, x)(int rows, float *o, int64_t ldo, const float *p, int64_t p_row, int64_t p_key,
                                                     const char *v, int64_t v_row, int keys, int64_t dim, int64_t ahead) {
    const int set = VSET * LANES, whole = VALUES_MOST / VSET / rows, narrow = ACCUMULATORS / VSET / rows;
    const int64_t cap = 8 / VSET;
    int64_t d = 0, sets = (dim + set - 1) / set, most = rows <= 4 && sets <= whole ? whole : narrow;
    if (most > cap) most = cap;
    int64_t panels = (sets + most - 1) / most;
    const int64_t step = panels == 1 ? 0 : v_row == dim * (int64_t)sizeof(T) ? v_row / panels : v_row;
    const int lines = ahead && panels > 1 ? (int)((dim * (int64_t)sizeof(T) / panels + 63) / 64) : 0;
    const char *soon = v + ahead;
    for (; panels > 0; panels--) { /* panels of nearly one width: a narrow last one would waste more */
        int64_t ns = (sets + panels - 1) / panels, last = dim - (d + (ns - 1) * set);
        const int part = last < set ? (int)last : set;
        const char *from = v + d * (int64_t)sizeof(T);
        if (step == v_row) soon = from + ahead;
#define PANEL(n)                                                                                                                           \
    if (ns == (n) && rows * (n)*VSET <= (rows <= 4 ? VALUES_MOST : ACCUMULATORS))                                                          \
        soon = CAT3(values_panel, NAME, x)(rows, n, o + d, ldo, p, p_row, p_key, from, v_row, keys, part, soon, step, lines);
        PANEL(1)
        PANEL(2)
        PANEL(3)
        PANEL(4)
        PANEL(5)
        PANEL(6)
        PANEL(7)
        PANEL(8)
#undef PANEL
        d += ns * set;
        sets -= ns;
    }
}

/* Chains begin at multiples of CHAIN, whatever key the call begins with; all rows take one before the next, so that its values stay in the
 * first cache. */
static void CAT3(values, NAME, all)(int rows, float *o, int64_t ldo, const float *p, int64_t p_row, int64_t p_key, const void *values,
                                    int64_t v_row, int first, int keys, int64_t dim, int64_t ahead) {
    for (int j = 0, n; j < keys; j += n) {
        n = CHAIN - (first + j) % CHAIN;
        if (n > keys - j) n = keys - j;
        const char *v = (const char *)values + j * v_row;
        for (int r = 0; r < rows;) {
            const int left = rows - r;
            const int64_t fetch = r == 0 ? ahead : 0;
#define ROWS(n_rows)                                                                                                                       \
    if (left >= (n_rows)) {                                                                                                                \
        CAT3(values_rows, NAME, x)(n_rows, o + r * ldo, ldo, p + r * p_row + j * p_key, p_row, p_key, v, v_row, n, dim, fetch);            \
        r += (n_rows);                                                                                                                     \
        continue;                                                                                                                          \
    }
#if ROW_TILES >= 8
            ROWS(8)
#endif
            ROWS(4)
            ROWS(2)
            ROWS(1)
#undef ROWS
        }
    }
}

static void CAT3(load_row, NAME, all)(float *to, const void *from, int64_t count) {
    const T *p = from;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) vec_store(to + i, LOAD(p + i));
    if (i < count) vec_store(to + i, LOAD_PART(p + i, vec_part_of(count - i)));
}

/* Plus 0: a sum may be -0 where it was never folded, and is +0 where it was. */
static void CAT3(store_row, NAME, all)(void *to, const float *o, float l, int64_t count) {
    T *p = to;
    vec divisor = vec_set1(l == 0.0f ? 1.0f : l);
    for (int64_t i = 0; i < count; i += LANES)
        STORE_PART(p + i, vec_div(vec_add(vec_load(o + i), vec_zero()), divisor), vec_part_of(count - i < LANES ? count - i : LANES));
}
#undef LOAD
#undef LOAD_SET
#undef LOAD_SET_PART
#undef LOAD_VALUES
#undef LOAD_VALUES_PART
#undef VSET
#undef LOAD_PART
#undef STORE_PART
#undef T
#undef NAME
#undef SET
