/* wide.tmpl.h: rows in vector lanes: scores, visibility, softmax and values of tiles of rows, for many rows (prefill). */
enum {
    TILE = 2 * LANES,
    TILES_MOST = ATTN_ROWS / TILE,
    VALUE_ROWS = 4,
    VALUE_VECTORS = 3, /* rows and vectors of a panel of values */
    VALUE_RUN = SUMS_IN_REGISTERS ? ATTN_RUN : ATTN_RUN / 2,
    EXPS = 4 /* exponentials side by side */
};

static inline int least(int a, int b) { return a < b ? a : b; }

/* One step of a wide tile: acc[key][row] += q[row] * k[key], for qv vectors of rows */
static ALWAYS_INLINE void wide_step(int qv, vec *acc, const float *q, const float *const *kp, int64_t d) {
    vec qd[2];
    UNROLL for (int u = 0; u < qv; u++) qd[u] = vec_load(q + d * TILE + u * LANES);
    UNROLL for (int n = 0; n < WIDE_KEYS; n++) {
        vec kd = vec_set1(kp[n][d]);
        UNROLL for (int u = 0; u < qv; u++) acc[n * qv + u] = vec_fma(qd[u], kd, acc[n * qv + u]);
    }
}

/* scores of qv vectors of rows with WIDE_KEYS keys, keys read in place, in chains of CHAIN. The sum of chains stays in registers where
 * there are enough, and in memory where not. top: the rows' largest score so far. */
static ALWAYS_INLINE void wide_tile(int qv, float *s, const float *q, const char *k, int64_t k_row, int last, int64_t dim, vec *top) {
    const float *kp[WIDE_KEYS];
    vec acc[2 * WIDE_KEYS], sum[2 * WIDE_KEYS];
    UNROLL for (int n = 0; n < WIDE_KEYS; n++) kp[n] = (const float *)(k + (n < last ? n : last) * k_row);
    UNROLL for (int i = 0; i < qv * WIDE_KEYS; i++) sum[i] = vec_zero();
    for (int64_t d = 0; d < dim;) {
        const bool begins = d == 0;
        UNROLL for (int i = 0; i < qv * WIDE_KEYS; i++) acc[i] = vec_zero();
        if (dim - d >= CHAIN)
            UNROLL_4 for (int i = 0; i < CHAIN; i++) wide_step(qv, acc, q, kp, d++);
        else
            while (d < dim) wide_step(qv, acc, q, kp, d++);
        UNROLL for (int n = 0; n < WIDE_KEYS; n++) UNROLL for (int u = 0; u < qv; u++) {
            float *to = s + n * TILE + u * LANES;
            vec *all = sum + n * qv + u;
            if (!SUMS_IN_REGISTERS && !begins) *all = vec_load(to);
            *all = begins ? acc[n * qv + u] : vec_add(*all, acc[n * qv + u]);
            if (!SUMS_IN_REGISTERS || d == dim) vec_store(to, *all);
            if (d == dim) top[u] = vec_max(*all, top[u]);
        }
    }
}

typedef struct wide_range {
    int row, rows, first, end, whole_first, whole_end;
} wide_range; /* keys that any row, that every row sees */

static wide_range wide_range_of(const attn_work *w, int tile) {
    wide_range t = { tile * TILE, w->rows - tile * TILE, ATTN_BLOCK, 0, 0, ATTN_BLOCK };
    if (t.rows > TILE) t.rows = TILE;
    for (int r = t.row; r < t.row + t.rows; r++) {
        if (w->lo[r] < w->hi[r] && w->lo[r] < t.first) t.first = w->lo[r];
        if (w->lo[r] < w->hi[r] && w->hi[r] > t.end) t.end = w->hi[r];
        if (w->lo[r] > t.whole_first) t.whole_first = w->lo[r];
        if (w->hi[r] < t.whole_end) t.whole_end = w->hi[r];
    }
    if (t.first < w->first) t.first = w->first;
    if (t.end > w->end) t.end = w->end;
    return t;
}

/* Scale, softcap, slopes and mask on a tile's scores: a walk of its own where scores are not plain. Masks lie row by row, scores key
 * by key. */
