/* products.tmpl.h: the two products for one storage type of K and V, and the conversions of its rows. Included once for each type with
 * T (the element), NAME (f32, f16, bf16). All bits of a score or of a weighted sum depend on its own row alone: not on how many rows or
 * keys share the tile. */
#define CAT3_(a, b, c) a##_##b##_##c
#define CAT3(a, b, c) CAT3_(a, b, c)
#define CAT4_(a, b, c, d) a##_##b##_##c##_##d
#define CAT4(a, b, c, d) CAT4_(a, b, c, d)
#define LOAD CAT3(vec, load, NAME)
#define LOAD_PART CAT4(vec, load, NAME, part)
#define STORE_PART CAT4(vec, store, NAME, part)

/* Scores of `rows` queries with LANES / rows keys from key j on; lanes run along the head dim, one reduction tree for all. Past `last`, the
 * last key's scores are computed again. Few rows take key after key, in the order of addresses that hardware prefetchers follow; more rows
 * take keys side by side, which they do not follow, so what comes next is prefetched here, again in the order of addresses. */
static ALWAYS_INLINE void CAT3(thin_tile, NAME, x)(int rows, int side, float *s, const float *q, int64_t ldq, const char *k, int64_t k_row,
                                                   int j, int last, int64_t dim, bool more, int64_t ahead, int64_t key_step,
                                                   int64_t dim_step) {
    enum { MOST = LANES, WIDTH = LANES * (int)sizeof(T) };
    const int keys = LANES / rows;
    const T *kp[MOST];
    vec acc[MOST];
    UNROLL for (int n = 0; n < keys; n++) kp[n] = (const T *)(k + (j + n < last ? j + n : last) * k_row);
    UNROLL for (int i = 0; i < LANES; i++) acc[i] = vec_zero();
    const char *soon = (const char *)kp[0] + ahead;
    UNROLL for (int n0 = 0; n0 < keys; n0 += side) {
        int64_t d = 0;
        for (; d + LANES <= dim; d += LANES) {
            vec kv[MOST];
            UNROLL for (int n = n0; n < n0 + side; n++) kv[n] = LOAD(kp[n] + d);
            if (side > 1) UNROLL for (int n = 0; n < side; n += WIDTH < 64 ? 2 : 1) vec_prefetch(soon + n * key_step);
            soon += dim_step;
            UNROLL for (int r = 0; r < rows; r++) {
                vec qv = vec_load(q + r * ldq + d);
                UNROLL for (int n = n0; n < n0 + side; n++) acc[r * keys + n] = vec_fma(qv, kv[n], acc[r * keys + n]);
            }
        }
        if (d < dim) {
            vec_part part = vec_part_of(dim - d);
            UNROLL for (int n = n0; n < n0 + side; n++) {
                vec kv = LOAD_PART(kp[n] + d, part);
                UNROLL for (int r = 0; r < rows; r++) acc[r * keys + n] = vec_fma(vec_load(q + r * ldq + d), kv, acc[r * keys + n]);
            }
        }
    }
    float sums[LANES];
    vec_store(sums, vec_reduce(acc));
    if (more) /* a further part of the dim */
        for (int i = 0; i < LANES; i++) sums[i] += s[i / keys * ATTN_SCORES_LD + j + i % keys];
    UNROLL for (int r = 0; r < rows; r++) memcpy(s + r * ATTN_SCORES_LD + j, sums + r * keys, (size_t)keys * sizeof(float));
}

/* Keys first .. end - 1 for all rows; a tile may write up to LANES - 1 scores more. Long dims are summed in parts: CHAIN products to a
 * lane. */
static void CAT3(thin_scores, NAME, all)(const attn_work *w, const void *keys, int64_t k_row, int first, int end) {
    const int64_t ldq = w->q_stride, part = CHAIN * LANES, ahead = w->k_ahead;
    const int64_t width = LANES * (int64_t)sizeof(T);
    const bool dense = k_row == w->dim_qk * (int64_t)sizeof(T) && w->dim_qk <= part; /* prefetch by address, or by row */
    for (int r = 0; r < w->rows;) {
        const int left = w->rows - r;
        const float *q = w->q + r * ldq;
        float *s = w->scores + r * ATTN_SCORES_LD;
#define TILES(n, side)                                                                                                                     \
    if (left >= (n) && (n) <= THIN_ROWS) {                                                                                                 \
        const int64_t key_step = dense ? width : k_row, dim_step = dense ? (side)*width : width;                                           \
        for (int64_t d = 0; d < w->dim_qk; d += part) {                                                                                    \
            const int64_t dim = w->dim_qk - d < part ? w->dim_qk - d : part;                                                               \
            const char *k = (const char *)keys + d * (int64_t)sizeof(T);                                                                   \
            if (d == 0)                                                                                                                    \
                for (int j = first; j < end; j += LANES / (n))                                                                             \
                    CAT3(thin_tile, NAME, x)(n, side, s, q, ldq, k, k_row, j, end - 1, dim, false, ahead, key_step, dim_step);             \
            else                                                                                                                           \
                for (int j = first; j < end; j += LANES / (n))                                                                             \
                    CAT3(thin_tile, NAME, x)(n, side, s, q + d, ldq, k, k_row, j, end - 1, dim, true, ahead, key_step, dim_step);          \
        }                                                                                                                                  \
        r += (n);                                                                                                                          \
        continue;                                                                                                                          \
    }
#if THIN_TILES >= 8
        TILES(8, LANES / 8)
#endif
#if THIN_TILES >= 4
        TILES(4, LANES > 8 && sizeof(T) == 4 ? LANES / 8 : LANES / 4) /* long rows: two streams are enough */
#endif
        TILES(2, 1)
        TILES(1, 1)
#undef TILES
    }
}

