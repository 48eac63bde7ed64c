/* convert.c: one element from or to f16 and bf16, exactly, by integer arithmetic: rounding mode and flush-to-zero flags do not matter. */
#include "problem.h"
#include <string.h>

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

float attn_bf16_to_f32(uint16_t bits) { return float_of((uint32_t)bits << 16); }

float attn_f16_to_f32(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16;
    uint32_t rest = bits & 0x7fff;
    if (rest >= 0x7c00) /* infinity; or NaN, made quiet as the hardware does it */
        return float_of(sign | 0x7f800000 | (rest & 0x3ff) << 13 | (rest > 0x7c00 ? 0x00400000u : 0));
    if (rest >= 0x0400) return float_of(sign | ((rest << 13) + 0x38000000)); /* exponent bias 127 for 15 */
    if (rest == 0) return float_of(sign);
    uint32_t exponent = 113; /* 2^-14 */
    for (; rest < 0x0400; rest <<= 1) exponent--;
    return float_of(sign | exponent << 23 | (rest & 0x3ff) << 13);
}

uint16_t attn_f32_to_bf16(float value) {
    uint32_t bits = bits_of(value);
    if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)(bits >> 16 | 0x40); /* quiet, and never infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t attn_f32_to_f16(float value) {
    uint32_t bits = bits_of(value);
    uint32_t sign = bits >> 16 & 0x8000;
    uint32_t rest = bits & 0x7fffffff;
    if (rest > 0x7f800000) return (uint16_t)(sign | 0x7e00 | (rest >> 13 & 0x3ff));
    if (rest >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520, halfway between the largest f16 and the next power of two */
    if (rest >= 0x38800000) {                                 /* 2^-14, the smallest normal f16 */
        rest += 0xfff + (rest >> 13 & 1);
        return (uint16_t)(sign | (rest - 0x38000000) >> 13);
    }
    if (rest < 0x33000000) return (uint16_t)sign; /* below 2^-25, half the smallest subnormal f16 */
    uint32_t shift = 126 - (rest >> 23);          /* 14 .. 24 */
    uint32_t whole = (rest & 0x007fffff) | 0x00800000;
    uint32_t kept = whole >> shift;
    uint32_t lost = whole & ((UINT32_C(1) << shift) - 1);
    uint32_t half = UINT32_C(1) << (shift - 1);
    kept += lost > half || (lost == half && (kept & 1));
    return (uint16_t)(sign | kept);
}
