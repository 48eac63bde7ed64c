/* check_reference.c: the reference device by the public API: cases worked out by hand, and laws that the definition of attention implies.
 * No other implementation is asked. Exit 0: good, 1: what failed is printed. */
#include "attn/attn.h"
#include "expect.h"
#include <fenv.h>
#include <math.h>
#include <string.h>

enum { HEADS_Q = 4, HEADS_KV = 2, LEN_Q = 5, LEN_KV = 12, DIM = 7, DIM_V = 3, BATCH = 2 };
enum { Q_COUNT = BATCH * HEADS_Q * LEN_Q * DIM, KV_COUNT = BATCH * HEADS_KV * LEN_KV * DIM, ROWS = BATCH * HEADS_Q * LEN_Q };

/* A problem small enough to hold whole; dense BHLD, f32, every optional part may be on. */
typedef struct sample {
    attn_problem p;
    attn_args a;
    float q[Q_COUNT], k[KV_COUNT], v[KV_COUNT], mask[ROWS * LEN_KV], sinks[HEADS_Q], slopes[HEADS_Q];
    uint8_t bools[ROWS * LEN_KV];
    int32_t len_q[BATCH], len_kv[BATCH];
} sample;

typedef struct result {
    float out[ROWS * DIM_V], lse[ROWS];
} result;

static attn_context *reference;

static double uniform(double low, double high) { return low + (high - low) * (double)(expect_random() >> 11) * 0x1p-53; }

static void fill(float *values, int64_t count, double size) {
    for (int64_t n = 0; n < count; ++n) values[n] = (float)uniform(-size, size);
}

static sample sample_make(void) {
    sample s = { .a = ATTN_ARGS_INIT };
    attn_problem_init(&s.p, ATTN_BHLD, ATTN_F32, BATCH, HEADS_Q, HEADS_KV, LEN_Q, LEN_KV, DIM);
    s.p.dim_v = DIM_V;
    attn_problem_dense(&s.p, ATTN_BHLD);
    fill(s.q, Q_COUNT, 3.0);
    fill(s.k, KV_COUNT, 3.0);
    fill(s.v, KV_COUNT, 3.0);
    for (int n = 0; n < ROWS * LEN_KV; ++n) s.mask[n] = expect_between(0, 4) ? 0.125f * (float)expect_between(-32, 32) : -INFINITY;
    for (int n = 0; n < ROWS * LEN_KV; ++n) s.bools[n] = (uint8_t)(expect_between(0, 3) ? 1 << expect_between(0, 7) : 0);
    fill(s.sinks, HEADS_Q, 2.0);
    fill(s.slopes, HEADS_Q, 0.5);
    for (int b = 0; b < BATCH; ++b) {
        s.len_q[b] = (int32_t)expect_between(0, LEN_Q);
        s.len_kv[b] = (int32_t)expect_between(0, LEN_KV);
    }
    return s;
}

static void set_mask(sample *s, attn_type type) {
    s->p.type_mask = type;
    s->p.mask = (attn_mask_strides){ HEADS_Q * LEN_Q * LEN_KV, LEN_Q * LEN_KV, LEN_KV, 1 };
}

enum { WITH_BAND = 1, WITH_MASK = 2, WITH_SLOPES = 4, WITH_SINKS = 8, WITH_LENGTHS = 16, WITH_CAP = 32, WITH_ALL = 63 };

static void turn_on(sample *s, int parts) {
    if (parts & WITH_BAND && expect_between(0, 1)) s->p.right = expect_between(0, 6);
    if (parts & WITH_BAND && expect_between(0, 1)) s->p.left = expect_between(0, 6);
    if (parts & WITH_BAND) s->p.offset = expect_between(-4, 12);
    if (parts & WITH_MASK) set_mask(s, expect_between(0, 1) ? ATTN_F32 : ATTN_BOOL);
    if (parts & WITH_CAP) s->p.softcap = (float)uniform(0.5, 9.0);
}

