/* finish.tmpl.h: what becomes of states: folding one into another, and the division at the end. */

/* e^(m - to) for whole vectors of rows; a maximum of -inf weighs 0 */
static inline vec state_weight(vec m, vec to) {
    vec safe = vec_select(vec_eq(to, vec_set1(-INFINITY)), vec_zero(), to);
    return vec_exp(vec_sub(m, safe));
}

static void fold(attn_states into, attn_states from, int rows, int64_t o_stride) {
    for (int r0 = 0; r0 < rows; r0 += LANES) {
        vec m = vec_load(into.m + r0), l = vec_load(into.l + r0), m2 = vec_load(from.m + r0), l2 = vec_load(from.l + r0);
        vec to = vec_max(m2, m), w = state_weight(m, to), w2 = state_weight(m2, to);
        vec_mask empty = vec_eq(l2, vec_zero());
        float weight[LANES], weight2[LANES];
        vec_store(weight, w);
        vec_store(weight2, w2);
        vec_store(into.m + r0, vec_select(empty, m, to));
        vec_store(into.l + r0, vec_select(empty, l, vec_fma(l2, w2, vec_mul(l, w))));
        for (int r = r0; r < rows && r < r0 + LANES; r++) {
            if (from.l[r] == 0.0f) continue;
            float *o = into.o + r * o_stride;
            const float *o2 = from.o + r * o_stride;
            vec a = vec_set1(weight[r - r0]), b = vec_set1(weight2[r - r0]);
            for (int64_t d = 0; d < o_stride; d += LANES) vec_store(o + d, vec_fma(vec_load(o2 + d), b, vec_mul(vec_load(o + d), a)));
        }
    }
}

static void finish(void *out, attn_type type, const float *o, float l, int64_t dim_v) {
    if (type == ATTN_F32)
        store_row_f32_all(out, o, l, dim_v);
    else if (type == ATTN_F16)
        store_row_f16_all(out, o, l, dim_v);
    else
        store_row_bf16_all(out, o, l, dim_v);
}

static void load(float *to, const void *from, attn_type type, int64_t count) {
    if (type == ATTN_F32)
        load_row_f32_all(to, from, count);
    else if (type == ATTN_F16)
        load_row_f16_all(to, from, count);
    else
        load_row_bf16_all(to, from, count);
}

static void turn(float *to, const float *from, int64_t stride, int64_t dim) {
    for (int64_t d = 0; d < dim; d += LANES) {
        const int64_t count = dim - d < LANES ? dim - d : LANES;
        vec t[LANES];
        UNROLL for (int r = 0; r < LANES; r++) t[r] = vec_load(from + r * stride + d);
        vec_transpose(t);
        for (int64_t i = 0; i < count; i++) vec_store(to + (d + i) * 2 * LANES, t[i]);
    }
}

static bool load_mask(float *to, const void *from, attn_type type, int64_t count) {
    if (type == ATTN_BOOL) {
        const unsigned char *p = from;
        if (!memchr(p, 0, (size_t)count)) return false; /* hides nothing: to is not needed then */
        for (int64_t i = 0; i < count; i++) to[i] = p[i] ? 0.0f : -INFINITY;
        return true;
    }
    load(to, from, type, count);
    vec_mask same = vec_eq(vec_zero(), vec_zero());
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) same = vec_and(same, vec_eq(vec_load(to + i), vec_zero()));
    for (; i < count; i++)
        if (to[i] != 0.0f) return true;
    float all[LANES];
    vec_store(all, vec_select(same, vec_zero(), vec_set1(1.0f)));
    return vec_hmax(vec_load(all)) != 0.0f;
}

/* Results that only their time is wanted of: to the compiler they are used. */
static ALWAYS_INLINE void use_up(const vec *x, int count) {
    float sink[LANES];
    vec sum = vec_zero();
    UNROLL for (int i = 0; i < count; i++) sum = vec_add(sum, x[i]);
    vec_store(sink, sum);
    __asm__ volatile("" : : "r"(sink) : "memory");
}

static double fma_rate(int64_t rounds) {
    enum { CHAINS = ACCUMULATORS };
    vec acc[CHAINS], a = vec_set1(0.999999f), b = vec_set1(1e-6f);
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vec_set1((float)i);
    for (int64_t n = 0; n < rounds; n++) UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vec_fma(acc[i], a, b);
    use_up(acc, CHAINS);
    return (double)rounds * CHAINS * LANES * 2.0;
}

static void read(const void *from, size_t bytes) {
    const float *p = from;
    vec sum[4] = { vec_zero(), vec_zero(), vec_zero(), vec_zero() };
    for (size_t i = 0; i + 4 * LANES <= bytes / sizeof(float); i += 4 * LANES)
        UNROLL for (size_t n = 0; n < 4; n++) sum[n] = vec_add(sum[n], vec_load(p + i + n * LANES));
    use_up(sum, 4);
}
