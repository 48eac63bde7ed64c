/* tile.tmpl.h: the tile way: scores and values as products of matrices of bf16 numbers (tile.h), rows in strips. Elements that the products
 * would not treat as float32 arithmetic does (NaN, Inf, what is near float32's ends) are "unusual". Those of v take part as zeros, and what
 * rows that see them miss is added in float32; rows of q and k that hold any take part as zeros, and rows that are one or see one are done
 * again the thin way, alone. Nothing else can tell. */
/* 2^-64 and 2^60: products of numbers between, sums of them and their parts are far from float32's ends. */
#define USUAL_LEAST 0x1p-64f
#define USUAL_LIMIT 0x1p60f
enum { USUAL_LEAST_BF16 = (127 - 64) << 7, USUAL_LIMIT_BF16 = (127 + 60) << 7 };

/* A row of bf16, zeros behind it up to `padded` (a multiple of 32); whether any of it is unusual. */
static bool copy_bf16(uint16_t *to, int64_t padded, const uint16_t *from, int64_t dim) {
    bool unusual = false;
    for (int64_t d = 0; d < padded; d += 32) {
        int64_t left = dim - d;
        unusual |= vec_copy_bf16(to + d, from + d, left > 32 ? 32 : left > 0 ? (int)left : 0, USUAL_LEAST_BF16, USUAL_LIMIT_BF16);
    }
    return unusual;
}

static ALWAYS_INLINE bool split_floats(int parts, uint16_t *to, int64_t stride, const float *from, int64_t dim) {
    uint32_t unusual = 0;
    for (int64_t d = 0; d < dim; d++) {
        float rest = from[d], size = fabsf(rest);
        unusual |= (uint32_t) !(size < USUAL_LIMIT) | ((uint32_t)(size < USUAL_LEAST) & (uint32_t)(size != 0.0f));
        UNROLL for (int part = 0; part < parts; part++) {
            uint32_t bits;
            float high;
            memcpy(&bits, &rest, sizeof bits);
            bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u; /* nearest: what is left is small and of either sign */
            to[part * stride + d] = (uint16_t)(bits >> 16);
            memcpy(&high, &bits, sizeof high);
            rest -= high; /* exact */
        }
    }
    return unusual != 0;
}

/* `count` numbers in the parts that numbers of `type` need, zeros behind them up to `padded`, and in the place of unusual ones: then
 * true. */
static bool split(uint16_t *to, int64_t padded, const float *from, attn_type type, int64_t count) {
    const int parts = attn_tile_parts(type);
    bool unusual = parts == 1   ? split_floats(1, to, padded, from, count)
                   : parts == 2 ? split_floats(2, to, padded, from, count)
                                : split_floats(3, to, padded, from, count);
    if (unusual) count = 0;
    for (int part = 0; part < parts; part++) memset(to + part * padded + count, 0, (size_t)(padded - count) * sizeof *to);
    return unusual;
}

/* A row of keys or values in parts; zeros where there is none (NULL). */
static bool split_row(uint16_t *to, int64_t padded, const void *from, attn_type type, int64_t dim, float *scratch) {
    if (from && type == ATTN_BF16) {
        if (!copy_bf16(to, padded, from, dim)) return false;
    } else if (from) {
        load(scratch, from, type, dim);
        return split(to, padded, scratch, type, dim);
    }
    memset(to, 0, (size_t)(attn_tile_parts(type) * padded) * sizeof *to);
    return from != NULL;
}

/* 16 pairs of each of 16 rows, from[row][pair], to to[pair][row] */
static void transpose_pairs(uint16_t *to, const uint16_t *from, int64_t row) {
    if (LANES >= 8) {
        UNROLL for (int block = 0; block < 16 / LANES * 16 / LANES; block++) { /* of LANES rows and pairs */
            const int r = block * LANES / 16 * LANES, pair = block * LANES % 16;
            vec t[LANES];
            for (int i = 0; i < LANES; i++) t[i] = vec_load((const float *)(const void *)(from + (r + i) * row + 2 * pair));
            vec_transpose(t);
            for (int i = 0; i < LANES; i++) vec_store((float *)(void *)(to + (pair + i) * 32 + 2 * r), t[i]);
        }
    } else
        for (int pair = 0; pair < 16; pair++)
            for (int i = 0; i < 16; i++) memcpy(to + pair * 32 + 2 * i, from + i * row + 2 * pair, 2 * sizeof *to);
}

