/* vec_math.h: exp and tanh in float32 for whole vectors, once for every ISA. */

/* e^x for x <= 0 (and -inf, giving 0); NaN stays NaN. Results under 2^-126 are 0. x = n log(2) + r with log(2) in two parts, so that r has
 * one rounding whatever x is, and e^r by the polynomial of degree 6 with least relative error that is exact at 0 (2.0e-9). Relative error:
 * 1.5 units of 2^-24. */
static inline vec vec_exp(vec x) {
    x = vec_max(vec_set1(-88.1f), x); /* rounds to n = -127 */
    vec n = vec_round(vec_mul(x, vec_set1(1.44269504088896341f)));
    vec r = vec_fma(n, vec_set1(-0.693359375f), x);
    r = vec_fma(n, vec_set1(2.12194440e-4f), r);
    vec p = vec_set1(1.38436537e-03f);
    p = vec_fma(p, r, vec_set1(8.37415543e-03f));
    p = vec_fma(p, r, vec_set1(4.16680020e-02f));
    p = vec_fma(p, r, vec_set1(1.66664313e-01f));
    p = vec_fma(p, r, vec_set1(4.99999942e-01f));
    p = vec_fma(p, r, vec_set1(1.00000003e+00f));
    p = vec_fma(p, r, vec_set1(1.0f));
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
