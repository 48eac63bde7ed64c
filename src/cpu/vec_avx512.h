/* vec_avx512.h: the vocabulary in AVX-512 F, BW, DQ and VL: sixteen floats to a vector, thirty-two vectors, masks for every edge. */
#include "kernels.h"
#include <immintrin.h>
#include <math.h>
#include <string.h>

#ifndef ISA
#define ISA avx512
#endif
#define THIN_TILES 8   /* the most rows of a thin tile */
#define ROW_TILES 8    /* the most rows of a values tile */
#define VALUES_IN_SETS /* bf16 values too are worth two at a time, in another order */
/* VALUES_MOST: accumulators of values where that keeps rows of V whole, even if some spill. */
enum { LANES = 16, FUSED = 1, SUMS_IN_REGISTERS = 1, WIDE_KEYS = 4, THIN_ROWS = 32, ACCUMULATORS = 16, VALUES_MOST = 32 };
typedef __m512 vec;
typedef __mmask16 vec_mask;
typedef __mmask16 vec_part;

/* Loads x here, once, after those before it: hardware prefetchers follow rising addresses, and compilers shuffle loads. */
#define IN_ORDER(x) __asm__ volatile("" : "+v"(x))

/* Holds x in a register from here on: gcc would load it again for each use. */
#define IN_REGISTER(x) __asm__("" : "+v"(x))

static inline vec vec_set1(float x) { return _mm512_set1_ps(x); }
static inline vec vec_zero(void) { return _mm512_setzero_ps(); }
static inline vec vec_iota(void) { return _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15); }
static inline vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm512_storeu_ps(p, x); }
static inline vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec_mask vec_lt(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
static inline vec_mask vec_eq(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
static inline vec_mask vec_and(vec_mask a, vec_mask b) { return (vec_mask)(a & b); }
static inline vec vec_select(vec_mask mask, vec yes, vec no) { return _mm512_mask_blend_ps(mask, no, yes); }
static inline bool vec_any(vec_mask mask) { return mask != 0; }
/* b where either is NaN */
static inline vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline vec vec_abs(vec x) { return _mm512_abs_ps(x); }
/* the upper 16 bits of each: a bf16 number */
static inline vec vec_high_bits(vec x) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32((int)0xffff0000)));
}
/* 2^n for -126 <= n <= 127, and 0 for n = -127, from a number whose lowest bits are n + 127 */
static inline vec vec_power2(vec x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_castps_si512(x), 23)); }
static inline float vec_hmax(vec x) {
    __m256 y = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_max_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_max_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_max_ss(z, _mm_movehdup_ps(z)));
}
static inline float vec_hsum(vec x) {
    __m256 y = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 z = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    z = _mm_add_ps(z, _mm_movehl_ps(z, z));
    return _mm_cvtss_f32(_mm_add_ss(z, _mm_movehdup_ps(z)));
}
/* Into the second cache. A macro: gcc 12 takes a function that only prefetches for one without effect, and drops its calls. */
#define vec_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

