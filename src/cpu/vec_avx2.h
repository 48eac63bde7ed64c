/* vec_avx2.h: the vocabulary in AVX2, FMA and F16C: eight floats to a vector, sixteen vectors. */
#include "kernels.h"
#include <immintrin.h>
#include <math.h>
#include <string.h>

#define ISA avx2
#define THIN_TILES 4 /* the most rows of a thin tile */
#define ROW_TILES 4  /* the most rows of a values tile */
/* VALUES_MOST: accumulators of values where that keeps rows of V whole, even if some spill. */
enum { LANES = 8, FUSED = 1, SUMS_IN_REGISTERS = 0, WIDE_KEYS = 4, THIN_ROWS = 32, ACCUMULATORS = 12, VALUES_MOST = 12 };
typedef __m256 vec;
typedef __m256 vec_mask;
typedef int vec_part;

/* Loads x here, once, after those before it: hardware prefetchers follow rising addresses, and compilers shuffle loads. */
#define IN_ORDER(x) __asm__ volatile("" : "+x"(x))

/* Holds x in a register from here on: gcc would load it again for each use. */
#define IN_REGISTER(x) __asm__("" : "+x"(x))

static inline vec vec_set1(float x) { return _mm256_set1_ps(x); }
static inline vec vec_zero(void) { return _mm256_setzero_ps(); }
static inline vec vec_iota(void) { return _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7); }
static inline vec vec_load(const float *p) { return _mm256_loadu_ps(p); }
static inline void vec_store(float *p, vec x) { _mm256_storeu_ps(p, x); }
static inline vec vec_add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec vec_sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec vec_mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec vec_div(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec_mask vec_lt(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_LT_OQ); }
static inline vec_mask vec_eq(vec a, vec b) { return _mm256_cmp_ps(a, b, _CMP_EQ_OQ); }
static inline vec_mask vec_and(vec_mask a, vec_mask b) { return _mm256_and_ps(a, b); }
static inline vec vec_select(vec_mask mask, vec yes, vec no) { return _mm256_blendv_ps(no, yes, mask); }
static inline bool vec_any(vec_mask mask) { return _mm256_movemask_ps(mask) != 0; }
/* b where either is NaN */
static inline vec vec_max(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline vec vec_abs(vec x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
/* 2^n for -126 <= n <= 127, and 0 for n = -127, from a number whose lowest bits are n + 127 */
static inline vec vec_power2(vec x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_castps_si256(x), 23)); }
static inline float vec_hmax(vec x) {
    __m128 y = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_max_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_max_ss(y, _mm_movehdup_ps(y)));
}
static inline float vec_hsum(vec x) {
    __m128 y = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    y = _mm_add_ps(y, _mm_movehl_ps(y, y));
    return _mm_cvtss_f32(_mm_add_ss(y, _mm_movehdup_ps(y)));
}
/* Into the second cache. A macro: gcc 12 takes a function that only prefetches for one without effect, and drops its calls. */
#define vec_prefetch(p) _mm_prefetch((const char *)(p), _MM_HINT_T1)

static inline void vec_transpose(vec *t) {
    vec u[8], w[8];
    for (int i = 0; i < 8; i += 2) {
        u[i] = _mm256_unpacklo_ps(t[i], t[i + 1]);
        u[i + 1] = _mm256_unpackhi_ps(t[i], t[i + 1]);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = 0; j < 2; j++) {
            w[i + 2 * j] = _mm256_shuffle_ps(u[i + j], u[i + 2 + j], 0x44);
            w[i + 2 * j + 1] = _mm256_shuffle_ps(u[i + j], u[i + 2 + j], 0xee);
        }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2f128_ps(w[i], w[i + 4], 0x20);
        t[i + 4] = _mm256_permute2f128_ps(w[i], w[i + 4], 0x31);
    }
}
/* One step of summing the lanes of LANES vectors: a sum of half as many lanes of a and of b each. Steps 4, 1, 2 in turn, among vectors so
 * far apart, leave the sum of vector i in lane i of the first. */