/* Points the arguments at the sample's own arrays: samples may be copied before. */
static void point(sample *s, int parts, result *r) {
    s->a.q = s->q, s->a.k = s->k, s->a.v = s->v;
    s->a.out = r->out, s->a.lse = r->lse;
    s->a.mask = s->p.type_mask == ATTN_NONE ? NULL : s->p.type_mask == ATTN_BOOL ? (const void *)s->bools : s->mask;
    s->a.sinks = parts & WITH_SINKS ? s->sinks : NULL;
    s->a.slopes = parts & WITH_SLOPES ? s->slopes : NULL;
    s->a.len_q = parts & WITH_LENGTHS ? s->len_q : NULL;
    s->a.len_kv = parts & WITH_LENGTHS ? s->len_kv : NULL;
}

static result run(sample *s, int parts) {
    result r;
    memset(&r, 0x55, sizeof r);
    point(s, parts, &r);
    attn_status status = attn_forward(reference, &s->p, &s->a);
    EXPECT(status == ATTN_OK, "%s", attn_status_text(status));
    return r;
}

static bool same(const result *a, const result *b) { return memcmp(a, b, sizeof *a) == 0; }

/* By the definition, with nothing of the library in it. */
static bool sees(const sample *s, int parts, int b, int h, int i, int j) {
    int64_t diagonal = i + s->p.offset;
    if (parts & WITH_LENGTHS && j >= s->len_kv[b]) return false;
    if (s->p.left >= 0 && j < diagonal - s->p.left) return false;
    if (s->p.right >= 0 && j > diagonal + s->p.right) return false;
    int n = ((b * HEADS_Q + h) * LEN_Q + i) * LEN_KV + j;
    if (s->p.type_mask == ATTN_BOOL) return s->bools[n] != 0;
    return s->p.type_mask == ATTN_NONE || s->mask[n] != -INFINITY;
}

static bool in_play(const sample *s, int parts, int b, int i) { return !(parts & WITH_LENGTHS) || i < s->len_q[b]; }

#define EACH_ROW(b, h, i)                                                                                                                  \
    for (int b = 0; b < BATCH; ++b)                                                                                                        \
        for (int h = 0; h < HEADS_Q; ++h)                                                                                                  \
            for (int i = 0; i < LEN_Q; ++i)
static int row_of(int b, int h, int i) { return (b * HEADS_Q + h) * LEN_Q + i; }
static int key_of(int b, int h, int j) { return (b * HEADS_KV + h / (HEADS_Q / HEADS_KV)) * LEN_KV + j; }

static void expect_near(double got, double want, double tolerance, const char *what) {
    bool good = got == want || fabs(got - want) <= tolerance || (isnan(got) && isnan(want));
    EXPECT(good, "%s: %.9g, expected %.9g", what, got, want);
}

/* ---- by hand: one row, two keys, one dimension ---- */
typedef struct tiny {
    attn_problem p;
    attn_args a;
    float q, k[2], v[2], mask[2], sink, slope;
} tiny;

static tiny tiny_make(double first, double second) {
    tiny t = { .a = ATTN_ARGS_INIT, .q = 1.0f, .k = { (float)first, (float)second }, .v = { 8.0f, 16.0f }, .sink = 0.0f, .slope = 0.0f };
    attn_problem_init(&t.p, ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 2, 1);
    return t;
}

static void tiny_is(tiny t, double out, double lse, const char *what) {
    float got_out = -1.0f, got_lse = -1.0f;
    t.a.q = &t.q, t.a.k = t.k, t.a.v = t.v, t.a.out = &got_out, t.a.lse = &got_lse;
    if (t.p.type_mask != ATTN_NONE) t.a.mask = t.mask;
    if (t.a.sinks) t.a.sinks = &t.sink;
    if (t.a.slopes) t.a.slopes = &t.slope;
    attn_status status = attn_forward(reference, &t.p, &t.a);
    EXPECT(status == ATTN_OK, "%s: %s", what, attn_status_text(status));
    expect_near(got_out, out, 1e-6 * fabs(out), what);
    expect_near(got_lse, lse, 1e-6 * fabs(lse), what);
}

