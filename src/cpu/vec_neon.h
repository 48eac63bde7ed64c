/* vec_neon.h: the vocabulary in Advanced SIMD of 64-bit ARM, nothing but its base: four floats to a vector, thirty-two vectors. f16 is only
 * ever converted; no arithmetic is in half precision.
 *
 * The numbers. A multiply-add takes 4 cycles and there are 2 to 4 a cycle: 16 sums must be under way. WIDE_KEYS 8 times two vectors of rows
 * are 16, and 10 registers for operands. Values take 4 rows times 5 vectors, 20 sums, and 9 registers for operands (4 x 6 and 8 x 3 spill:
 * gcc loads all weights first). A weight, or an element of a key, is loaded as one float and multiplied by element (fmla v, v, v.s[0]);
 * ld1r would take one of the pipes that multiply. A thin tile is but four sums, of which a row has one under way for each of its keys: from
 * three rows on the wide way, with eight sums at least, is no slower though its vectors of rows are not full. */
#include "kernels.h"
#include <arm_neon.h>
#include <math.h>

#define ISA neon
#define THIN_TILES 2                                                 /* the most rows of a thin tile */
#define ROW_TILES 4                                                  /* the most rows of a values tile */
enum { LANES = 4, WIDE_KEYS = 8, THIN_ROWS = 2, ACCUMULATORS = 20 }; /* WIDE_KEYS: keys of a wide tile */
typedef float32x4_t vec;
typedef uint32x4_t vec_mask;
typedef int vec_part;

/* Loads x here, once, after those before it: hardware prefetchers follow rising addresses, and compilers shuffle loads. */
#define IN_ORDER(x) __asm__ volatile("" : "+w"(x))

static inline vec vec_set1(float x) { return vdupq_n_f32(x); }
static inline vec vec_zero(void) { return vdupq_n_f32(0.0f); }
static inline vec vec_iota(void) { return (vec){ 0, 1, 2, 3 }; }
static inline vec vec_load(const float *p) { return vld1q_f32(p); }
static inline void vec_store(float *p, vec x) { vst1q_f32(p, x); }
static inline vec vec_add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec vec_sub(vec a, vec b) { return vsubq_f32(a, b); }
static inline vec vec_mul(vec a, vec b) { return vmulq_f32(a, b); }
static inline vec vec_div(vec a, vec b) { return vdivq_f32(a, b); }
static inline vec vec_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
static inline vec_mask vec_lt(vec a, vec b) { return vcltq_f32(a, b); }
static inline vec_mask vec_eq(vec a, vec b) { return vceqq_f32(a, b); }
static inline vec_mask vec_and(vec_mask a, vec_mask b) { return vandq_u32(a, b); }
static inline vec vec_select(vec_mask mask, vec yes, vec no) { return vbslq_f32(mask, yes, no); }
static inline bool vec_any(vec_mask mask) { return vmaxvq_u32(mask) != 0; }
/* b where either is NaN, which fmax (NaN) and fmaxnm (the other) are not */
static inline vec vec_max(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline vec vec_abs(vec x) { return vabsq_f32(x); }
static inline vec vec_round(vec x) { return vrndnq_f32(x); }
/* x * 2^n for whole n, -127 <= n <= 127; 0 for n == -127 */
static inline vec vec_scale2(vec x, vec n) {
    return vmulq_f32(x, vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n), vdupq_n_s32(127)), 23)));
}
static inline float vec_hmax(vec x) { return vmaxvq_f32(x); }
static inline float vec_hsum(vec x) { return vaddvq_f32(x); }
/* Into the second cache. A macro: gcc 12 takes a function that only prefetches for one without effect, and drops its calls. */
#define vec_prefetch(p) __builtin_prefetch(p, 0, 2)

