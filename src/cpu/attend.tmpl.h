/* attend.tmpl.h: one row block against one block of keys: scores, visibility, softmax against the block's own maximum, values. */
/* c tanh(x / c), without a rounded tanh in between: its error would be in proportion to x. Up to |x| = c x + x z P(z) with z = (x / c)^2,
 * elsewhere c - 2 c e / (1 + e) with e = exp(-2 |x| / c). */
static inline vec cap(vec x, float softcap) {
    vec c = vec_set1(softcap), r = vec_div(vec_abs(x), c), z = vec_mul(r, r);
    vec near = vec_fma(x, vec_mul(z, vec_tanh_rest(z)), x);
    vec e = vec_exp(vec_mul(r, vec_set1(-2.0f)));
    vec far = vec_fma(vec_set1(-2.0f * softcap), vec_div(e, vec_add(vec_set1(1.0f), e)), c);
    far = vec_select(vec_lt(x, vec_zero()), vec_sub(vec_zero(), far), far);
    return vec_select(vec_lt(r, vec_set1(1.0f)), near, far);
}

/* -inf where key j (a whole number, or one for each lane) is outside lo .. hi - 1 */
static inline vec band(vec x, vec j, vec lo, vec hi) {
    vec_mask inside = vec_and(vec_lt(vec_sub(lo, vec_set1(0.5f)), j), vec_lt(j, hi));
    return vec_select(inside, x, vec_set1(-INFINITY));
}

/* A score from its product: scale, softcap, slope times distance, mask; one rounding for the scale and all that is added. A mask of -inf
 * hides whatever the product is, NaN too. */
static inline vec biased(const attn_work *w, vec product, vec distance, vec slope, vec bias) {
    vec scale = vec_set1(w->scale), add = vec_sub(bias, vec_mul(slope, vec_abs(distance)));
    vec x = w->softcap > 0.0f ? vec_add(cap(vec_mul(product, scale), w->softcap), add) : vec_fma(product, scale, add);
    return vec_select(vec_eq(bias, vec_set1(-INFINITY)), bias, x);
}

static inline vec not_empty(vec top) { return vec_select(vec_eq(top, vec_set1(-INFINITY)), vec_zero(), top); }

/* the keys j .. that end with this one's run */
static inline int run_of(const attn_work *w, int j) {
    int end = (j / ATTN_RUN + 1) * ATTN_RUN;
    return (end < w->end ? end : w->end) - j;
}

static void add_values(const attn_work *w, attn_type type, int rows, float *o, const float *p, int64_t p_row, int64_t p_key, const void *v,
                       int64_t v_row, int first, int keys, int64_t ahead) {
    if (type == ATTN_F32)
        values_f32_all(rows, o, w->o_stride, p, p_row, p_key, v, v_row, first, keys, w->dim_v, ahead);
    else if (type == ATTN_F16)
        values_f16_all(rows, o, w->o_stride, p, p_row, p_key, v, v_row, first, keys, w->dim_v, ahead);
    else
        values_bf16_all(rows, o, w->o_stride, p, p_row, p_key, v, v_row, first, keys, w->dim_v, ahead);
}

/* Rows of keys as a kernel reads them: in place, or a run of them as float32 in the scratch, with zeros for rows that must not be read. */
typedef struct key_rows {
    const char *at;
    int64_t row;
    attn_type type;
} key_rows;

static inline bool hidden(const attn_work *w, int row, int j) {
    return j < w->lo[row] || j >= w->hi[row] || (w->bias && w->bias[row][j] == -INFINITY);
}

/* `row` < 0: what every row may read; else what that row sees */
static key_rows staged(const attn_work *w, const char *from, int64_t from_row, attn_type type, int64_t dim, int j, int count, int row) {
    const int64_t stride = (dim + ATTN_LANES_MAX - 1) / ATTN_LANES_MAX * ATTN_LANES_MAX;
    for (int i = 0; i < count; i++) {
        float *to = w->convert + i * stride;
        if ((w->seen && !w->seen[j + i]) || (row >= 0 && hidden(w, row, j + i)))
            memset(to, 0, (size_t)stride * sizeof(float));
        else
            load(to, from + (j + i) * from_row, type, dim);
    }
    return (key_rows){ (const char *)w->convert, stride * (int64_t)sizeof(float), ATTN_F32 };
}

/* The same in their own type: a sum of products has one order, whether some key of the run is hidden from all or not. */
static key_rows staged_as_is(const attn_work *w, const char *from, int64_t from_row, attn_type type, int64_t dim, int j, int count) {
    const int64_t size = type == ATTN_F32 ? 4 : 2, stride = dim * size;
    char *to = (char *)w->convert;
    for (int i = 0; i < count; i++)
        if (w->seen[j + i])
            memcpy(to + i * stride, from + (j + i) * from_row, (size_t)stride);
        else
            memset(to + i * stride, 0, (size_t)stride);
    return (key_rows){ to, stride, type };
}