static const void *key_row(const attn_work *w, const char *from, int64_t row, int j) {
    return j < w->first || j >= w->end || (w->seen && !w->seen[j]) ? NULL : from + j * row;
}

/* 16 keys of bf16 at once, all there and of whole tiles; false, with nothing of use written, where any is unusual. */
static bool pack_sixteen(uint16_t *to, const char *from, int64_t row, int64_t dim) {
    bool unusual = false;
    for (int64_t d = 0; d < dim; d += 32) {
        for (int i = 0; i < 16; i++)
            unusual |= vec_unusual_bf16((const uint16_t *)(const void *)(from + i * row) + d, USUAL_LEAST_BF16, USUAL_LIMIT_BF16);
        transpose_pairs(to + d * 16, (const uint16_t *)(const void *)from + d, row / (int64_t)sizeof *to);
    }
    return !unusual;
}

static void pack_keys(const attn_work *w, const attn_tile_scratch *s) {
    const int64_t padded = attn_tile_round(w->dim_qk, 32), part = attn_tile_k_part(w->dim_qk);
    const int parts = attn_tile_parts(w->type_k);
    const bool whole = w->type_k == ATTN_BF16 && w->dim_qk == padded && !w->seen;
    memset(s->unusual_k, 0, ATTN_BLOCK);
    for (int j = w->first / 16 * 16; j < w->end; j += 16) {
        if (whole && j >= w->first && j + 16 <= w->end && pack_sixteen(s->k + j * padded, w->k + j * w->k_row, w->k_row, padded)) continue;
        for (int i = 0; i < 16; i++) {
            const void *from = key_row(w, w->k, w->k_row, j + i);
            s->unusual_k[j + i] = split_row(s->rows + i * parts * padded, padded, from, w->type_k, w->dim_qk, w->convert);
        }
        for (int n = 0; n < parts; n++)
            for (int64_t d = 0; d < padded; d += 32)
                transpose_pairs(s->k + n * part + (j * padded + d * 16), s->rows + n * padded + d, parts * padded);
    }
}

static bool is_usual(float x) { return x == 0.0f || (fabsf(x) >= USUAL_LEAST && fabsf(x) < USUAL_LIMIT); }

/* A row of values as float32 into the scratch, with zeros for what is unusual. */
static void load_usual(const attn_work *w, const void *from) {
    load(w->convert, from, w->type_v, w->dim_v);
    for (int64_t d = 0; d < w->dim_v; d++)
        if (!is_usual(w->convert[d])) w->convert[d] = 0.0f;
}

/* A row of values in parts; whether any of it is unusual, and 0 then. */
static bool split_values(const attn_work *w, uint16_t *to, int64_t padded, const void *from) {
    if (!split_row(to, padded, from, w->type_v, w->dim_v, w->convert)) return false;
    load_usual(w, from);
    split(to, padded, w->convert, w->type_v, w->dim_v);
    return true;
}

/* Values of keys j and j + 1 as float32, [panel][key][16], for weights that are not in parts. */
static void float_values(const attn_work *w, const attn_tile_scratch *s, int j) {
    for (int i = j; i < j + 2; i++) {
        const void *from = key_row(w, w->v, w->v_row, i);
        if (from && s->unusual_v[i])
            load_usual(w, from);
        else if (from)
            load(w->convert, from, w->type_v, w->dim_v);
        else
            memset(w->convert, 0, (size_t)attn_tile_round(w->dim_v, LANES) * sizeof *w->convert);
        for (int64_t d = 0; d < w->dim_v; d += 16) {
            float *to = (float *)(void *)s->v + d * ATTN_BLOCK + i * 16;
            UNROLL for (int n = 0; n < 16; n += LANES)
                vec_store(to + n, n == 0 || d + n < w->dim_v ? vec_load(w->convert + d + n) : vec_zero());
        }
    }
}

static void pack_values(const attn_work *w, const attn_tile_scratch *s, int weight_parts) {
    const int64_t padded = attn_tile_round(w->dim_v, 32), part = attn_tile_v_part(w->dim_v);
    const int parts = attn_tile_parts(w->type_v);
    memset(s->unusual_v, 0, ATTN_BLOCK);
    for (int j = w->first / 32 * 32; j < w->end || j % 32; j += 2) {
        for (int i = 0; i < 2; i++)
            s->unusual_v[j + i] = split_values(w, s->rows + i * parts * padded, padded, key_row(w, w->v, w->v_row, j + i));
        if (!weight_parts) {
            float_values(w, s, j);
            continue;
        }
        for (int n = 0; n < parts; n++)
            for (int64_t d = 0; d < w->dim_v; d += 16)
                vec_zip_16(s->v + n * part + d * ATTN_BLOCK + j * 16, s->rows + n * padded + d, s->rows + (parts + n) * padded + d);
    }
}

