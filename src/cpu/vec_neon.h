/* vec_neon.h: the vocabulary in Advanced SIMD of 64-bit ARM, nothing but its base, and, where the compiler has them (FEAT_BF16), with dot
 * products of bf16. f16 is only ever converted; no arithmetic is in half precision.
 *
 * A vector here is two registers, eight floats. With four a thin tile would be four sums, and a row would wait for one chain of
 * multiply-adds at a time. Eight give every tile the shape that it has on AVX2, in thirty-two registers as there in sixteen, and take
 * up to 40 % fewer instructions (decode of 16-bit keys).
 *
 * The numbers. A multiply-add takes 4 cycles and there are 2 to 4 a cycle: 16 registers of sums must be under way, and 16 are left for
 * operands. Thin: 4 rows times 2 keys, 12 loads to 16 multiply-adds. Wide: WIDE_KEYS 4 times 2 vectors of rows, 8 loads. Values: 4 rows
 * times 2 vectors, 8 loads; 3 vectors save nothing, for gcc then spills. An element of a key or a weight is loaded as one float and
 * multiplied by element (fmla v, v, v.s[0]): ld1r takes one of the pipes that multiply. THIN_ROWS: at 12 rows either way takes 2.9 to 3.0
 * instructions for four multiply-adds, softmax and values included; at 16 the thin way stays there, and the wide way, with whole tiles,
 * needs 2.6. */
#include "kernels.h"
#include <arm_neon.h>
#include <math.h>
#include <string.h>

#ifndef ISA
#define ISA neon
#endif
#define THIN_TILES 4                                                 /* the most rows of a thin tile */
#define ROW_TILES 4                                                  /* the most rows of a values tile */
enum { LANES = 8, WIDE_KEYS = 4, THIN_ROWS = 12, ACCUMULATORS = 8 }; /* WIDE_KEYS: keys of a wide tile */
enum { VALUES_MOST = 8 };                                            /* accumulators of values where that keeps rows of V whole */
enum { FUSED = 1 };                                                  /* vec_fma rounds once */
enum { SUMS_IN_REGISTERS = 0 }; /* sums of chains beside the chains: 16 registers more, which gcc would spill */
typedef struct vec {
    float32x4_t low, high;
} vec;
typedef struct vec_mask {
    uint32x4_t low, high;
} vec_mask;
typedef int vec_part;

#define BOTH1(op, x)                                                                                                                       \
    { op((x).low), op((x).high) }
#define BOTH2(op, x, y)                                                                                                                    \
    { op((x).low, (y).low), op((x).high, (y).high) }
#define BOTH3(op, x, y, z)                                                                                                                 \
    { op((x).low, (y).low, (z).low), op((x).high, (y).high, (z).high) }

/* Loads x here, once, after those before it: hardware prefetchers follow rising addresses, and compilers shuffle loads. */
#define IN_ORDER(x) __asm__ volatile("" : "+w"((x).low), "+w"((x).high))

/* Nothing to hold: operands are registers here, and a vector of one float would no longer be multiplied by element. */
#define IN_REGISTER(x) (void)(x)

static inline vec vec_set1(float x) { return (vec){ vdupq_n_f32(x), vdupq_n_f32(x) }; }
static inline vec vec_zero(void) { return vec_set1(0.0f); }
static inline vec vec_iota(void) { return (vec){ { 0, 1, 2, 3 }, { 4, 5, 6, 7 } }; }
static inline vec vec_load(const float *p) { return (vec){ vld1q_f32(p), vld1q_f32(p + 4) }; }
static inline void vec_store(float *p, vec x) {
    vst1q_f32(p, x.low);
    vst1q_f32(p + 4, x.high);
}
static inline vec vec_add(vec a, vec b) { return (vec)BOTH2(vaddq_f32, a, b); }
static inline vec vec_sub(vec a, vec b) { return (vec)BOTH2(vsubq_f32, a, b); }
static inline vec vec_mul(vec a, vec b) { return (vec)BOTH2(vmulq_f32, a, b); }
static inline vec vec_div(vec a, vec b) { return (vec)BOTH2(vdivq_f32, a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return (vec)BOTH3(vfmaq_f32, c, a, b); }
static inline vec_mask vec_lt(vec a, vec b) { return (vec_mask)BOTH2(vcltq_f32, a, b); }
static inline vec_mask vec_eq(vec a, vec b) { return (vec_mask)BOTH2(vceqq_f32, a, b); }
static inline vec_mask vec_and(vec_mask a, vec_mask b) { return (vec_mask)BOTH2(vandq_u32, a, b); }
static inline vec vec_select(vec_mask mask, vec yes, vec no) { return (vec)BOTH3(vbslq_f32, mask, yes, no); }
static inline bool vec_any(vec_mask mask) { return vmaxvq_u32(vorrq_u32(mask.low, mask.high)) != 0; }
/* b where either is NaN, which fmax (NaN) and fmaxnm (the other) are not */
static inline vec vec_max(vec a, vec b) { return vec_select(vec_lt(b, a), a, b); }
static inline vec vec_abs(vec x) { return (vec)BOTH1(vabsq_f32, x); }
static inline float32x4_t power2(float32x4_t x) { return vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(x), 23)); }
/* 2^n for -126 <= n <= 127, and 0 for n = -127, from a number whose lowest bits are n + 127 */
static inline vec vec_power2(vec x) { return (vec)BOTH1(power2, x); }
static inline float vec_hmax(vec x) { return vmaxvq_f32(vmaxq_f32(x.low, x.high)); }
static inline float vec_hsum(vec x) { return vaddvq_f32(vaddq_f32(x.low, x.high)); }
/* Into the second cache. A macro: gcc 12 takes a function that only prefetches for one without effect, and drops its calls. */
#define vec_prefetch(p) __builtin_prefetch(p, 0, 2)