static inline void vec_transpose(vec *t) {
    vec a = vtrn1q_f32(t[0], t[1]), b = vtrn2q_f32(t[0], t[1]), c = vtrn1q_f32(t[2], t[3]), d = vtrn2q_f32(t[2], t[3]);
    t[0] = vcombine_f32(vget_low_f32(a), vget_low_f32(c));
    t[1] = vcombine_f32(vget_low_f32(b), vget_low_f32(d));
    t[2] = vcombine_f32(vget_high_f32(a), vget_high_f32(c));
    t[3] = vcombine_f32(vget_high_f32(b), vget_high_f32(d));
}
/* lane j: the sum of the lanes of acc[j], the same tree for every j */
static inline vec vec_reduce(const vec *acc) { return vpaddq_f32(vpaddq_f32(acc[0], acc[1]), vpaddq_f32(acc[2], acc[3])); }

/* There are no masks: a part is read and written lane by lane. */
static inline vec_part vec_part_of(int64_t count) { return (int)count; } /* the first 1 .. LANES lanes */
static inline uint16x4_t load_16bit(const uint16_t *p, vec_part part) {
    if (part == LANES) return vld1_u16(p);
    uint16x4_t x = vld1_lane_u16(p, vdup_n_u16(0), 0);
    if (part > 1) x = vld1_lane_u16(p + 1, x, 1);
    if (part > 2) x = vld1_lane_u16(p + 2, x, 2);
    return x;
}
static inline void store_16bit(uint16_t *p, uint16x4_t x, vec_part part) {
    if (part == LANES) {
        vst1_u16(p, x);
        return;
    }
    vst1_lane_u16(p, x, 0);
    if (part > 1) vst1_lane_u16(p + 1, x, 1);
    if (part > 2) vst1_lane_u16(p + 2, x, 2);
}
static inline vec widen_f16(uint16x4_t x) { return vcvt_f32_f16(vreinterpret_f16_u16(x)); }
static inline vec widen_bf16(uint16x4_t x) { return vreinterpretq_f32_u32(vshll_n_u16(x, 16)); }
static inline vec vec_load_f32(const float *p) { return vld1q_f32(p); }
static inline vec vec_load_f32_part(const float *p, vec_part part) {
    if (part == LANES) return vld1q_f32(p);
    vec x = vld1q_lane_f32(p, vec_zero(), 0);
    if (part > 1) x = vld1q_lane_f32(p + 1, x, 1);
    if (part > 2) x = vld1q_lane_f32(p + 2, x, 2);
    return x;
}
static inline vec vec_load_f16(const uint16_t *p) { return widen_f16(vld1_u16(p)); }
static inline vec vec_load_f16_part(const uint16_t *p, vec_part part) { return widen_f16(load_16bit(p, part)); }
static inline vec vec_load_bf16(const uint16_t *p) { return widen_bf16(vld1_u16(p)); }
static inline vec vec_load_bf16_part(const uint16_t *p, vec_part part) { return widen_bf16(load_16bit(p, part)); }
static inline void vec_store_f32_part(float *p, vec x, vec_part part) {
    if (part == LANES) {
        vst1q_f32(p, x);
        return;
    }
    vst1q_lane_f32(p, x, 0);
    if (part > 1) vst1q_lane_f32(p + 1, x, 1);
    if (part > 2) vst1q_lane_f32(p + 2, x, 2);
}
static inline void vec_store_f16_part(uint16_t *p, vec x, vec_part part) { store_16bit(p, vreinterpret_u16_f16(vcvt_f16_f32(x)), part); }
static inline void vec_store_bf16_part(uint16_t *p, vec x, vec_part part) {
    uint32x4_t bits = vreinterpretq_u32_f32(x), high = vshrq_n_u32(bits, 16), odd = vandq_u32(high, vdupq_n_u32(1));
    uint32x4_t rounded = vshrq_n_u32(vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff))), 16);
    uint32x4_t quiet = vorrq_u32(high, vdupq_n_u32(0x40));
    store_16bit(p, vmovn_u32(vbslq_u32(vceqq_f32(x, x), rounded, quiet)), part);
}