/* Where to prefetch values: `at` moves `step` bytes with every key of every panel, so that reading ahead keeps the pace of the arithmetic;
 * `lines` cache lines each time. */
typedef struct CAT3(soon, NAME, x) {
    const char *at;
    int64_t step;
    int lines;
} CAT3(soon, NAME, x);

/* o[row][d ..] += sum over keys of p[row][key] * v[key][d ..] for nv vectors, the last of them partial */
static ALWAYS_INLINE void CAT3(values_panel, NAME, x)(int rows, int nv, float *o, int64_t ldo, const float *p, int64_t p_row, int64_t p_key,
                                                      const char *v, int64_t v_row, int first, int keys, vec_part part,
                                                      CAT3(soon, NAME, x) * soon) {
    vec acc[ACCUMULATORS], vv[ACCUMULATORS];
    const char *at = soon->at;
    const int64_t step = soon->step;
    const int lines = soon->lines;
    for (int j = 0; j < keys;) {
        int end = j + CHAIN - (first + j) % CHAIN; /* chains begin at multiples of CHAIN, whatever key the call begins with */
        if (end > keys) end = keys;
        UNROLL for (int i = 0; i < rows * nv; i++) acc[i] = vec_zero();
        for (; j < end; j++) {
            const T *vp = (const T *)(v + j * v_row);
            for (int line = 0; line < lines; line++) vec_prefetch(at + 64 * line);
            at += step;
            UNROLL for (int c = 0; c < nv; c++) {
                vv[c] = c < nv - 1 ? LOAD(vp + c * LANES) : LOAD_PART(vp + c * LANES, part);
                if (rows == 1) IN_ORDER(vv[c]); /* one row waits for memory alone */
            }
            UNROLL for (int r = 0; r < rows; r++) {
                vec pv = vec_set1(p[r * p_row + j * p_key]);
                UNROLL for (int c = 0; c < nv; c++) acc[r * nv + c] = vec_fma(pv, vv[c], acc[r * nv + c]);
            }
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < nv; c++) {
            float *to = o + r * ldo + c * LANES;
            vec_store(to, vec_add(vec_load(to), acc[r * nv + c]));
        }
    }
    soon->at = at;
}

/* all of dim_v for `rows` rows and one run of keys */
static ALWAYS_INLINE void CAT3(values_rows, NAME, x)(int rows, float *o, int64_t ldo, const float *p, int64_t p_row, int64_t p_key,
                                                     const char *v, int64_t v_row, int first, int keys, int64_t dim, int64_t ahead) {
    const int most = ACCUMULATORS / rows < 8 ? ACCUMULATORS / rows : 8;
    const int64_t bytes = dim * (int64_t)sizeof(T);
    int64_t d = 0, vectors = (dim + LANES - 1) / LANES, panels = (vectors + most - 1) / most;
    CAT3(soon, NAME, x) soon = { v + ahead, 0, 0 };
    if (ahead && (panels > 1 || bytes >= 512) && v_row == bytes) { /* one panel reads in the order of addresses, which needs no help */
        soon.step = bytes / panels;
        soon.lines = (int)((soon.step + 63) / 64);
    }
    for (; panels > 0; panels--) { /* panels of nearly one width: a narrow last one would waste more */
        int64_t nv = (vectors + panels - 1) / panels, last = dim - (d + (nv - 1) * LANES);
        vec_part part = vec_part_of(last < LANES ? last : LANES);
        const char *from = v + d * (int64_t)sizeof(T);
        switch (nv) {
#define PANEL(n)                                                                                                                           \
    case n:                                                                                                                                \
        if ((n) <= ACCUMULATORS / rows) CAT3(values_panel, NAME, x)                                                                        \
        (rows, (n) <= ACCUMULATORS / rows ? (n) : 1, o + d, ldo, p, p_row, p_key, from, v_row, first, keys, part, &soon);                  \
        break;
            PANEL(1) PANEL(2) PANEL(3) PANEL(4) PANEL(5) PANEL(6) PANEL(7) PANEL(8)
#undef PANEL
        }
        d += nv * LANES;
        vectors -= nv;
    }
}

static void CAT3(values, NAME, all)(int rows, float *o, int64_t ldo, const float *p, int64_t p_row, int64_t p_key, const void *v,
                                    int64_t v_row, int first, int keys, int64_t dim, int64_t ahead) {
    for (int r = 0; r < rows;) {
        const int left = rows - r;
        float *to = o + r * ldo;
        const float *from = p + r * p_row;
#define ROWS(n)                                                                                                                            \
    if (left >= (n)) {                                                                                                                     \
        CAT3(values_rows, NAME, x)(n, to, ldo, from, p_row, p_key, v, v_row, first, keys, dim, ahead);                                     \
        r += (n);                                                                                                                          \
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

static void CAT3(load_row, NAME, all)(float *to, const void *from, int64_t count) {
    const T *p = from;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) vec_store(to + i, LOAD(p + i));
    if (i < count) vec_store(to + i, LOAD_PART(p + i, vec_part_of(count - i)));
}

static void CAT3(store_row, NAME, all)(void *to, const float *o, float l, int64_t count) {
    T *p = to;
    vec divisor = vec_set1(l == 0.0f ? 1.0f : l);
    for (int64_t i = 0; i < count; i += LANES)
        STORE_PART(p + i, vec_div(vec_load(o + i), divisor), vec_part_of(count - i < LANES ? count - i : LANES));
}
#undef LOAD
#undef LOAD_PART
#undef STORE_PART
#undef T
#undef NAME
