/* vec_scalar.h: the vocabulary in plain C for any machine: vectors of four floats that the compiler maps to whatever there is. */
#include "kernels.h"
#include "problem.h"
#include <math.h>
#include <string.h>

#ifndef ISA
#define ISA scalar
#endif
#define THIN_TILES 2 /* the most rows of a thin tile */
#define ROW_TILES 4  /* the most rows of a values tile */
/* VALUES_MOST: accumulators of values where that keeps rows of V whole, even if some spill. */
enum { LANES = 4, FUSED = 0, SUMS_IN_REGISTERS = 0, WIDE_KEYS = 4, THIN_ROWS = 2, ACCUMULATORS = 8, VALUES_MOST = 8 };
typedef float vec __attribute__((vector_size(16)));
typedef int32_t vec_mask __attribute__((vector_size(16)));
typedef int vec_part;

/* Loads x here, once, after those before it: hardware prefetchers follow rising addresses, and compilers shuffle loads. */
#define IN_ORDER(x) (void)(x)

/* Holds x in a register from here on: gcc would load it again for each use. */
#define IN_REGISTER(x) (void)(x)

static inline vec vec_set1(float x) { return (vec){ x, x, x, x }; }
static inline vec vec_zero(void) { return vec_set1(0.0f); }
static inline vec vec_iota(void) { return (vec){ 0, 1, 2, 3 }; }
static inline vec vec_load(const float *p) {
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}
static inline void vec_store(float *p, vec x) { memcpy(p, &x, sizeof x); }
static inline vec vec_add(vec a, vec b) { return a + b; }
static inline vec vec_sub(vec a, vec b) { return a - b; }
static inline vec vec_mul(vec a, vec b) { return a * b; }
static inline vec vec_div(vec a, vec b) { return a / b; }
static inline vec vec_fma(vec a, vec b, vec c) { return a * b + c; }
static inline vec_mask vec_lt(vec a, vec b) { return a < b; }
static inline vec_mask vec_eq(vec a, vec b) { return a == b; }
static inline vec_mask vec_and(vec_mask a, vec_mask b) { return a & b; }
static inline vec vec_select(vec_mask mask, vec yes, vec no) { return (vec)((mask & (vec_mask)yes) | (~mask & (vec_mask)no)); }
static inline bool vec_any(vec_mask mask) { return (mask[0] | mask[1] | mask[2] | mask[3]) != 0; }
/* b where either is NaN */
static inline vec vec_max(vec a, vec b) { return vec_select(a > b, a, b); }
static inline vec vec_abs(vec x) { return (vec)((vec_mask)x & 0x7fffffff); }
/* 2^n for -126 <= n <= 127, and 0 for n = -127, from a number whose lowest bits are n + 127 */
static inline vec vec_power2(vec x) { return (vec)((vec_mask)x << 23); }
static inline float vec_hmax(vec x) {
    float a = x[0] > x[2] ? x[0] : x[2], b = x[1] > x[3] ? x[1] : x[3];
    return a > b ? a : b;
}
static inline float vec_hsum(vec x) { return (x[0] + x[2]) + (x[1] + x[3]); }
/* Into the second cache. A macro: gcc 12 takes a function that only prefetches for one without effect, and drops its calls. */
#define vec_prefetch(p) __builtin_prefetch(p, 0, 2)

static inline void vec_transpose(vec *t) {
    vec u[4] = { t[0], t[1], t[2], t[3] };
    for (int i = 0; i < 4; i++) t[i] = (vec){ u[0][i], u[1][i], u[2][i], u[3][i] };
}
/* One step of summing the lanes of LANES vectors: a sum of half as many lanes of a and of b each. Steps 1, 2 in turn, among vectors so far
 * apart, leave the sum of vector i in lane i of the first. */
static inline vec vec_fold(vec a, vec b, int step) {
    if (step == 1) return (vec){ a[0], a[1], b[2], b[3] } + (vec){ a[2], a[3], b[0], b[1] };
    return (vec){ a[0], a[2], b[0], b[2] } + (vec){ a[1], a[3], b[1], b[3] };
}

static inline vec_part vec_part_of(int64_t count) { return (int)count; } /* the first 1 .. LANES lanes */
static inline vec vec_load_f32(const float *p) { return vec_load(p); }
static inline vec vec_load_f32_part(const float *p, vec_part part) {
    vec x = vec_zero();
    memcpy(&x, p, (size_t)part * sizeof(float));
    return x;
}
static inline vec vec_load_f16_part(const uint16_t *p, vec_part part) {
    vec x = vec_zero();
    for (int i = 0; i < part; i++) x[i] = attn_f16_to_f32(p[i]);
    return x;
}
static inline vec vec_load_f16(const uint16_t *p) { return vec_load_f16_part(p, LANES); }
static inline vec vec_load_bf16_part(const uint16_t *p, vec_part part) {
    vec x = vec_zero();
    for (int i = 0; i < part; i++) x[i] = attn_bf16_to_f32(p[i]);
    return x;
}
static inline vec vec_load_bf16(const uint16_t *p) { return (vec)((vec_mask){ p[0], p[1], p[2], p[3] } << 16); }
/* Sets: what one load brings in. bf16: two vectors, the even and the odd elements; count: the elements there are. */
static inline void vec_load_f32_set(vec *to, const float *p) { to[0] = vec_load_f32(p); }
static inline void vec_load_f16_set(vec *to, const uint16_t *p) { to[0] = vec_load_f16(p); }
static inline void vec_load_bf16_set(vec *to, const uint16_t *p) {
    to[0] = (vec)((vec_mask){ p[0], p[2], p[4], p[6] } << 16);
    to[1] = (vec)((vec_mask){ p[1], p[3], p[5], p[7] } << 16);
}
static inline void vec_load_f32_set_part(vec *to, const float *p, int count) { to[0] = vec_load_f32_part(p, count); }
static inline void vec_load_f16_set_part(vec *to, const uint16_t *p, int count) { to[0] = vec_load_f16_part(p, count); }
static inline void vec_load_bf16_set_part(vec *to, const uint16_t *p, int count) {
    uint16_t whole[2 * LANES] = { 0 };
    memcpy(whole, p, (size_t)count * sizeof *p);
    vec_load_bf16_set(to, whole);
}
static inline void vec_store_f32_part(float *p, vec x, vec_part part) { memcpy(p, &x, (size_t)part * sizeof(float)); }
static inline void vec_store_f16_part(uint16_t *p, vec x, vec_part part) {
    for (int i = 0; i < part; i++) p[i] = attn_f32_to_f16(x[i]);
}
static inline void vec_store_bf16_part(uint16_t *p, vec x, vec_part part) {
    for (int i = 0; i < part; i++) p[i] = attn_f32_to_bf16(x[i]);
}
