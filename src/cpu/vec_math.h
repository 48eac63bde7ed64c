/* vec_math.h: exp and a part of tanh in float32 for whole vectors, once for every ISA. */

/* e^x for x <= 0 (and -inf, giving 0), for `count` vectors side by side: one alone would wait for its own results. NaN stays NaN. Results
 * under 2^-126 are 0. x = n log(2) + r, where r has one rounding whatever x is: log(2) in two parts where products round, else rounded,
 * which is off by 0.05 |x| units of 2^-24 and never by more than 0.02 units of e^0. e^r by the polynomial of degree 6 with least relative
 * error that is exact at 0 (2.0e-9). Relative error: 1.5 + 0.05 |x| units of 2^-24. Adding a large number rounds to n, and leaves n + 127,
 * the exponent of 2^n, in the lowest bits. */
static ALWAYS_INLINE void vec_exps(vec *x, int count) {
    const vec large = vec_set1(12582912.0f + 127.0f);
    vec t[8], n[8], r[8], p[8];
#define EACH UNROLL for (int i = 0; i < count; i++)
    EACH x[i] = vec_max(vec_set1(-88.1f), x[i]); /* rounds to n = -127 */
    EACH t[i] = vec_fma(x[i], vec_set1(1.44269504088896341f), large);
    EACH n[i] = vec_sub(t[i], large);
    if (FUSED)
        EACH r[i] = vec_fma(n[i], vec_set1(-0.693147182f), x[i]);
    else {
        EACH r[i] = vec_fma(n[i], vec_set1(-0.693359375f), x[i]);
        EACH r[i] = vec_fma(n[i], vec_set1(2.12194440e-4f), r[i]);
    }
    EACH p[i] = vec_fma(r[i], vec_set1(1.38436537e-03f), vec_set1(8.37415543e-03f));
    EACH p[i] = vec_fma(p[i], r[i], vec_set1(4.16680020e-02f));
    EACH p[i] = vec_fma(p[i], r[i], vec_set1(1.66664313e-01f));
    EACH p[i] = vec_fma(p[i], r[i], vec_set1(4.99999942e-01f));
    EACH p[i] = vec_fma(p[i], r[i], vec_set1(1.00000003e+00f));
    EACH p[i] = vec_fma(p[i], r[i], vec_set1(1.0f));
    EACH x[i] = vec_mul(p[i], vec_power2(t[i]));
#undef EACH
}

static inline vec vec_exp(vec x) {
    vec_exps(&x, 1);
    return x;
}

/* (tanh(r) / r - 1) / r^2 for 0 <= r <= 1, from z = r^2: the polynomial of degree 6 whose error in tanh(r) / r is least (5e-9) */
static inline vec vec_tanh_rest(vec z) {
    vec p = vec_set1(-3.58451535e-04f);
    p = vec_fma(p, z, vec_set1(2.30136303e-03f));
    p = vec_fma(p, z, vec_set1(-7.94610438e-03f));
    p = vec_fma(p, z, vec_set1(2.14866562e-02f));
    p = vec_fma(p, z, vec_set1(-5.38798023e-02f));
    p = vec_fma(p, z, vec_set1(1.33323446e-01f));
    return vec_fma(p, z, vec_set1(-3.33332954e-01f));
}