static void wide_bias(const attn_work *w, const wide_range *t, float *s) {
    const int vectors = (t->rows + LANES - 1) / LANES;
    bool shared = true;
    for (int r = t->row + 1; w->bias && r < t->row + t->rows; r++) shared &= w->bias[r] == w->bias[t->row];
    for (int u = 0; u < vectors; u++) {
        vec slope = w->slopes ? vec_load(w->slopes + t->row + u * LANES) : vec_zero();
        vec diagonal = w->slopes ? vec_load(w->diagonal + t->row + u * LANES) : vec_zero();
        for (int j = t->first / LANES * LANES; j < t->end; j += LANES) {
            vec add[LANES];
            for (int i = 0; i < LANES; i++) {
                int r = t->row + u * LANES + i;
                add[i] = w->bias && r < w->rows ? vec_load(w->bias[r] + j) : vec_zero();
            }
            if (w->bias && !shared) vec_transpose(add);
            for (int i = 0; i < LANES; i++) {
                float *to = s + (j + i) * TILE + u * LANES;
                vec bias = shared && w->bias ? vec_set1(w->bias[t->row][j + i]) : add[i];
                vec_store(to, biased(w, vec_load(to), vec_sub(diagonal, vec_set1((float)(j + i))), slope, bias));
            }
        }
    }
}

/* One vector of rows, keys from .. to - 1: hides what the band does, and brings the rows' maximum up to date. */
static vec wide_top(const attn_work *w, const wide_range *t, float *s, int u, int from, int to, vec top) {
    const int row = t->row + u * LANES;
    float lo[LANES], hi[LANES];
    for (int i = 0; i < LANES; i++) {
        lo[i] = (float)w->lo[row + i];
        hi[i] = (float)w->hi[row + i];
    }
    for (int j = from; j < to; j++) {
        float *at = s + j * TILE + u * LANES;
        vec x = vec_load(at);
        if (j < t->whole_first || j >= t->whole_end) {
            x = band(x, vec_set1((float)j), vec_load(lo), vec_load(hi));
            vec_store(at, x);
        }
        top = vec_max(x, top);
    }
    return top;
}

/* One vector of rows: softmax down the keys. The maximum of plain scores came with the scores. */
static void wide_softmax(const attn_work *w, const wide_range *t, float *s, int u) {
    const int row = t->row + u * LANES;
    vec scale = vec_set1(plain(w) ? w->scale : 1.0f), sum = vec_zero();
    vec top = plain(w) ? vec_load(w->state.m + row) : wide_top(w, t, s, u, t->first, t->end, vec_set1(-INFINITY));
    top = vec_mul(top, scale);
    vec shift = vec_sub(vec_zero(), not_empty(top));
    vec_mask large = vec_lt(vec_set1(LARGE), vec_abs(top));
    if (vec_any(large)) /* rounded here, and neither below */
        for (int j = t->first; j < t->end; j++) {
            float *at = s + j * TILE + u * LANES;
            vec x = vec_load(at);
            vec_store(at, vec_select(large, vec_mul(x, scale), x));
        }
    scale = vec_select(large, vec_set1(1.0f), scale);
    for (int j = t->first; j < t->end;) {
        const int end = least(j + CHAIN - j % CHAIN, t->end);
        vec chain = vec_zero();
        for (; j + EXPS <= end; j += EXPS) {
            vec x[EXPS];
            float *at = s + j * TILE + u * LANES;
            UNROLL for (int n = 0; n < EXPS; n++) x[n] = vec_fma(vec_load(at + n * TILE), scale, shift);
            vec_exps(x, EXPS);
            UNROLL for (int n = 0; n < EXPS; n++) {
                chain = vec_add(chain, x[n]);
                vec_store(at + n * TILE, x[n]);
            }
        }
        for (; j < end; j++) {
            float *at = s + j * TILE + u * LANES;
            vec p = vec_exp(vec_fma(vec_load(at), scale, shift));
            chain = vec_add(chain, p);
            vec_store(at, p);
        }
        sum = vec_add(sum, chain);
    }
    vec_store(w->state.m + row, top);
    vec_store(w->state.l + row, sum);
}