static key_rows rows_of(const attn_work *w, const char *from, int64_t row, attn_type type, int64_t dim, int j, int count) {
    if (w->way != ATTN_WIDE && w->seen) return staged_as_is(w, from, row, type, dim, j, count);
    if (w->seen || (w->way == ATTN_WIDE && type != ATTN_F32)) return staged(w, from, row, type, dim, j, count, -1);
    return (key_rows){ from + j * row, row, type };
}

static key_rows keys_of(const attn_work *w, int j, int count) { return rows_of(w, w->k, w->k_row, w->type_k, w->dim_qk, j, count); }
static key_rows values_of(const attn_work *w, int j, int count) { return rows_of(w, w->v, w->v_row, w->type_v, w->dim_v, j, count); }

/* Hidden keys weigh 0, but 0 * NaN and 0 * Inf are NaN: a row that came out other than finite is done again with zeros in place of every
 * value hidden from it. That changes no bit of a finite result, so what is hidden never shows. Weights are there for the keys first to
 * end - 1 only, of which the row's tile computed scores. */
static void mend_row(const attn_work *w, int row, int first, int end, const float *p, int64_t p_key) {
    float *o = w->state.o + row * w->o_stride;
    vec bad = vec_zero();
    for (int64_t d = 0; d < w->o_stride; d += LANES) bad = vec_add(bad, vec_sub(vec_load(o + d), vec_load(o + d))); /* 0, or NaN */
    if (vec_hsum(bad) == 0.0f) return;
    memset(o, 0, (size_t)w->o_stride * sizeof(float));
    for (int j = w->first, n; j < w->end; j += n) {
        n = run_of(w, j);
        int from = j > first ? j : first, to = j + n < end ? j + n : end;
        if (from >= to) continue;
        key_rows v = staged(w, w->v, w->v_row, w->type_v, w->dim_v, from, to - from, row);
        add_values(w, v.type, 1, o, p + from * p_key, 0, p_key, v.at, v.row, from, to - from, 0);
    }
}

/* Scores as they are but for a scale that keeps their order: the walk below is not needed, and the largest product is the product of the
 * largest. */
static inline bool plain(const attn_work *w) { return !w->bias && !w->slopes && !(w->softcap > 0.0f) && w->scale > 0.0f; }

/* scale, softcap, slopes and mask on a row's scores */
static void thin_bias(const attn_work *w, int row, float *s) {
    const float *bias = w->bias ? w->bias[row] : NULL;
    vec slope = vec_set1(w->slopes ? w->slopes[row] : 0.0f), diagonal = vec_set1(w->slopes ? w->diagonal[row] : 0.0f);
    for (int j = w->first / LANES * LANES; j < w->end; j += LANES) {
        vec distance = vec_sub(diagonal, vec_add(vec_iota(), vec_set1((float)j)));
        vec_store(s + j, biased(w, vec_load(s + j), distance, slope, bias ? vec_load(bias + j) : vec_zero()));
    }
}

/* Scale, softcap, slopes, mask, lengths and band on a row's scores, from the group of keys that holds w->first to the one that holds
 * w->end - 1; the largest. Groups may hold keys that a mask hides from all: no scores of theirs. */
static inline float row_scores(const attn_work *w, int row, float *s, int group) {
    const int lo = w->lo[row] > w->first ? w->lo[row] : w->first, hi = w->hi[row] < w->end ? w->hi[row] : w->end;
    vec top = vec_set1(-INFINITY);
    if (!plain(w)) thin_bias(w, row, s);
    for (int j = w->first / group * group; j < w->end || j % group; j += LANES) {
        vec x = vec_load(s + j);
        if (j < lo || j + LANES > hi) {
            x = band(x, vec_add(vec_iota(), vec_set1((float)j)), vec_set1((float)lo), vec_set1((float)hi));
            vec_store(s + j, x);
        }
        top = vec_max(x, top);
    }
    return vec_hmax(top) * (plain(w) ? w->scale : 1.0f);
}

/* The shift by the maximum is added to the exact product with the scale: one rounding. But the maximum is a rounded product, and from here
 * on what it lost in rounding is itself a score of some size: products are then rounded like the maximum, first. */
#define LARGE 0x1p20f