static inline float32x4_t low_halves(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_low_f32(a), vget_low_f32(b)); }
static inline float32x4_t high_halves(float32x4_t a, float32x4_t b) { return vcombine_f32(vget_high_f32(a), vget_high_f32(b)); }
static inline void vec_transpose(vec *t) {
    vec u[8];
    for (int i = 0; i < 8; i += 2) {
        u[i] = (vec)BOTH2(vtrn1q_f32, t[i], t[i + 1]);
        u[i + 1] = (vec)BOTH2(vtrn2q_f32, t[i], t[i + 1]);
    }
    for (int i = 0; i < 2; i++) { /* u[i] holds columns i, i + 2 and, in its high half, i + 4, i + 6, of two rows */
        t[i] = (vec){ low_halves(u[i].low, u[i + 2].low), low_halves(u[i + 4].low, u[i + 6].low) };
        t[i + 2] = (vec){ high_halves(u[i].low, u[i + 2].low), high_halves(u[i + 4].low, u[i + 6].low) };
        t[i + 4] = (vec){ low_halves(u[i].high, u[i + 2].high), low_halves(u[i + 4].high, u[i + 6].high) };
        t[i + 6] = (vec){ high_halves(u[i].high, u[i + 2].high), high_halves(u[i + 4].high, u[i + 6].high) };
    }
}

/* One step of summing the lanes of LANES vectors: a sum of half as many lanes of a and of b each. Steps 4, 1, 2 in turn, among vectors so
 * far apart, leave the sum of vector i in lane i of the first. */
static inline vec vec_fold(vec a, vec b, int step) {
    if (step == 4) return (vec){ vaddq_f32(a.low, a.high), vaddq_f32(b.low, b.high) };
    return (vec)BOTH2(vpaddq_f32, a, b);
}