static void check_by_hand(void) {
    tiny t = tiny_make(0.0, log(3.0));
    tiny_is(t, 14.0, log(4.0), "scores 0 and log 3");
    t.p.scale = 0.0f;
    tiny_is(t, 12.0, log(2.0), "scale 0");
    t.p.scale = -1.0f;
    tiny_is(t, (8.0 + 16.0 / 3.0) / (4.0 / 3.0), log(4.0 / 3.0), "scale -1");
    t = tiny_make(0.0, 5.0);
    t.p.softcap = 2.0f;
    double capped = exp(2.0 * tanh(2.5));
    tiny_is(t, (8.0 + 16.0 * capped) / (1.0 + capped), log(1.0 + capped), "softcap 2");
    t = tiny_make(0.0, 0.0);
    t.a.sinks = &t.sink;
    t.sink = (float)log(2.0);
    tiny_is(t, 6.0, log(4.0), "sink log 2");
    t.sink = INFINITY;
    tiny_is(t, 0.0, INFINITY, "a sink of +inf");
    t.sink = 1e5f;
    tiny_is(t, 0.0, 1e5, "a sink far beyond exp");
    t.p.len_kv = 0;
    tiny_is(t, 0.0, 1e5, "a sink alone");
    t.sink = NAN;
    tiny_is(t, 0.0, NAN, "a sink of NaN alone");
    t.a.sinks = NULL;
    tiny_is(t, 0.0, -INFINITY, "no keys");
    t = tiny_make(0.0, 0.0);
    t.a.slopes = &t.slope;
    t.slope = (float)log(2.0);
    tiny_is(t, (8.0 + 16.0 / 2) / 1.5, log(1.5), "slope log 2, diagonal 0");
    t.p.offset = 3;
    tiny_is(t, (8.0 / 8 + 16.0 / 4) / 0.375, log(0.375), "slope log 2, diagonal 3");
    t = tiny_make(1.0, 1.0);
    t.p.type_mask = ATTN_F32, t.p.mask.key = 1, t.p.softcap = 1e30f;
    t.mask[1] = (float)log(3.0);
    tiny_is(t, 14.0, 1.0 + log(4.0), "an additive mask after a softcap that changes nothing");
    t.mask[1] = -INFINITY, t.k[1] = NAN, t.v[1] = NAN;
    tiny_is(t, 8.0, 1.0, "an additive mask of -inf hides");
    t.mask[1] = INFINITY, t.k[1] = 1.0f, t.v[1] = 16.0f;
    tiny_is(t, NAN, NAN, "a score of +inf");
    t = tiny_make(-INFINITY, 1.0);
    tiny_is(t, 16.0, 1.0, "a visible score of -inf weighs nothing");
    t.v[0] = INFINITY;
    tiny_is(t, NAN, 1.0, "0 * inf in the values");
    t = tiny_make(-INFINITY, -INFINITY);
    t.v[1] = NAN;
    tiny_is(t, 0.0, -INFINITY, "all scores -inf: as if nothing were seen, whatever the values");
    t.k[1] = NAN;
    tiny_is(t, NAN, NAN, "a score of NaN among -inf");
    t = tiny_make(NAN, 1.0);
    tiny_is(t, NAN, NAN, "a score of NaN");
    t = tiny_make(1e30, -1e30);
    tiny_is(t, 8.0, 1e30, "scores far beyond exp");
}

/* ---- one rounding, from double ---- */
static float half_of(attn_type type, uint16_t bits) {
    if (type == ATTN_BF16) {
        uint32_t wide = (uint32_t)bits << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        return value;
    }
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY) : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return (float)(bits & 0x8000 ? -size : size);
}

