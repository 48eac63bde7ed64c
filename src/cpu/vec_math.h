/* vec_math.h: exp and tanh in float32 for whole vectors, once for every ISA. */

/* e^x for x <= 0 (and -inf, giving 0); NaN stays NaN. Results under 2^-126 are 0. x = n + t in units of log 2, |t| <= 1/2, and 2^t by the
 * polynomial of degree 6 with least relative error that is exact at 0 (2.0e-9). Relative error: 1.4 units of 2^-24 plus 0.7 |x| of them from
 * the product with log2(e), which is in proportion to the scores' own rounding. */
static inline vec vec_exp(vec x) {
    vec y = vec_max(vec_set1(-127.0f), vec_mul(x, vec_set1(1.44269504088896341f)));
    vec n = vec_round(y), t = vec_sub(y, n);
    vec p = vec_set1(1.53533621e-4f);
    p = vec_fma(p, t, vec_set1(1.33988746e-3f));
    p = vec_fma(p, t, vec_set1(9.61843736e-3f));
    p = vec_fma(p, t, vec_set1(5.55033247e-2f));
    p = vec_fma(p, t, vec_set1(2.40226479e-1f));
    p = vec_fma(p, t, vec_set1(6.93147203e-1f));
    p = vec_fma(p, t, vec_set1(1.0f));
    return vec_scale2(p, n);
}

/* tanh for any x. Near 0 the Taylor polynomial in x^2 (remainder under 3e-9 at 0.3), elsewhere (1 - e^-2|x|) / (1 + e^-2|x|). Relative
 * error under 3 units of 2^-24. */
static inline vec vec_tanh(vec x) {
    vec a = vec_abs(x), e = vec_exp(vec_mul(a, vec_set1(-2.0f)));
    vec far = vec_div(vec_sub(vec_set1(1.0f), e), vec_add(vec_set1(1.0f), e));
    vec z = vec_mul(a, a), p = vec_set1(-8.86323553e-3f);
    p = vec_fma(p, z, vec_set1(2.18694885e-2f));
    p = vec_fma(p, z, vec_set1(-5.39682540e-2f));
    p = vec_fma(p, z, vec_set1(1.33333333e-1f));
    p = vec_fma(p, z, vec_set1(-3.33333333e-1f));
    vec near = vec_fma(vec_mul(p, z), a, a);
    vec y = vec_select(vec_lt(a, vec_set1(0.3f)), near, far);
    return vec_select(vec_lt(x, vec_zero()), vec_sub(vec_zero(), y), y);
}