/* There are no masks: what a part has beyond whole registers is read and written lane by lane. */
static inline vec_part vec_part_of(int64_t count) { return (int)count; } /* the first 1 .. LANES lanes */
static inline float32x4_t load_floats(const float *p, int count) {
    if (count >= 4) return vld1q_f32(p);
    float32x4_t x = vdupq_n_f32(0.0f);
    if (count > 0) x = vld1q_lane_f32(p, x, 0);
    if (count > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (count > 2) x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}
static inline void store_floats(float *p, float32x4_t x, int count) {
    if (count >= 4) {
        vst1q_f32(p, x);
        return;
    }
    if (count > 0) vst1q_lane_f32(p, x, 0);
    if (count > 1) vst1q_lane_f32(p + 1, x, 1);
    if (count > 2) vst1q_lane_f32(p + 2, x, 2);
}
static inline uint16x4_t load_halves(const uint16_t *p, int count) {
    if (count >= 4) return vld1_u16(p);
    uint16x4_t x = vdup_n_u16(0);
    if (count > 0) x = vld1_lane_u16(p, x, 0);
    if (count > 1) x = vld1_lane_u16(p + 1, x, 1);
    if (count > 2) x = vld1_lane_u16(p + 2, x, 2);
    return x;
}
static inline void store_halves(uint16_t *p, uint16x4_t x, int count) {
    if (count >= 4) {
        vst1_u16(p, x);
        return;
    }
    if (count > 0) vst1_lane_u16(p, x, 0);
    if (count > 1) vst1_lane_u16(p + 1, x, 1);
    if (count > 2) vst1_lane_u16(p + 2, x, 2);
}
static inline uint16x8_t load_16bit(const uint16_t *p, vec_part part) {
    return part == LANES ? vld1q_u16(p) : vcombine_u16(load_halves(p, part), load_halves(p + 4, part - 4));
}
static inline void store_16bit(uint16_t *p, uint16x4_t low, uint16x4_t high, vec_part part) {
    store_halves(p, low, part);
    store_halves(p + 4, high, part - 4);
}
static inline vec widen_f16(uint16x8_t x) {
    return (vec){ vcvt_f32_f16(vreinterpret_f16_u16(vget_low_u16(x))), vcvt_high_f32_f16(vreinterpretq_f16_u16(x)) };
}
static inline vec widen_bf16(uint16x8_t x) {
    return (vec){ vreinterpretq_f32_u32(vshll_n_u16(vget_low_u16(x), 16)), vreinterpretq_f32_u32(vshll_high_n_u16(x, 16)) };
}
static inline uint16x4_t narrow_f16(float32x4_t x) { return vreinterpret_u16_f16(vcvt_f16_f32(x)); }
static inline uint16x4_t narrow_bf16(float32x4_t x) {
    uint32x4_t bits = vreinterpretq_u32_f32(x), high = vshrq_n_u32(bits, 16), odd = vandq_u32(high, vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    return vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet));
}
static inline vec vec_load_f32(const float *p) { return vec_load(p); }
static inline vec vec_load_f32_part(const float *p, vec_part part) {
    return part == LANES ? vec_load(p) : (vec){ load_floats(p, part), load_floats(p + 4, part - 4) };
}
static inline vec vec_load_f16(const uint16_t *p) { return widen_f16(vld1q_u16(p)); }
static inline vec vec_load_f16_part(const uint16_t *p, vec_part part) { return widen_f16(load_16bit(p, part)); }
static inline vec vec_load_bf16(const uint16_t *p) { return widen_bf16(vld1q_u16(p)); }
static inline vec vec_load_bf16_part(const uint16_t *p, vec_part part) { return widen_bf16(load_16bit(p, part)); }
static inline void vec_store_f32_part(float *p, vec x, vec_part part) {
    store_floats(p, x.low, part);
    store_floats(p + 4, x.high, part - 4);
}
static inline void vec_store_f16_part(uint16_t *p, vec x, vec_part part) { store_16bit(p, narrow_f16(x.low), narrow_f16(x.high), part); }
static inline void vec_store_bf16_part(uint16_t *p, vec x, vec_part part) { store_16bit(p, narrow_bf16(x.low), narrow_bf16(x.high), part); }
/* Sets: what one load brings in. bf16: two vectors, the even and the odd elements, one operation each; count: the elements there are. */
static inline float32x4_t even_bf16(uint16x8_t x) { return vreinterpretq_f32_u32(vshlq_n_u32(vreinterpretq_u32_u16(x), 16)); }
static inline float32x4_t odd_bf16(uint16x8_t x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_u16(x), vdupq_n_u32(0xffff0000)));
}
static inline void split_bf16(vec *to, uint16x8_t low, uint16x8_t high) {
    to[0] = (vec){ even_bf16(low), even_bf16(high) };
    to[1] = (vec){ odd_bf16(low), odd_bf16(high) };
}
static inline void vec_load_f32_set(vec *to, const float *p) { to[0] = vec_load_f32(p); }
static inline void vec_load_f16_set(vec *to, const uint16_t *p) { to[0] = vec_load_f16(p); }
static inline void vec_load_bf16_set(vec *to, const uint16_t *p) { split_bf16(to, vld1q_u16(p), vld1q_u16(p + 8)); }
static inline void vec_load_f32_set_part(vec *to, const float *p, int count) { to[0] = vec_load_f32_part(p, count); }
static inline void vec_load_f16_set_part(vec *to, const uint16_t *p, int count) { to[0] = vec_load_f16_part(p, count); }
static inline void vec_load_bf16_set_part(vec *to, const uint16_t *p, int count) {
    split_bf16(to, load_16bit(p, count < 8 ? count : 8), count > 8 ? load_16bit(p + 8, count - 8) : vdupq_n_u16(0));
}