static inline vec vec_fold(vec a, vec b, int step) {
    __m256d x = _mm256_castps_pd(a), y = _mm256_castps_pd(b);
    if (step == 4) return _mm256_add_ps(_mm256_blend_ps(a, b, 0xf0), _mm256_permute2f128_ps(a, b, 0x21));
    if (step == 1) return _mm256_add_ps(_mm256_blend_ps(a, b, 0xcc), _mm256_castpd_ps(_mm256_shuffle_pd(x, y, 0x5)));
    return _mm256_add_ps(_mm256_shuffle_ps(a, b, 0x88), _mm256_shuffle_ps(a, b, 0xdd));
}

static inline vec_part vec_part_of(int64_t count) { return (int)count; } /* the first 1 .. LANES lanes */
static inline __m256i part_mask(vec_part part) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(part), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
static inline __m128i load_16bit(const uint16_t *p, vec_part part) {
    uint16_t whole[8] = { 0 };
    if (part == LANES) return _mm_loadu_si128((const __m128i *)p);
    memcpy(whole, p, (size_t)part * 2);
    return _mm_loadu_si128((const __m128i *)whole);
}
static inline void store_16bit(uint16_t *p, __m128i x, vec_part part) {
    uint16_t whole[8];
    if (part == LANES) {
        _mm_storeu_si128((__m128i *)p, x);
        return;
    }
    _mm_storeu_si128((__m128i *)whole, x);
    memcpy(p, whole, (size_t)part * 2);
}
static inline vec widen_bf16(__m128i x) { return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(x), 16)); }
static inline vec vec_load_f32(const float *p) { return _mm256_loadu_ps(p); }
static inline vec vec_load_f32_part(const float *p, vec_part part) {
    return part == LANES ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, part_mask(part));
}
static inline vec vec_load_f16(const uint16_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
static inline vec vec_load_f16_part(const uint16_t *p, vec_part part) { return _mm256_cvtph_ps(load_16bit(p, part)); }
static inline vec vec_load_bf16(const uint16_t *p) { return widen_bf16(_mm_loadu_si128((const __m128i *)p)); }
static inline vec vec_load_bf16_part(const uint16_t *p, vec_part part) { return widen_bf16(load_16bit(p, part)); }
/* Sets: what one load brings in. bf16: two vectors, the even and the odd elements, one operation each; count: the elements there are. */
static inline void vec_load_f32_set(vec *to, const float *p) { to[0] = vec_load_f32(p); }
static inline void vec_load_f16_set(vec *to, const uint16_t *p) { to[0] = vec_load_f16(p); }
static inline void vec_load_bf16_set(vec *to, const uint16_t *p) {
    __m256i x = _mm256_loadu_si256((const __m256i *)p);
    to[0] = _mm256_castsi256_ps(_mm256_slli_epi32(x, 16));
    to[1] = _mm256_castsi256_ps(_mm256_and_si256(x, _mm256_set1_epi32((int)0xffff0000)));
}
static inline void vec_load_f32_set_part(vec *to, const float *p, int count) { to[0] = vec_load_f32_part(p, count); }
static inline void vec_load_f16_set_part(vec *to, const uint16_t *p, int count) { to[0] = vec_load_f16_part(p, count); }
static inline void vec_load_bf16_set_part(vec *to, const uint16_t *p, int count) {
    uint16_t whole[16] = { 0 };
    if (count == 16) {
        vec_load_bf16_set(to, p);
        return;
    }
    memcpy(whole, p, (size_t)count * 2);
    vec_load_bf16_set(to, whole);
}
static inline void vec_store_f32_part(float *p, vec x, vec_part part) { /* a masked store takes some twenty times as long */
    if (part == LANES)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, part_mask(part), x);
}
static inline void vec_store_f16_part(uint16_t *p, vec x, vec_part part) {
    store_16bit(p, _mm256_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), part);
}
static inline void vec_store_bf16_part(uint16_t *p, vec x, vec_part part) {
    __m256i bits = _mm256_castps_si256(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_srli_epi32(_mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
    __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    __m256i y = _mm256_blendv_epi8(rounded, quiet, nan);
    store_16bit(p, _mm_packus_epi32(_mm256_castsi256_si128(y), _mm256_extracti128_si256(y, 1)), part);
}