static void mean_is(attn_type type, double first, double second, double want) {
    tiny t = tiny_make(0.0, 0.0);
    uint16_t got = 0x1234;
    t.v[0] = (float)first, t.v[1] = (float)second;
    t.p.type_out = type;
    t.a.q = &t.q, t.a.k = t.k, t.a.v = t.v, t.a.out = &got;
    EXPECT(attn_forward(reference, &t.p, &t.a) == ATTN_OK, "a mean");
    EXPECT(half_of(type, got) == (float)want, "mean of %.17g and %.17g is %.9g, expected %.9g", first, second, half_of(type, got), want);
}

static void check_rounding(void) {
    for (int sign = -1; sign <= 1; sign += 2) {
        /* Half way between neighbours, and off it by less than a float can tell. */
        mean_is(ATTN_F16, sign * (1 + 0x1p-11), sign * (1 + 0x1p-11), sign);
        mean_is(ATTN_F16, sign * (1 + 0x1p-11), sign * (1 + 0x1p-11 + 0x1p-23), sign * (1 + 0x1p-10));
        mean_is(ATTN_F16, sign * (1 + 3 * 0x1p-11), sign * (1 + 3 * 0x1p-11 - 0x1p-23), sign * (1 + 0x1p-10));
        mean_is(ATTN_BF16, sign * (1 + 0x1p-8), sign * (1 + 0x1p-8), sign);
        mean_is(ATTN_BF16, sign * (1 + 0x1p-8), sign * (1 + 0x1p-8 + 0x1p-23), sign * (1 + 0x1p-7));
        mean_is(ATTN_BF16, sign * (1 + 3 * 0x1p-8), sign * (1 + 3 * 0x1p-8 - 0x1p-23), sign * (1 + 0x1p-7));
        mean_is(ATTN_F16, sign * 0x1p-25, sign * 0x1p-25, 0.0);
        mean_is(ATTN_F16, sign * 0x1p-25, sign * (0x1p-25 + 0x1p-48), sign * 0x1p-24);
        mean_is(ATTN_F16, sign * 65520.0, sign * 65519.998, sign * 65504.0);
        mean_is(ATTN_F16, sign * 65520.0, sign * 65520.0, sign * INFINITY);
        mean_is(ATTN_F16, sign * 1e30, sign * 1e30, sign * INFINITY);
        mean_is(ATTN_BF16, sign * 0x1p-134, sign * (0x1p-134 + 0x1p-149), sign * 0x1p-133);
        mean_is(ATTN_BF16, sign * 0x1.ffp127, sign * 0x1.fefffep127, sign * 0x1.fep127);
        mean_is(ATTN_BF16, sign * 0x1.ffp127, sign * 0x1.ffp127, sign * INFINITY);
    }
    for (int type = ATTN_F16; type <= ATTN_BF16; ++type) { /* every value of the type comes out as it went in */
        static uint16_t v[1 << 16], out[1 << 16];
        attn_problem p;
        attn_args a = ATTN_ARGS_INIT;
        float zero = 0.0f;
        for (int n = 0; n < 1 << 16; ++n) v[n] = (uint16_t)n;
        attn_problem_init(&p, ATTN_BHLD, (attn_type)type, 1, 1, 1, 1, 1, 1);
        p.type_q = p.type_k = ATTN_F32;
        p.dim_v = 1 << 16;
        attn_problem_dense(&p, ATTN_BHLD);
        a.q = a.k = &zero, a.v = v, a.out = out;
        EXPECT(attn_forward(reference, &p, &a) == ATTN_OK, "every 16-bit value");
        for (int n = 0; n < 1 << 16; ++n) {
            float want = half_of((attn_type)type, v[n]), got = half_of((attn_type)type, out[n]);
            EXPECT(got == want || (isnan(got) && isnan(want)), "16-bit value %#x came out as %#x", (unsigned)v[n], (unsigned)out[n]);
        }
    }
}