#if defined __ARM_FEATURE_BF16_VECTOR_ARITHMETIC
#define VEC_DOTS /* has dot products of pairs of bf16 */
/* 32 bits, a number of float32 say, in every lane */
static inline vec vec_set1_unit(const uint16_t *p) {
    float unit;
    memcpy(&unit, p, sizeof unit);
    return vec_set1(unit);
}
/* four pairs of bf16, twice */
static inline vec vec_set1_quarter(const uint16_t *p) {
    float32x4_t x = vreinterpretq_f32_u16(vld1q_u16(p));
    return (vec){ x, x };
}
static inline vec vec_set1_quarter_part(const uint16_t *p, int count) {
    float32x4_t x = vreinterpretq_f32_u16(load_16bit(p, count));
    return (vec){ x, x };
}
static inline float32x4_t dot_pairs(float32x4_t a, float32x4_t b, float32x4_t c) {
    return vbfdotq_f32(c, vreinterpretq_bf16_f32(a), vreinterpretq_bf16_f32(b));
}
/* Pairs of bf16: c + (a[2i] b[2i] + a[2i + 1] b[2i + 1]), both sums rounded to odd; subnormal numbers and results are 0. */
static inline vec vec_dot(vec a, vec b, vec c) { return (vec)BOTH3(dot_pairs, a, b, c); }
static inline vec vec_round(vec x) { return (vec)BOTH1(vrndnq_f32, x); }
static inline float32x4_t scale2(float32x4_t x, float32x4_t n) {
    int32x4_t power = vshlq_n_s32(vaddq_s32(vcvtmq_s32_f32(n), vdupq_n_s32(127)), 23);
    float32x4_t scaled = vmulq_f32(x, vreinterpretq_f32_s32(power));
    return vbslq_f32(vcltq_f32(n, vdupq_n_f32(-126.0f)), vdupq_n_f32(0.0f), scaled);
}
/* x * 2^floor(n) for -126 <= n <= 0; 0 for smaller n and -inf, whatever x is */
static inline vec vec_scale2(vec x, vec n) { return (vec)BOTH2(scale2, x, n); }
static inline float32x4_t high_bits(float32x4_t x) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), vdupq_n_u32(0xffff0000)));
}
/* the upper 16 bits of each: a bf16 number */
static inline vec vec_high_bits(vec x) { return (vec)BOTH1(high_bits, x); }
static inline uint16x8_t unusual_eight(uint16x8_t x, uint16_t least, uint16_t limit) {
    uint16x8_t size = vandq_u16(x, vdupq_n_u16(0x7fff)), above = vsubq_u16(size, vdupq_n_u16(least));
    return vandq_u16(vtstq_u16(size, size), vcgeq_u16(above, vdupq_n_u16((uint16_t)(limit - least))));
}
/* whether any of 32 of bf16 that is not 0 is of a size outside least <= |x| < limit */
static inline bool vec_unusual_bf16(const uint16_t *p, uint16_t least, uint16_t limit) {
    uint16x8_t bad = vdupq_n_u16(0);
    for (int i = 0; i < 32; i += 8) bad = vorrq_u16(bad, unusual_eight(vld1q_u16(p + i), least, limit));
    return vmaxvq_u16(bad) != 0;
}
/* Copies `count` <= 32 of bf16 and fills up with zeros to 32; whether any is unusual. */
static inline bool vec_copy_bf16(uint16_t *to, const uint16_t *from, int count, uint16_t least, uint16_t limit) {
    uint16x8_t bad = vdupq_n_u16(0);
    for (int i = 0; i < 32; i += 8) {
        const int left = count - i;
        uint16x8_t x = left >= 8 ? vld1q_u16(from + i) : left > 0 ? load_16bit(from + i, left) : vdupq_n_u16(0);
        vst1q_u16(to + i, x);
        bad = vorrq_u16(bad, unusual_eight(x, least, limit));
    }
    return vmaxvq_u16(bad) != 0;
}
/* to[2 i] = even[i], to[2 i + 1] = odd[i], for 16 of each */
static inline void vec_zip_16(uint16_t *to, const uint16_t *even, const uint16_t *odd) {
    for (int i = 0; i < 16; i += 8) {
        const uint16x8x2_t pairs = { { vld1q_u16(even + i), vld1q_u16(odd + i) } };
        vst2q_u16(to + 2 * i, pairs);
    }
}
/* four vectors to bf16, nearest even, one behind the other */
static inline void vec_store_bf16_32(uint16_t *p, const vec *x) {
    for (int i = 0; i < 4; i++) vst1q_u16(p + i * 8, vreinterpretq_u16_bf16(vcvtq_high_bf16_f32(vcvtq_low_bf16_f32(x[i].low), x[i].high)));
}
#endif
