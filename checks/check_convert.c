/* check_convert.c: the conversions of f16 and bf16: every pattern, every boundary between two of them, and random floats, against values
 * made from the formats' definitions in double. */
#include "expect.h"
#include "problem.h"
#include <fenv.h>
#include <math.h>
#include <string.h>

typedef struct format {
    const char *name;
    int exponent_bits, fraction_bits;
    float (*widen)(uint16_t);
    uint16_t (*narrow)(float);
    uint32_t infinity; /* its pattern: the patterns below are the finite values from 0 on, ascending */
} format;

static const format formats[] = { { "f16", 5, 10, attn_f16_to_f32, attn_f32_to_f16, 0x7c00 },
                                  { "bf16", 8, 7, attn_bf16_to_f32, attn_f32_to_bf16, 0x7f80 } };

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

/* The value of a finite pattern without sign; of the infinity's pattern, what would come after the largest finite value. */
static double value_of(const format *f, uint32_t pattern) {
    int bias = (1 << (f->exponent_bits - 1)) - 1;
    int exponent = (int)(pattern >> f->fraction_bits);
    uint32_t fraction = pattern & ((1u << f->fraction_bits) - 1);
    if (exponent == 0) return ldexp(fraction, 1 - bias - f->fraction_bits);
    return ldexp(fraction + (1u << f->fraction_bits), exponent - bias - f->fraction_bits);
}

/* The nearest pattern of |value|, by bisection among all of them; neighbours are close enough for exact differences in double. */
static uint16_t nearest(const format *f, float value) {
    uint32_t sign = bits_of(value) >> 16 & 0x8000;
    double magnitude = fabs((double)value);
    uint32_t low = 0, high = f->infinity;
    if (magnitude >= value_of(f, high)) return (uint16_t)(sign | high);
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (value_of(f, middle) <= magnitude)
            low = middle;
        else
            high = middle;
    }
    double below = magnitude - value_of(f, low), above = value_of(f, high) - magnitude;
    return (uint16_t)(sign | (below < above || (below == above && low % 2 == 0) ? low : high));
}

static void narrow_one(const format *f, float value) {
    uint16_t got = f->narrow(value), want = nearest(f, value);
    EXPECT(got == want, "%s of %a (%08x): %04x, should be %04x", f->name, (double)value, bits_of(value), got, want);
}

static void every_pattern(const format *f) {
    for (uint32_t pattern = 0; pattern < 0x10000; pattern++) {
        uint32_t rest = pattern & 0x7fff;
        float wide = f->widen((uint16_t)pattern);
        uint16_t back = f->narrow(wide);
        EXPECT((bits_of(wide) >> 31) == (pattern >> 15), "%s %04x: sign of %08x", f->name, pattern, bits_of(wide));
        if (rest > f->infinity) {
            uint32_t quiet = pattern | 1u << (f->fraction_bits - 1);
            EXPECT(isnan(wide), "%s %04x: %a is no NaN", f->name, pattern, (double)wide);
            EXPECT(back == quiet, "%s %04x: NaN comes back as %04x", f->name, pattern, back);
            continue;
        }
        double want = rest == f->infinity ? (double)INFINITY : value_of(f, rest);
        EXPECT(fabs((double)wide) == want, "%s %04x: %a, should be %a", f->name, pattern, (double)wide, want);
        EXPECT(back == pattern, "%s %04x: comes back as %04x", f->name, pattern, back);
    }
}

/* Rounding never decreases, so what is right on both sides of every boundary, and on it, is right everywhere. */
static void every_boundary(const format *f) {
    for (uint32_t pattern = 0; pattern < f->infinity; pattern++) {
        float middle = (float)((value_of(f, pattern) + value_of(f, pattern + 1)) / 2);
        float near[] = { middle, nextafterf(middle, 0.0f), nextafterf(middle, INFINITY) };
        for (int k = 0; k < 3; k++) {
            narrow_one(f, near[k]);
            narrow_one(f, -near[k]);
        }
        uint16_t even = (uint16_t)(pattern + pattern % 2);
        EXPECT(f->narrow(middle) == even, "%s: tie above %04x gives %04x", f->name, pattern, f->narrow(middle));
    }
}

static void random_floats(const format *f) {
    for (int n = 0; n < 1000000; n++) {
        float value = float_of((uint32_t)expect_random());
        if (!isnan(value)) {
            narrow_one(f, value);
            continue;
        }
        uint32_t got = f->narrow(value);
        EXPECT((got & 0x7fff) > f->infinity && got >> 15 == bits_of(value) >> 31, "%s of NaN %08x: %04x", f->name, bits_of(value), got);
    }
    static const uint32_t nans[] = { 0x7f800001, 0xff800001, 0x7f801fff, 0x7fc00000, 0xffffffff, 0x7f80ffff };
    for (size_t n = 0; n < sizeof nans / sizeof *nans; n++) {
        uint32_t got = f->narrow(float_of(nans[n]));
        EXPECT((got & 0x7fff) > f->infinity && got >> 15 == nans[n] >> 31, "%s of NaN %08x: %04x", f->name, nans[n], got);
    }
    narrow_one(f, INFINITY);
    narrow_one(f, -INFINITY);
    narrow_one(f, 3.4028234663852886e38f);
    narrow_one(f, 1e-45f);
    narrow_one(f, -0.0f);
}

/* To nearest even in every rounding mode. */
static void rounding_modes(const format *f) {
    static const int modes[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    for (int n = 0; n < 10000; n++) {
        float value = float_of((uint32_t)expect_random());
        uint16_t want = f->narrow(value);
        for (int m = 0; m < 3; m++) {
            fesetround(modes[m]);
            uint16_t got = f->narrow(value);
            fesetround(FE_TONEAREST);
            EXPECT(got == want, "%s of %08x in mode %d: %04x, should be %04x", f->name, bits_of(value), modes[m], got, want);
        }
    }
}

int main(int argc, char **argv) {
    expect_begin(argc, argv);
    for (size_t n = 0; n < sizeof formats / sizeof *formats; n++) {
        every_pattern(&formats[n]);
        every_boundary(&formats[n]);
        random_floats(&formats[n]);
        rounding_modes(&formats[n]);
    }
    return expect_end();
}