/* 2^x for x <= 0 and -inf, for weights that will be rounded to 16 bits: the polynomial of degree 5 with least relative error (7.5e-8). */
static inline vec exp2_for_16_bits(vec x) {
    vec n = vec_round(x), r = vec_sub(x, n);
    vec p = vec_fma(vec_set1(1.32764725e-03f), r, vec_set1(9.67554096e-03f));
    p = vec_fma(p, r, vec_set1(5.55071309e-02f));
    p = vec_fma(p, r, vec_set1(2.40221202e-01f));
    p = vec_fma(p, r, vec_set1(6.93146944e-01f));
    return vec_scale2(vec_fma(p, r, vec_set1(1.00000012e+00f)), n);
}

/* A row's weights of 32 keys as float32 (parts 0), or as parts of bf16: in three exactly. */
static ALWAYS_INLINE void store_weights(uint16_t *to, int parts, vec *weight) {
    enum { VECTORS = 32 / LANES };
    if (parts == 0) {
        float *at = (float *)(void *)to;
        UNROLL for (int i = 0; i < VECTORS; i++) vec_store(at + i * LANES / 16 * 256 + i * LANES % 16, weight[i]);
        return;
    }
    UNROLL for (int n = 0; n < parts - 1; n++) {
        vec high[VECTORS];
        UNROLL for (int i = 0; i < VECTORS; i++) {
            high[i] = vec_high_bits(weight[i]);
            weight[i] = vec_sub(weight[i], high[i]);
        }
        vec_store_bf16_32(to + n * ATTN_TILE_P_PART, high);
    }
    vec_store_bf16_32(to + (parts - 1) * ATTN_TILE_P_PART, weight);
}

/* A row's weights from its scores s and their maximum m, and the sum of them. In `brief` they are powers of two of (s - m) log2(e), one
 * rounding each for both. */
static ALWAYS_INLINE float row_weights(const attn_work *w, bool brief, const float *s, float m, uint16_t *p, int parts) {
    const bool large = fabsf(m) > LARGE;
    const float scale = plain(w) ? w->scale : 1.0f, unit = brief ? 1.44269504088896341f : 1.0f, top = m == -INFINITY ? 0.0f : m;
    vec first = vec_set1(large ? scale : 1.0f), then = vec_set1(large ? 1.0f : scale * unit), shift = vec_set1(-top * unit);
    vec sum = vec_zero();
    for (int j = w->first / 32 * 32; j < w->end;) {
        vec chain = vec_zero();
        do {
            vec weight[32 / LANES];
            UNROLL for (int i = 0; i < 32 / LANES; i++) {
                vec x = vec_load(s + j + i * LANES);
                weight[i] = vec_fma(brief ? x : vec_mul(x, first), then, shift);
                if (brief) weight[i] = exp2_for_16_bits(weight[i]);
            }
            if (!brief) vec_exps(weight, 32 / LANES);
            UNROLL for (int i = 0; i < 32 / LANES; i++) chain = vec_add(chain, weight[i]);
            store_weights(p + j * (parts ? 16 : 32), parts, weight);
            j += 32;
        } while (j < w->end && j % (CHAIN * LANES));
        sum = vec_add(sum, chain);
    }
    return vec_hsum(sum);
}

static void tile_softmax(const attn_work *w, int row, float *s, uint16_t *p, int parts) {
    const float m = w->state.m[row] = row_scores(w, row, s, 32);
    float *l = w->state.l + row;
    if (parts == 1)
        *l = fabsf(m) > LARGE ? row_weights(w, false, s, m, p, 1) : row_weights(w, true, s, m, p, 1);
    else if (parts == 2)
        *l = row_weights(w, false, s, m, p, 2);
    else
        *l = row_weights(w, false, s, m, p, EXACT_PARTS);
}

static bool sees(const attn_work *w, int row, int j) { return j >= w->lo[row] && j < w->hi[row] && !hidden(w, row, j); }