/* ---- visibility: with equal scores and values 2^j, out and lse tell which keys took part ---- */
static void check_visibility(void) {
    sample s = sample_make();
    int parts = (int)expect_between(0, 1) * WITH_LENGTHS;
    turn_on(&s, WITH_BAND | (expect_between(0, 1) ? WITH_MASK : 0));
    s.p.scale = 0.0f;
    for (int n = 0; n < ROWS * LEN_KV; ++n)
        if (s.mask[n] != -INFINITY) s.mask[n] = 0.0f;
    for (int n = 0; n < KV_COUNT; ++n) s.v[n] = ldexpf(1.0f, n / DIM_V % LEN_KV);
    result r = run(&s, parts);
    EACH_ROW(b, h, i) {
        double sum = 0.0;
        int count = 0, row = row_of(b, h, i);
        for (int j = 0; j < LEN_KV; ++j)
            if (sees(&s, parts, b, h, i, j)) sum += ldexp(1.0, j), ++count;
        if (!in_play(&s, parts, b, i)) {
            EXPECT(memcmp(&r.lse[row], "\x55\x55\x55\x55", 4) == 0, "a row at or past len_q was written");
            continue;
        }
        expect_near(r.out[row * DIM_V], count ? sum / count : 0.0, 1e-6 * sum, "mean of the visible");
        expect_near(r.lse[row], log(count), 1e-6, "log of their number");
    }
}

/* ---- laws ---- */
/* Keys split anywhere, their states merged: the same as all keys at once. A sink belongs into one part. */
static void check_split(void) {
    sample s = sample_make();
    int parts = WITH_ALL & ~WITH_LENGTHS;
    turn_on(&s, parts);
    result whole = run(&s, parts), pieces[3], merged;
    int cuts[4] = { 0, (int)expect_between(0, LEN_KV), LEN_KV, LEN_KV };
    cuts[2] = (int)expect_between(cuts[1], LEN_KV);
    attn_state states[3];
    for (int n = 0; n < 3; ++n) {
        sample piece = s;
        point(&piece, n == 1 ? parts : parts & ~WITH_SINKS, &pieces[n]);
        piece.p.len_kv = cuts[n + 1] - cuts[n];
        piece.p.offset -= cuts[n];
        piece.a.k = piece.k + cuts[n] * DIM;
        piece.a.v = piece.v + cuts[n] * DIM_V;
        piece.a.mask = (const char *)piece.a.mask + (size_t)cuts[n] * (s.p.type_mask == ATTN_BOOL ? 1 : 4);
        EXPECT(attn_forward(reference, &piece.p, &piece.a) == ATTN_OK, "a part");
        states[n] = (attn_state){ pieces[n].out, pieces[n].lse };
    }
    attn_args a = ATTN_ARGS_INIT;
    a.out = merged.out, a.lse = merged.lse;
    EXPECT(attn_merge(reference, &s.p, states, 3, &a) == ATTN_OK, "attn_merge");
    for (int n = 0; n < ROWS * DIM_V; ++n) expect_near(merged.out[n], whole.out[n], 1e-5, "split keys: out");
    for (int n = 0; n < ROWS; ++n) expect_near(merged.lse[n], whole.lse[n], 1e-5, "split keys: lse");
}

static void check_order(void) {
    sample s = sample_make(), shuffled;
    turn_on(&s, WITH_MASK | WITH_CAP);
    shuffled = s;
    for (int b = 0; b < BATCH; ++b)
        for (int j = 0; j < LEN_KV; ++j) {
            int to = (j * 5 + 3) % LEN_KV;
            for (int h = 0; h < HEADS_Q; ++h) {
                memcpy(&shuffled.k[key_of(b, h, to) * DIM], &s.k[key_of(b, h, j) * DIM], DIM * sizeof(float));
                memcpy(&shuffled.v[key_of(b, h, to) * DIM_V], &s.v[key_of(b, h, j) * DIM_V], DIM_V * sizeof(float));
                for (int i = 0; i < LEN_Q; ++i) {
                    shuffled.mask[row_of(b, h, i) * LEN_KV + to] = s.mask[row_of(b, h, i) * LEN_KV + j];
                    shuffled.bools[row_of(b, h, i) * LEN_KV + to] = s.bools[row_of(b, h, i) * LEN_KV + j];
                }
            }
        }
    result first = run(&s, WITH_SINKS), second = run(&shuffled, WITH_SINKS);
    for (int n = 0; n < ROWS * DIM_V; ++n)
        expect_near(second.out[n], first.out[n], 3e-7 * fabs(first.out[n]) + 1e-12, "order of keys: out");
    for (int n = 0; n < ROWS; ++n) expect_near(second.lse[n], first.lse[n], 3e-7 * fabs(first.lse[n]) + 1e-12, "order of keys: lse");
}

