/* convert.c: the bit patterns of f32, f16 and bf16. The command has its own, so that an error in the library's cannot hide itself. */
#include "convert.h"
#include <float.h>
#include <math.h>
#include <string.h>

size_t attn_cli_size(attn_type type) {
    if (type == ATTN_F32) return 4;
    if (type == ATTN_F16 || type == ATTN_BF16) return 2;
    return type == ATTN_BOOL ? 1 : 0;
}

const char *attn_cli_type(attn_type type) {
    static const char *const names[] = { "none", "f32", "f16", "bf16", "bool" };
    return (unsigned)type < sizeof names / sizeof *names ? names[type] : "none";
}

bool attn_cli_type_parse(const char *text, attn_type *type) {
    for (attn_type each = ATTN_F32; each <= ATTN_BF16; each++)
        if (strcmp(text, attn_cli_type(each)) == 0) return *type = each, true;
    return false;
}

static float as_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t as_bits(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

float attn_cli_from_bf16(uint16_t bits) { return as_float((uint32_t)bits << 16); }

uint16_t attn_cli_to_bf16(float value) {
    uint32_t bits = as_bits(value);
    if (isnan(value)) return (uint16_t)(bits >> 16 | 0x40); /* quiet, and never rounded up into infinity */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float attn_cli_from_f16(uint16_t bits) {
    uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 31, mantissa = bits & 0x3ff;
    if (exponent == 0) { /* zero or subnormal: exact in f32 */
        float value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    if (exponent == 31) return as_float(sign | 0x7f800000 | mantissa << 13);
    return as_float(sign | (exponent + 112) << 23 | mantissa << 13);
}

uint16_t attn_cli_to_f16(float value) {
    uint32_t bits = as_bits(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);
    if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and above */
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 leaves the subnormal, rounded to even, in the low bits */
        uint32_t rounded = as_bits(as_float(magnitude) + 0.5f) - 0x3f000000;
        return (uint16_t)(sign | rounded);
    }
    uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
    return (uint16_t)(sign | (rounded - 0x38000000) >> 13);
}

float attn_cli_load_one(attn_type type, const void *from, int64_t index) {
    uint16_t bits;
    if (type == ATTN_F32) return ((const float *)from)[index];
    memcpy(&bits, (const char *)from + 2 * index, sizeof bits);
    return type == ATTN_F16 ? attn_cli_from_f16(bits) : attn_cli_from_bf16(bits);
}

void attn_cli_load(attn_type type, const void *from, int64_t count, float *to) {
    if (type == ATTN_F32 && count > 0)
        memcpy(to, from, (size_t)count * sizeof *to);
    else
        for (int64_t i = 0; i < count; i++) to[i] = attn_cli_load_one(type, from, i);
}

void attn_cli_store(attn_type type, const float *from, int64_t count, void *to) {
    uint16_t *half = to;
    if (type == ATTN_F32 && count > 0)
        memcpy(to, from, (size_t)count * sizeof *from);
    else if (type == ATTN_F16)
        for (int64_t i = 0; i < count; i++) half[i] = attn_cli_to_f16(from[i]);
    else if (type == ATTN_BF16)
        for (int64_t i = 0; i < count; i++) half[i] = attn_cli_to_bf16(from[i]);
}

/* Bits of the mantissa with the leading one, and the exponents of the smallest normal and of the first power of two that overflows. */
typedef struct format {
    int bits, lowest, above;
} format;

static format format_of(attn_type type) {
    if (type == ATTN_F16) return (format){ 11, -14, 16 };
    if (type == ATTN_BF16) return (format){ 8, -126, 128 };
    return (format){ 24, -126, 128 };
}

double attn_cli_ulp(attn_type type, double value) {
    format f = format_of(type);
    int exponent = f.lowest;
    if (isfinite(value) && value != 0 && ilogb(value) > exponent) exponent = ilogb(value);
    return ldexp(1, exponent - f.bits + 1);
}

double attn_cli_clamp(attn_type type, double value) {
    double limit = ldexp(1, format_of(type).above);
    return value > limit ? limit : value < -limit ? -limit : value;
}