/* scores of keys from .. to - 1; the rows' maxima so far are in state.m */
static ALWAYS_INLINE void wide_vectors(int qv, const attn_work *w, const wide_range *t, float *s, key_rows k, int from, int to,
                                       int64_t lines) {
    const float *q = w->q + (int64_t)t->row * w->dim_qk;
    float *m = w->state.m + t->row;
    vec top[2];
    UNROLL for (int u = 0; u < qv; u++) top[u] = vec_load(m + u * LANES);
    for (int j = from; j < to; j += WIDE_KEYS, k.at += WIDE_KEYS * k.row) {
        const int end = least(j + WIDE_KEYS, to);
        vec seen[2];
        for (int n = 0; n < WIDE_KEYS; n++) /* the first tile brings the keys in; hardware does not follow rows side by side */
            for (int64_t line = 0; line < lines; line += 64) vec_prefetch(k.at + w->k_ahead + n * k.row + line);
        UNROLL for (int u = 0; u < qv; u++) seen[u] = top[u];
        wide_tile(qv, s + j * TILE, q, k.at, k.row, to - 1 - j, w->dim_qk, top);
        if (j < t->whole_first || end > t->whole_end) UNROLL for (int u = 0; u < qv; u++) top[u] = wide_top(w, t, s, u, j, end, seen[u]);
    }
    UNROLL for (int u = 0; u < qv; u++) vec_store(m + u * LANES, top[u]);
}

static void wide_scores(const attn_work *w, const wide_range *t, float *s, key_rows k, int from, int to) {
    const int64_t lines = t->row == 0 && k.at != (const char *)w->convert ? w->dim_qk * (int64_t)sizeof(float) : 0;
    if (from < t->first) {
        k.at += (t->first - from) * k.row;
        from = t->first;
    }
    if (to > t->end) to = t->end;
    if (t->rows > LANES)
        wide_vectors(2, w, t, s, k, from, to, lines);
    else
        wide_vectors(1, w, t, s, k, from, to, lines);
}

/* One step of a panel: acc[row][d ..] += p[row] * v[d ..], for nv vectors, the last of them partial or not */
static ALWAYS_INLINE void wide_weigh(int rows, int nv, bool partial, vec *acc, const float *p, const char *v, vec_part part) {
    vec vv[VALUE_VECTORS];
    UNROLL for (int c = 0; c < nv; c++) {
        const float *vp = (const float *)v + c * LANES;
        vv[c] = partial && c == nv - 1 ? vec_load_f32_part(vp, part) : vec_load(vp);
    }
    UNROLL for (int r = 0; r < rows; r++) {
        vec pv = vec_set1(p[r]);
        UNROLL for (int c = 0; c < nv; c++) acc[r * nv + c] = vec_fma(pv, vv[c], acc[r * nv + c]);
    }
}

/* o[row][d ..] += sum over keys of p[key][row] * v[key][d ..] for `rows` rows and nv vectors, in chains that begin at multiples of CHAIN */
static ALWAYS_INLINE void wide_panel(int rows, int nv, bool partial, float *o, int64_t ldo, const float *p, const char *v, int64_t v_row,
                                     int first, int keys, vec_part part) {
    vec acc[VALUE_ROWS * VALUE_VECTORS], sum[VALUE_ROWS * VALUE_VECTORS];
    if (SUMS_IN_REGISTERS)
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < nv; c++) sum[r * nv + c] = vec_load(o + r * ldo + c * LANES);
    while (keys > 0) {
        const int chain = least(CHAIN - first % CHAIN, keys);
        UNROLL for (int i = 0; i < rows * nv; i++) acc[i] = vec_zero();
        if (chain == CHAIN)
            UNROLL_4 for (int i = 0; i < CHAIN; i++, v += v_row, p += TILE) wide_weigh(rows, nv, partial, acc, p, v, part);
        else
            for (int i = 0; i < chain; i++, v += v_row, p += TILE) wide_weigh(rows, nv, partial, acc, p, v, part);
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < nv; c++) {
            float *to = o + r * ldo + c * LANES;
            vec *all = sum + r * nv + c;
            if (!SUMS_IN_REGISTERS) *all = vec_load(to);
            *all = vec_add(*all, acc[r * nv + c]);
            if (!SUMS_IN_REGISTERS) vec_store(to, *all);
        }
        first += chain;
        keys -= chain;
    }
    if (SUMS_IN_REGISTERS)
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int c = 0; c < nv; c++) vec_store(o + r * ldo + c * LANES, sum[r * nv + c]);
}

/* `keys` keys from the block's key `first` on, dims d .. of nv vectors, for all rows of a tile; o, p, v: of the first row, key, dim.
 * Between groups of rows the same panel of the next run is prefetched, bit by bit. */