static float weight_of(const uint16_t *p, int parts) {
    float weight = 0.0f;
    if (parts == 0) memcpy(&weight, p, sizeof weight);
    for (int n = 0; n < parts; n++) {
        uint32_t bits = (uint32_t)p[n * ATTN_TILE_P_PART] << 16;
        float part;
        memcpy(&part, &bits, sizeof part);
        weight += part;
    }
    return weight;
}

/* A row by itself, the thin way, from the queries as they are. */
static void thin_row(const attn_work *w, int row) {
    attn_work one = *w;
    one.way = ATTN_THIN;
    one.rows = 1;
    one.q += row * w->q_stride;
    one.lo += row;
    one.hi += row;
    if (w->slopes) one.slopes += row, one.diagonal += row;
    if (w->bias) one.bias += row;
    float m[ATTN_LANES_MAX], l[ATTN_LANES_MAX];
    one.state = (attn_states){ m, l, w->state.o + row * w->o_stride };
    memset(one.state.o, 0, (size_t)w->o_stride * sizeof(float));
    thin_attend(&one);
    w->state.m[row] = *m;
    w->state.l[row] = *l;
}

/* The keys that any row of a strip sees, within w's. */
static attn_work strip_of(const attn_work *w, int row, int rows) {
    attn_work strip = *w;
    strip.first = w->end;
    strip.end = w->first;
    for (int r = row; r < row + rows; r++) {
        if (w->lo[r] >= w->hi[r]) continue;
        if (w->lo[r] < strip.first) strip.first = w->lo[r];
        if (w->hi[r] > strip.end) strip.end = w->hi[r];
    }
    if (strip.first < w->first) strip.first = w->first;
    if (strip.end > w->end) strip.end = w->end;
    return strip;
}

static void empty_row(const attn_work *w, int row) {
    w->state.m[row] = -INFINITY;
    w->state.l[row] = 0.0f;
    memset(w->state.o + row * w->o_stride, 0, (size_t)w->o_stride * sizeof(float));
}

static uint16_t *packed_queries(const attn_work *w) { return (uint16_t *)(void *)((char *)w->packed + attn_tile_round(w->rows, 64)); }

/* As an address: a prefetch may go anywhere, and behind the last keys strides may lead anywhere. */
static void prefetch_row(const char *from, int64_t row, int j, int64_t size) {
    const uintptr_t at = (uintptr_t)from + (uintptr_t)j * (uintptr_t)row;
    for (int64_t line = 0; line < size; line += 64) vec_prefetch((const void *)(at + (uintptr_t)line));
}

/* Each row fetches its share of the next block's keys and values: packing them would wait for memory. */
static void prefetch_share(const attn_work *w, int row) {
    const int from = ATTN_BLOCK * row / w->rows, to = ATTN_BLOCK * (row + 1) / w->rows;
    const int64_t size_k = w->dim_qk * (w->type_k == ATTN_F32 ? 4 : 2), size_v = w->dim_v * (w->type_v == ATTN_F32 ? 4 : 2);
    for (int j = ATTN_BLOCK + from; j < ATTN_BLOCK + to; j++) {
        prefetch_row(w->k, w->k_row, j, size_k);
        prefetch_row(w->v, w->v_row, j, size_v);
    }
}

/* where the weights of a strip's row begin, in 16-bit numbers */
static inline int weight_at(int row, int key, int parts) {
    const int size = parts ? 1 : 2; /* of a weight */
    return row / 16 * (16 * ATTN_BLOCK * size) + row % 16 * 32 + key * 16 * size;
}

/* Unusual values took part as zeros: what rows that see them miss. */
static void add_unusual(const attn_work *w, const attn_tile_scratch *s, int row, int rows, int weight_parts) {
    for (int j = w->first; j < w->end; j++) {
        if (!s->unusual_v[j] || (w->seen && !w->seen[j])) continue;
        load(w->convert, w->v + j * w->v_row, w->type_v, w->dim_v);
        for (int r = 0; r < rows; r++) {
            float *o = w->state.o + (row + r) * w->o_stride;
            if (!sees(w, row + r, j)) continue;
            int at = weight_at(r, j / 32 * 32, weight_parts) + (weight_parts ? j % 32 : j % 32 / 16 * 512 + j % 16 * 2);
            float weight = weight_of(s->p + at, weight_parts);
            for (int64_t d = 0; d < w->dim_v; d++)
                if (!is_usual(w->convert[d])) o[d] += weight * w->convert[d];
        }
    }
}