static inline void vec_transpose(vec *t) {
    vec u[16], w[16];
    for (int i = 0; i < 16; i += 2) {
        u[i] = _mm512_unpacklo_ps(t[i], t[i + 1]);
        u[i + 1] = _mm512_unpackhi_ps(t[i], t[i + 1]);
    }
    for (int i = 0; i < 16; i += 4)
        for (int j = 0; j < 2; j++) {
            w[i + 2 * j] = _mm512_shuffle_ps(u[i + j], u[i + 2 + j], 0x44);
            w[i + 2 * j + 1] = _mm512_shuffle_ps(u[i + j], u[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; i++) { /* w[4 * g + i] holds column i of each quarter, for rows 4g .. 4g + 3 */
        vec a = _mm512_shuffle_f32x4(w[i], w[4 + i], 0x88), b = _mm512_shuffle_f32x4(w[8 + i], w[12 + i], 0x88);
        vec c = _mm512_shuffle_f32x4(w[i], w[4 + i], 0xdd), d = _mm512_shuffle_f32x4(w[8 + i], w[12 + i], 0xdd);
        t[i] = _mm512_shuffle_f32x4(a, b, 0x88);
        t[i + 8] = _mm512_shuffle_f32x4(a, b, 0xdd);
        t[i + 4] = _mm512_shuffle_f32x4(c, d, 0x88);
        t[i + 12] = _mm512_shuffle_f32x4(c, d, 0xdd);
    }
}
/* One step of summing the lanes of LANES vectors: a sum of half as many lanes of a and of b each. Steps 4, 1, 2, 8 in turn, among vectors
 * so far apart, leave the sum of vector i in lane i of the first. */
static inline vec vec_fold(vec a, vec b, int step) {
    __m512d x = _mm512_castps_pd(a), y = _mm512_castps_pd(b);
    if (step == 4) return _mm512_add_ps(_mm512_mask_blend_ps(0xff00, a, b), _mm512_castpd_ps(_mm512_shuffle_f64x2(x, y, 0x4e)));
    if (step == 1) return _mm512_add_ps(_mm512_mask_blend_ps(0xcccc, a, b), _mm512_castpd_ps(_mm512_shuffle_pd(x, y, 0x55)));
    if (step == 2) return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
    return _mm512_add_ps(_mm512_shuffle_f32x4(a, b, 0x88), _mm512_shuffle_f32x4(a, b, 0xdd));
}

static inline vec_part vec_part_of(int64_t count) { return (vec_part)(0xffffu >> (16 - count)); } /* the first 1 .. LANES lanes */
static inline vec widen_bf16(__m256i x) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(x), 16)); }
static inline vec vec_load_f32(const float *p) { return _mm512_loadu_ps(p); }
static inline vec vec_load_f32_part(const float *p, vec_part part) { return _mm512_maskz_loadu_ps(part, p); }
static inline vec vec_load_f16(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec vec_load_f16_part(const uint16_t *p, vec_part part) { return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(part, p)); }
static inline vec vec_load_bf16(const uint16_t *p) { return widen_bf16(_mm256_loadu_si256((const __m256i *)p)); }
static inline vec vec_load_bf16_part(const uint16_t *p, vec_part part) { return widen_bf16(_mm256_maskz_loadu_epi16(part, p)); }
/* Sets: what one load brings in. bf16: two vectors, the even and the odd elements, one operation each; count: the elements there are. */
static inline void vec_load_f32_set(vec *to, const float *p) { to[0] = vec_load_f32(p); }
static inline void vec_load_f16_set(vec *to, const uint16_t *p) { to[0] = vec_load_f16(p); }
static inline void split_bf16_pairs(vec *to, __m512i x) {
    to[0] = _mm512_castsi512_ps(_mm512_slli_epi32(x, 16));
    to[1] = _mm512_castsi512_ps(_mm512_and_si512(x, _mm512_set1_epi32((int)0xffff0000)));
}
static inline void vec_load_bf16_set(vec *to, const uint16_t *p) { split_bf16_pairs(to, _mm512_loadu_si512(p)); }
static inline void vec_load_f32_set_part(vec *to, const float *p, int count) { to[0] = vec_load_f32_part(p, vec_part_of(count)); }
static inline void vec_load_f16_set_part(vec *to, const uint16_t *p, int count) { to[0] = vec_load_f16_part(p, vec_part_of(count)); }
static inline void vec_load_bf16_set_part(vec *to, const uint16_t *p, int count) {
    split_bf16_pairs(to, _mm512_maskz_loadu_epi16(0xffffffffu >> (32 - count), p));
}
static inline void vec_store_f32_part(float *p, vec x, vec_part part) { _mm512_mask_storeu_ps(p, part, x); }
static inline void vec_store_f16_part(uint16_t *p, vec x, vec_part part) {
    _mm256_mask_storeu_epi16(p, part, _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
static inline void vec_store_bf16_part(uint16_t *p, vec x, vec_part part) {
    __m512i bits = _mm512_castps_si512(x), high = _mm512_srli_epi32(bits, 16), odd = _mm512_and_si512(high, _mm512_set1_epi32(1));
    __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
    __m512i y = _mm512_mask_or_epi32(rounded, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), high, _mm512_set1_epi32(0x40));
    _mm256_mask_storeu_epi16(p, part, _mm512_cvtepi32_epi16(y));
}

#if defined __AVX512BF16__
#define VEC_DOTS /* has dot products of pairs of bf16 */
/* 32 bits, a pair of bf16 say, in every lane */
static inline vec vec_set1_unit(const uint16_t *p) {
    int32_t unit;
    memcpy(&unit, p, sizeof unit);
    return _mm512_castsi512_ps(_mm512_set1_epi32(unit));
}
/* four pairs of bf16, four times */
static inline vec vec_set1_quarter(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)p)));
}
static inline vec vec_set1_quarter_part(const uint16_t *p, int count) {
    return _mm512_castsi512_ps(_mm512_broadcast_i32x4(_mm_maskz_loadu_epi16((__mmask8)(0xffu >> (8 - count)), p)));
}
/* Pairs of bf16: c + a[2i + 1] b[2i + 1] + a[2i] b[2i], rounded after each; subnormal numbers and results are 0. */
static inline vec vec_dot(vec a, vec b, vec c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
static inline vec vec_round(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
/* x * 2^n for whole n <= 0; 0 for n = -inf, whatever x is */
static inline vec vec_scale2(vec x, vec n) { return _mm512_scalef_ps(x, n); }
static inline bool vec_unusual(__m512i x, uint16_t least, uint16_t limit) {
    __m512i size = _mm512_and_si512(x, _mm512_set1_epi16(0x7fff)), above = _mm512_sub_epi16(size, _mm512_set1_epi16((int16_t)least));
    return _mm512_mask_cmpge_epu16_mask(_mm512_test_epi16_mask(size, size), above, _mm512_set1_epi16((int16_t)(limit - least))) != 0;
}
/* whether any of 32 of bf16 that is not 0 is of a size outside least <= |x| < limit */
static inline bool vec_unusual_bf16(const uint16_t *p, uint16_t least, uint16_t limit) {
    return vec_unusual(_mm512_loadu_si512(p), least, limit);
}
/* Copies `count` <= 32 of bf16 and fills up with zeros to 32; whether any is unusual. */
static inline bool vec_copy_bf16(uint16_t *to, const uint16_t *from, int count, uint16_t least, uint16_t limit) {
    __m512i x = _mm512_maskz_loadu_epi16((__mmask32)((UINT64_C(1) << count) - 1), from);
    _mm512_storeu_si512(to, x);
    return vec_unusual(x, least, limit);
}
/* to[2 i] = even[i], to[2 i + 1] = odd[i], for 16 of each */
static inline void vec_zip_16(uint16_t *to, const uint16_t *even, const uint16_t *odd) {
    __m512i low = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)even));
    __m512i high = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)odd));
    _mm512_storeu_si512(to, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
}
/* two vectors to bf16, nearest even, one behind the other */
static inline void vec_store_bf16_32(uint16_t *p, const vec *x) { _mm512_storeu_si512(p, (__m512i)_mm512_cvtne2ps_pbh(x[1], x[0])); }
#endif