static void check_values(void) {
    sample s = sample_make();
    int parts = WITH_ALL & ~WITH_SINKS;
    turn_on(&s, parts);
    result r = run(&s, parts);
    sample equal = s;
    for (int n = 0; n < KV_COUNT; ++n) equal.v[n] = s.v[n % DIM_V];
    result constant = run(&equal, parts);
    EACH_ROW(b, h, i) {
        for (int d = 0; d < DIM_V && in_play(&s, parts, b, i); ++d) {
            float low = INFINITY, high = -INFINITY, got = r.out[row_of(b, h, i) * DIM_V + d],
                  kept = constant.out[row_of(b, h, i) * DIM_V + d];
            for (int j = 0; j < LEN_KV; ++j) {
                if (!sees(&s, parts, b, h, i, j)) continue;
                low = fminf(low, s.v[key_of(b, h, j) * DIM_V + d]);
                high = fmaxf(high, s.v[key_of(b, h, j) * DIM_V + d]);
            }
            bool any = low <= high;
            EXPECT(any ? got >= low && got <= high : got == 0.0f, "%g is not between %g and %g", got, low, high);
            EXPECT(kept == (any ? s.v[d] : 0.0f), "equal values %.9g came out as %.9g", s.v[d], kept);
        }
    }
}

static void check_shift(void) {
    sample s = sample_make();
    int parts = WITH_ALL & ~WITH_SINKS;
    turn_on(&s, parts);
    set_mask(&s, ATTN_F32);
    sample moved = s;
    for (int n = 0; n < ROWS * LEN_KV; ++n) moved.mask[n] += 0.5f * (float)(n / LEN_KV % 9 - 4);
    result before = run(&s, parts), after = run(&moved, parts);
    EACH_ROW(b, h, i) {
        int row = row_of(b, h, i);
        if (!in_play(&s, parts, b, i)) continue;
        expect_near(after.lse[row], before.lse[row] + 0.5 * (row % 9 - 4), 3e-6, "a constant in the mask moves lse");
        for (int d = 0; d < DIM_V; ++d)
            expect_near(after.out[row * DIM_V + d], before.out[row * DIM_V + d], 1e-6, "a constant in the mask leaves out");
    }
}

static void check_identity(void) {
    sample s = sample_make();
    turn_on(&s, WITH_ALL);
    result r = run(&s, WITH_ALL & ~WITH_LENGTHS), merged, nothing;
    for (int n = 0; n < ROWS * DIM_V; ++n) nothing.out[n] = NAN;
    for (int n = 0; n < ROWS; ++n) nothing.lse[n] = -INFINITY;
    attn_state states[] = { { nothing.out, nothing.lse }, { r.out, r.lse }, { nothing.out, nothing.lse } };
    attn_args a = ATTN_ARGS_INIT;
    a.out = merged.out, a.lse = merged.lse;
    for (int first = 0; first < 2; ++first)
        for (int end = 2; end <= 3; ++end) {
            memset(&merged, 0x55, sizeof merged);
            EXPECT(attn_merge(reference, &s.p, states + first, end - first, &a) == ATTN_OK, "attn_merge");
            EXPECT(same(&merged, &r), "merging with states of no keys changes a state");
        }
    for (int count = 0; count < 2; ++count) {
        memset(&merged, 0x55, sizeof merged);
        EXPECT(attn_merge(reference, &s.p, states, count, &a) == ATTN_OK, "attn_merge");
        for (int n = 0; n < ROWS * DIM_V; ++n) EXPECT(merged.out[n] == 0.0f, "out of no keys is %g", merged.out[n]);
        for (int n = 0; n < ROWS; ++n) EXPECT(merged.lse[n] == -INFINITY, "lse of no keys is %g", merged.lse[n]);
    }
}