static void tile_strip(const attn_work *w, const attn_tile_scratch *s, int row, int rows, int weight_parts) {
    const int64_t padded_qk = attn_tile_round(w->dim_qk, 32), padded_v = attn_tile_round(w->dim_v, 16);
    const attn_work strip = strip_of(w, row, rows);
    if (strip.first >= strip.end) {
        for (int r = row; r < row + rows; r++) empty_row(w, r);
        return;
    }
    const int from = strip.first / 32 * 32, panels = (strip.end - from + 15) / 16, keys = (strip.end - from + 31) / 32 * 32;
    const int padded_rows = (rows + ROWS_AT_ONCE - 1) / ROWS_AT_ONCE * ROWS_AT_ONCE;
    tile_scores(w, w->scores + from, packed_queries(w) + row * padded_qk, padded_rows, s->k + from * padded_qk, panels);
    for (int r = 0; r < rows; r++) {
        prefetch_share(w, row + r);
        tile_softmax(&strip, row + r, w->scores + r * ATTN_SCORES_LD, s->p + weight_at(r, 0, weight_parts), weight_parts);
    }
    float *o = w->state.o + row * w->o_stride;
    const uint16_t *p = s->p + weight_at(0, from, weight_parts), *v = s->v + from * (weight_parts ? 16 : 32);
    if (rows == padded_rows)
        tile_values(w, o, w->o_stride, p, padded_rows, v, keys, weight_parts);
    else {
        tile_values(w, s->o, padded_v, p, padded_rows, v, keys, weight_parts);
        for (int r = 0; r < rows; r++) memcpy(o + r * w->o_stride, s->o + r * padded_v, (size_t)padded_v * sizeof(float));
    }
    if (memchr(s->unusual_v + strip.first, 1, (size_t)(strip.end - strip.first))) add_unusual(&strip, s, row, rows, weight_parts);
}

static bool sees_unusual_key(const attn_work *w, int row, const unsigned char *unusual) {
    for (int j = w->first; j < w->end; j++)
        if (unusual[j] && sees(w, row, j)) return true;
    return false;
}

static void tile_attend(const attn_work *w) {
    attn_tile_scratch s = attn_tile_lay(w->tile, w->dim_qk, w->dim_v, w->type_k, w->type_v);
    const int weight_parts = parts_of_weights(w);
    const unsigned char *unusual_rows = w->packed;
    pack_keys(w, &s);
    pack_values(w, &s, weight_parts);
    for (int row = 0; row < w->rows; row += ATTN_STRIP)
        tile_strip(w, &s, row, w->rows - row < ATTN_STRIP ? w->rows - row : ATTN_STRIP, weight_parts);
    const bool unusual = memchr(s.unusual_k, 1, ATTN_BLOCK) != NULL;
    for (int row = 0; row < w->rows; row++)
        if (unusual_rows[row] || (unusual && sees_unusual_key(w, row, s.unusual_k))) thin_row(w, row);
}

/* The queries in parts, [part][row tile][k tile][16][32]. */
static void tile_begin(const attn_work *w) {
    if (w->way != ATTN_TILE) return;
    const int64_t padded = attn_tile_round(w->dim_qk, 32), part = attn_tile_q_part(w->rows, w->dim_qk);
    const int parts = attn_tile_parts(w->type_q);
    unsigned char *unusual = w->packed;
    uint16_t *to = packed_queries(w);
    attn_tile_scratch s = attn_tile_lay(w->tile, w->dim_qk, w->dim_v, w->type_k, w->type_v);
    for (int row = 0; row < (w->rows + ATTN_STRIP - 1) / ATTN_STRIP * ATTN_STRIP; row++) {
        const bool there = row < w->rows;
        bool odd = split(s.rows, padded, w->q + (there ? row : 0) * w->q_stride, w->type_q, there ? w->dim_qk : 0);
        if (there) unusual[row] = odd;
        for (int n = 0; n < parts; n++)
            for (int64_t d = 0; d < padded; d += 32)
                memcpy(to + n * part + row / 16 * 16 * padded + d * 16 + row % 16 * 32, s.rows + n * padded + d, 32 * sizeof *to);
    }
    tile_configure();
}

static void tile_end(const attn_work *w) {
    if (w->way == ATTN_TILE) tile_release();
}

static void attend_any(const attn_work *w) {
    if (w->way == ATTN_TILE)
        tile_attend(w);
    else
        attend(w);
}