static void thin_softmax(const attn_work *w, int row) {
    float *s = w->scores + row * ATTN_SCORES_LD;
    const float scale = plain(w) ? w->scale : 1.0f, m = row_scores(w, row, s, LANES);
    vec sum = vec_zero();
    const bool large = fabsf(m) > LARGE;
    vec first = vec_set1(large ? scale : 1.0f), then = vec_set1(large ? 1.0f : scale), shift = vec_sub(vec_zero(), not_empty(vec_set1(m)));
    for (int j = w->first / LANES * LANES; j < w->end;) {
        vec chain = vec_zero();
        do {
            vec p = vec_exp(vec_fma(vec_mul(vec_load(s + j), first), then, shift));
            chain = vec_add(chain, p);
            vec_store(s + j, p);
            j += LANES;
        } while (j < w->end && j % (CHAIN * LANES));
        sum = vec_add(sum, chain);
    }
    w->state.m[row] = m;
    w->state.l[row] = vec_hsum(sum);
}

static void thin_scores(const attn_work *w, const float *q, key_rows k, int first, int end) {
    if (k.type == ATTN_F32)
        thin_scores_f32_all(w, q, k.at, k.row, first, end);
    else if (k.type == ATTN_F16)
        thin_scores_f16_all(w, q, k.at, k.row, first, end);
    else
        thin_scores_bf16_all(w, q, k.at, k.row, first, end);
}

/* Rows of floats with the even and the odd elements of every set apart, as vec_load_bf16_set brings them in; and back. */
static void split_pairs(float *to, const float *from, int64_t count) {
    for (int64_t i = 0; i < count; i += 2 * LANES)
        for (int n = 0; n < LANES; n++) {
            to[i + n] = from[i + 2 * n];
            to[i + LANES + n] = from[i + 2 * n + 1];
        }
}
#ifdef VALUES_IN_SETS
static void join_pairs(float *row, int64_t count) {
    for (int64_t i = 0; i < count; i += 2 * LANES) {
        float set[2 * LANES];
        memcpy(set, row + i, sizeof set);
        for (int n = 0; n < LANES; n++) {
            row[i + 2 * n] = set[n];
            row[i + 2 * n + 1] = set[LANES + n];
        }
    }
}
#endif

/* The queries as keys of w's type are brought in: in the half of the scratch that staged 16-bit keys leave. */
static const float *thin_queries(const attn_work *w) {
    if (w->type_k != ATTN_BF16) return w->q;
    float *to = w->convert + ATTN_RUN / 2 * w->q_stride;
    split_pairs(to, w->q, w->rows * w->q_stride);
    return to;
}

/* all scores, by float32 multiply-adds */
static void thin_products(const attn_work *w) {
    const float *q = thin_queries(w);
    for (int j = w->first, n; j < w->end; j += n) {
        n = w->seen || w->rows > THIN_TILES ? run_of(w, j) : w->end - j; /* keys that several tiles of rows read stay near */
        key_rows k = keys_of(w, j, n);
        k.at -= j * k.row;
        thin_scores(w, q, k, j, j + n);
    }
}

#ifdef VEC_DOTS
/* The same by dot products of pairs, but for rows that these do not suit. */
static void thin_pairs(const attn_work *w) {
    uint16_t *q = (uint16_t *)(void *)(w->convert + ATTN_RUN / 2 * w->q_stride);
    uint64_t unusual = pair_queries(w, q);
    for (int j = w->first, n; j < w->end; j += n) {
        n = w->seen ? run_of(w, j) : w->end - j;
        key_rows k = keys_of(w, j, n);
        pair_scores(w, q, k.at - j * k.row, k.row, j, j + n);
    }
    for (int row = 0; unusual; row++, unusual >>= 1)
        if (unusual & 1) {
            attn_work one = *w;
            one.rows = 1;
            one.q += row * w->q_stride;
            one.scores += row * ATTN_SCORES_LD;
            thin_products(&one);
        }
}
#endif

static void thin_attend(const attn_work *w) {
#ifdef VEC_DOTS
    if (pairs_suit(w))
        thin_pairs(w);
    else
#endif
        thin_products(w);
    for (int row = 0; row < w->rows; row++) thin_softmax(w, row);
    for (int j = w->first, n; j < w->end; j += n) {
        n = run_of(w, j);
        key_rows v = values_of(w, j, n);
        add_values(w, v.type, w->rows, w->state.o, w->scores + j, ATTN_SCORES_LD, 1, v.at, v.row, j, n, w->seen ? 0 : w->v_ahead);
    }
#ifdef VALUES_IN_SETS
    if (w->type_v == ATTN_BF16)
        for (int row = 0; row < w->rows; row++) join_pairs(w->state.o + row * w->o_stride, w->o_stride);
#endif
    if (w->mixed)
        for (int row = 0; row < w->rows; row++) mend_row(w, row, w->first, w->end, w->scores + row * ATTN_SCORES_LD, 1);
}

#include "wide.tmpl.h"

static void attend(const attn_work *w) {
    memset(w->state.o, 0, (size_t)(w->rows * w->o_stride) * sizeof(float));
    if (w->way == ATTN_WIDE)
        wide_attend(w);
    else
        thin_attend(w);
}
