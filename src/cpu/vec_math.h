/* vec_math.h: exp and a part of tanh in float32 for whole vectors, once for every ISA. */

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