static ALWAYS_INLINE void wide_rows(int nv, bool partial, int rows, float *o, int64_t ldo, const float *p, const char *v, int64_t v_row,
                                    int first, int keys, vec_part part, int64_t ahead) {
    int r = 0, fetched = 0;
    for (; r + VALUE_ROWS <= rows; r += VALUE_ROWS) {
        for (int until = ahead ? keys * (r + VALUE_ROWS) / rows : 0; fetched < until; fetched++)
            UNROLL for (int c = 0; c < nv; c++) vec_prefetch(v + fetched * v_row + ahead + c * LANES * (int)sizeof(float));
        wide_panel(VALUE_ROWS, nv, partial, o + r * ldo, ldo, p + r, v, v_row, first, keys, part);
    }
    for (; r < rows; r++) wide_panel(1, nv, partial, o + r * ldo, ldo, p + r, v, v_row, first, keys, part);
}

/* A panel of values stays in the first cache for all rows of the tile. Panels are of nearly one width: a narrow last one would waste more.
 */
static void wide_values(int rows, float *o, int64_t ldo, const float *p, const char *v, int64_t v_row, int first, int keys, int64_t dim,
                        int64_t ahead) {
    int64_t vectors = (dim + LANES - 1) / LANES, panels = (vectors + VALUE_VECTORS - 1) / VALUE_VECTORS;
    for (int64_t d = 0; panels > 0; panels--) {
        int64_t nv = (vectors + panels - 1) / panels, last = dim - (d + (nv - 1) * LANES);
        vec_part part = vec_part_of(last < LANES ? last : LANES);
        const char *from = v + d * (int64_t)sizeof(float);
#define PANEL(n)                                                                                                                           \
    if (nv == (n) && last >= LANES) wide_rows(n, false, rows, o + d, ldo, p, from, v_row, first, keys, part, ahead);                       \
    if (nv == (n) && last < LANES) wide_rows(n, true, rows, o + d, ldo, p, from, v_row, first, keys, part, ahead);
        PANEL(1)
        PANEL(2)
        PANEL(3)
#undef PANEL
        d += nv * LANES;
        vectors -= nv;
    }
}

static void wide_run(const attn_work *w, const wide_range *t, const float *s, key_rows v, int from, int to) {
    const int base = from;
    if (from < t->first) from = t->first;
    if (to > t->end) to = t->end;
    if (from >= to) return;
    float *o = w->state.o + t->row * w->o_stride;
    const int64_t ahead = t->row == 0 && v.at != (const char *)w->convert ? w->v_ahead : 0;
    wide_values(t->rows, o, w->o_stride, s + from * TILE, v.at + (from - base) * v.row, v.row, from, to - from, w->dim_v, ahead);
}

static void wide_attend(const attn_work *w) {
    const int tiles = (w->rows + TILE - 1) / TILE;
    const int64_t tile_scores = (int64_t)ATTN_SCORES_LD * TILE;
    wide_range range[TILES_MOST];
    for (int t = 0; t < tiles; t++) {
        range[t] = wide_range_of(w, t);
        for (int r = 0; r < range[t].rows; r += LANES) vec_store(w->state.m + range[t].row + r, vec_set1(-INFINITY));
    }
    for (int j = w->first, n; j < w->end; j += n) {
        n = run_of(w, j);
        key_rows k = keys_of(w, j, n);
        for (int t = 0; t < tiles; t++) wide_scores(w, range + t, w->scores + t * tile_scores, k, j, j + n);
    }
    for (int t = 0; t < tiles; t++) {
        float *s = w->scores + t * tile_scores;
        if (!plain(w)) wide_bias(w, range + t, s);
        for (int u = 0; u * LANES < range[t].rows; u++) wide_softmax(w, range + t, s, u);
    }
    for (int j = w->first, n; j < w->end; j += n) {
        n = run_of(w, j);
        key_rows v = values_of(w, j, n);
        for (int i = j; i < j + n;) { /* a part that the first cache holds for all tiles */
            const int end = least(j + n, (i / VALUE_RUN + 1) * VALUE_RUN);
            for (int t = 0; t < tiles; t++) wide_run(w, range + t, w->scores + t * tile_scores, v, i, end);
            v.at += (end - i) * v.row;
            i = end;
        }
    }
    if (w->mixed)
        for (int t = 0; t < tiles; t++)
            for (int r = 0; r < range[t].rows; r++)
                mend_row(w, range[t].row + r, range[t].first, range[t].end, w->scores + t * tile_scores + r, TILE);
}