/* A NaN in one key reaches the rows that see it, whole where it is in K, in its column where it is in V; behind an invisible key nothing.
 */
static void check_confinement(void) {
    sample s = sample_make();
    turn_on(&s, WITH_ALL);
    result before = run(&s, WITH_ALL);
    bool in_values = expect_between(0, 1);
    int b0 = (int)expect_between(0, BATCH - 1), h0 = (int)expect_between(0, HEADS_KV - 1), j0 = (int)expect_between(0, LEN_KV - 1);
    int key = (b0 * HEADS_KV + h0) * LEN_KV + j0;
    if (in_values)
        s.v[key * DIM_V + 1] = NAN;
    else
        s.k[key * DIM + 3] = NAN;
    for (int b = 0; b < BATCH; ++b) /* what lengths and band hide is not even read */
        for (int h = 0; h < HEADS_Q && s.p.type_mask == ATTN_F32; ++h)
            for (int n = 0; n < LEN_Q * LEN_KV; ++n) {
                sample open = s;
                open.p.type_mask = ATTN_NONE;
                if (!sees(&open, WITH_ALL, b, h, n / LEN_KV, n % LEN_KV)) s.mask[(b * HEADS_Q + h) * LEN_Q * LEN_KV + n] = NAN;
            }
    result after = run(&s, WITH_ALL);
    EACH_ROW(b, h, i) {
        int row = row_of(b, h, i);
        bool hit = in_play(&s, WITH_ALL, b, i) && b == b0 && h / (HEADS_Q / HEADS_KV) == h0 && sees(&s, WITH_ALL, b, h, i, j0);
        for (int d = 0; d < DIM_V; ++d) {
            float now = after.out[row * DIM_V + d];
            bool expected = hit && (!in_values || d == 1);
            EXPECT(expected ? isnan(now) : memcmp(&now, &before.out[row * DIM_V + d], 4) == 0, "out is %g", now);
        }
        EXPECT(hit && !in_values ? isnan(after.lse[row]) : memcmp(&after.lse[row], &before.lse[row], 4) == 0, "lse is %g", after.lse[row]);
    }
}

/* Nothing but the inputs decides: not threads, not the caller's rounding mode. */
static void check_circumstances(void) {
    sample s = sample_make();
    turn_on(&s, WITH_ALL);
    result first = run(&s, WITH_ALL);
    attn_context *kept = reference;
    for (int threads = 1; threads <= 4; ++threads) {
        attn_options options = ATTN_OPTIONS_INIT;
        options.device = ATTN_REFERENCE;
        options.threads = threads;
        EXPECT(attn_open(&reference, &options) == ATTN_OK, "attn_open with %d threads", threads);
        result other = run(&s, WITH_ALL);
        EXPECT(same(&first, &other), "%d threads change a bit", threads);
        attn_close(reference);
    }
    reference = kept;
    fesetround(FE_UPWARD);
    result upward = run(&s, WITH_ALL);
    bool left = fegetround() == FE_UPWARD;
    fesetround(FE_TONEAREST);
    EXPECT(left && same(&first, &upward), "the caller's rounding mode (left as found: %d)", left);
}

int main(int argc, char **argv) {
    expect_begin(argc, argv);
    attn_options options = ATTN_OPTIONS_INIT;
    options.device = ATTN_REFERENCE;
    EXPECT(attn_open(&reference, &options) == ATTN_OK, "attn_open");
    check_by_hand();
    check_rounding();
    for (int n = 0; n < 300; ++n) {
        check_visibility();
        check_split();
        check_order();
        check_values();
        check_shift();
        check_identity();
        check_confinement();
    }
    for (int n = 0; n < 5; ++n) check_circumstances();
    attn_close(reference);
    return expect_end();
}
