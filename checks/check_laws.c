/* check_laws.c: what must hold between results, whatever they are: splits merge, order and layout are irrelevant, equal values come out
 * unchanged, masks that say the same do the same. Every ISA in turn. */
#include "harness.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_context *context;
static char isa[32]; /* and precision */
static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
static check_worst worst;

static void note(const check_case *c, const char *law) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s, %s", isa, law);
    check_case_note(c, prefix);
}

/* Small random sizes, one type, normal inputs, nothing else: each law adds what it is about. */
static void plain(check_case *c, check_random *random, attn_type type) {
    static const int64_t dims[] = { 1, 7, 16, 33, 64, 80, 128 };
    static const int64_t lens_q[] = { 1, 2, 5, 16, 33, 70 };
    static const int64_t lens_kv[] = { 1, 3, 31, 100, 513, 1100 };
    static const int64_t groups[] = { 1, 2, 4, 5 };
    int64_t heads_kv = 1 + check_below(random, 2), batch = 1 + check_below(random, 2), len_q = CHECK_PICK(random, lens_q);
    int64_t len_kv = CHECK_PICK(random, lens_kv), dim = CHECK_PICK(random, dims);
    check_case_init(c, type, batch, heads_kv * CHECK_PICK(random, groups), heads_kv, len_q, len_kv, dim);
}

/* out and lse of two cases with the same sizes, whatever their strides, bit for bit. */
static void expect_same(const check_case *a, const check_case *b, const char *what) {
    const attn_problem *p = &a->problem;
    size_t row = (size_t)p->dim_v * check_size(p->type_out);
    for (int64_t n = 0; n < p->batch; n++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < check_len_q(a, n); i++) {
                bool same = !memcmp(check_at(&a->out, n, h, i, 0), check_at(&b->out, n, h, i, 0), row) &&
                            (!a->args.lse || !b->args.lse || !memcmp(check_at(&a->lse, n, h, i, 0), check_at(&b->lse, n, h, i, 0), 4));
                CHECK(same, "%s: row [%d][%d][%d] has other bits: out %.9g and %.9g ...", what, (int)n, (int)h, (int)i,
                      check_get(&a->out, n, h, i, 0), check_get(&b->out, n, h, i, 0));
                if (!same) return;
            }
        }
    }
}

static void forward_and_compare(check_case *c, const check_expected *expected, double slack, const char *what) {
    check_case_forward(c, context);
    check_compare(c, expected, slack, what, &worst);
}

/* ---- splits ---- */
/* The part of the keys from a to b as a problem of its own; the sink goes with the first. */
static attn_explanation run_part(const check_case *whole, int64_t a, int64_t b, float *out, float *lse) {
    attn_problem p = whole->problem;
    attn_args args = whole->args;
    int32_t lengths[16];
    p.len_kv = b - a;
    p.offset -= a;
    p.type_out = ATTN_F32;
    args.k = (const char *)args.k + a * p.k.row * (int64_t)check_size(p.type_k);
    args.v = (const char *)args.v + a * p.v.row * (int64_t)check_size(p.type_v);
    if (args.mask) args.mask = (const char *)args.mask + a * p.mask.key * (int64_t)check_size(p.type_mask);
    if (a > 0) args.sinks = NULL;
    if (args.len_kv) {
        for (int64_t n = 0; n < p.batch; n++) {
            int64_t rest = whole->args.len_kv[n] - a;
            lengths[n] = (int32_t)(rest < 0 ? 0 : rest > b - a ? b - a : rest);
        }
        args.len_kv = lengths;
    }
    args.out = out;
    args.lse = lse;
    CHECK_OK(attn_forward(context, &p, &args), "forward of a part");
    return check_explain(context, &p);
}

static void law_split(check_random *random) {
    check_case c;
    check_case_random(&c, random, 5e5);
    attn_problem *p = &c.problem;
    enum { MOST = 7 };
    float *out[MOST], *lse[MOST];
    attn_state states[MOST];
    int64_t cuts[MOST + 1] = { 0 }, parts = 1 + check_below(random, MOST);
    p->align = ATTN_TOP_LEFT;
    if (p->offset > 1 << 20 || p->offset < -(1 << 20)) p->offset = 3;
    check_case_arrange(&c, random, check_chance(random, 0.5) ? CHECK_DENSE_BHLD : CHECK_DENSE_BLHD); /* states of one dense size */
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "split");
    for (int64_t n = 1; n < parts; n++) cuts[n] = cuts[n - 1] + check_below(random, p->len_kv - cuts[n - 1] + 1); /* empty parts too */
    cuts[parts] = p->len_kv;
    size_t rows = (size_t)(p->batch * p->heads_q * p->len_q);
    for (int64_t n = 0; n < parts; n++) {
        out[n] = malloc(rows * (size_t)p->dim_v * sizeof(float) + 1);
        lse[n] = malloc(rows * sizeof(float) + 1);
        if (!out[n] || !lse[n]) abort();
        const attn_explanation explanation = run_part(&c, cuts[n], cuts[n + 1], out[n], lse[n]);
        c.weight_error = explanation.weight_error; /* of rows and types alone: the same for all */
        c.chunk = explanation.chunk;
        states[n] = (attn_state){ out[n], lse[n] };
    }
    check_expected expected = check_expect(&c, 100, random);
    check_case_clear(&c);
    CHECK_OK(attn_merge(context, p, states, parts, &c.args), "merge");
    check_case_gaps(&c);
    check_compare(&c, &expected, 2, "split", &worst); /* each part and the merge have a bound of their own */
    for (int64_t n = 0; n < parts; n++) {
        free(out[n]);
        free(lse[n]);
    }
    check_expected_free(&expected);
    check_case_free(&c);
}

/* merge of one state is that state; a state with lse = -inf adds nothing, whatever its out holds; count 0 gives the empty state. */
static void law_identity(check_random *random) {
    check_case c;
    plain(&c, random, ATTN_F32);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_START);
    note(&c, "identity");
    check_case_forward(&c, context);
    check_bits bits = check_bits_take(&c);
    size_t floats = c.out.buffer.size / sizeof(float);
    float *empty_lse = malloc(c.lse.buffer.size), *empty_out = malloc(c.out.buffer.size), *lse = malloc(c.lse.buffer.size);
    if (!empty_lse || !empty_out || !lse) abort();
    for (size_t n = 0; n < c.lse.buffer.size / sizeof(float); n++) empty_lse[n] = -INFINITY;
    for (size_t n = 0; n < floats; n++) empty_out[n] = n % 3 == 0 ? NAN : n % 3 == 1 ? INFINITY : 1e30f;
    memcpy(lse, bits.data + c.out.buffer.size, c.lse.buffer.size);
    attn_state empty = { empty_out, empty_lse }, full = { (const float *)(const void *)bits.data, lse };
    attn_state states[][3] = { { full, empty, empty }, { empty, full, empty }, { empty, empty, full } };
    for (int at = 0; at < 3; at++) {
        check_case_clear(&c);
        CHECK_OK(attn_merge(context, &c.problem, states[at] + at, 3 - at, &c.args), "merge");
        if (at == 0) check_bits_same(&bits, &c, "merge with empty states behind");
        check_case_clear(&c);
        CHECK_OK(attn_merge(context, &c.problem, states[at], 3, &c.args), "merge");
        check_bits_same(&bits, &c, "merge with empty states around");
    }
    check_case_clear(&c);
    CHECK_OK(attn_merge(context, &c.problem, &full, 1, &c.args), "merge");
    check_bits_same(&bits, &c, "merge of one");
    for (int64_t count = 0; count < 2; count++) {
        check_case_clear(&c);
        CHECK_OK(attn_merge(context, &c.problem, count ? &empty : NULL, count, &c.args), "merge");
        for (size_t n = 0; n < floats; n++) {
            float value;
            memcpy(&value, c.out.buffer.data + n * sizeof value, sizeof value);
            CHECK(value == 0, "merge of nothing: out is %g", (double)value);
        }
        CHECK(check_get(&c.lse, 0, 0, 0, 0) == -INFINITY, "merge of nothing: lse is %g", check_get(&c.lse, 0, 0, 0, 0));
    }
    free(empty_lse);
    free(empty_out);
    free(lse);
    check_bits_free(&bits);
    check_case_free(&c);
}

/* ---- values ---- */
static void law_permutation(check_random *random) {
    check_case c;
    plain(&c, random, CHECK_PICK(random, types));
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "permutation");
    check_expected expected = check_expect(&c, 60, random);
    forward_and_compare(&c, &expected, 1, "in order");
    for (int64_t j = c.problem.len_kv - 1; j > 0; j--) {
        int64_t other = check_below(random, j + 1);
        for (int64_t b = 0; b < c.problem.batch; b++) {
            for (int64_t g = 0; g < c.problem.heads_kv; g++) {
                for (int64_t e = 0; e < c.problem.dim_v; e++) {
                    double k = check_get(&c.k, b, g, j, e), v = check_get(&c.v, b, g, j, e);
                    check_set(&c.k, b, g, j, e, check_get(&c.k, b, g, other, e));
                    check_set(&c.v, b, g, j, e, check_get(&c.v, b, g, other, e));
                    check_set(&c.k, b, g, other, e, k);
                    check_set(&c.v, b, g, other, e, v);
                }
            }
        }
    }
    forward_and_compare(&c, &expected, 1, "permuted");
    check_expected_free(&expected);
    check_case_free(&c);
}

/* Equal values come out unchanged: exactly in 16 bits, to the accumulation's error in f32, to that of rounded weights in fast; any values
 * leave within their range. */
static void law_range(check_random *random, bool equal) {
    check_case c;
    plain(&c, random, CHECK_PICK(random, types));
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, equal ? "equal values" : "range of values");
    const attn_problem *p = &c.problem;
    double value = check_round(p->type_v, 3 * check_normal(random)), low = value, high = value;
    if (!equal) {
        low = 1;
        high = 1 + check_uniform(random, 0, 2);
    }
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t g = 0; g < p->heads_kv; g++)
            for (int64_t j = 0; j < p->len_kv; j++)
                for (int64_t e = 0; e < p->dim_v; e++) check_set(&c.v, b, g, j, e, check_uniform(random, low, high));
    low = check_round(p->type_v, low);
    high = check_round(p->type_v, high);
    double slack = p->type_out == ATTN_F32 ? 0x1p-24 * fabs(high) * (9 + (double)p->len_kv / 1024) : 0;
    bool within = true;
    check_case_forward(&c, context);
    if (c.weight_error > 0) slack += c.weight_error * fabs(high) + 0.5 * check_ulp(p->type_out, high);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < p->len_q && within; i++) {
                for (int64_t e = 0; e < p->dim_v && within; e++) {
                    double out = check_get(&c.out, b, h, i, e);
                    within = out >= low - slack && out <= high + slack;
                    CHECK(within, "out[%d][%d][%d][%d] %.9g of values %.9g to %.9g", (int)b, (int)h, (int)i, (int)e, out, low, high);
                }
            }
        }
    }
    check_case_free(&c);
}

/* A constant added to a row's scores moves lse by it and leaves out. With q = 0 any finite constant will do, the largest included. */
static void law_constant(check_random *random, bool extreme) {
    static const double constants[] = { 1e4, -1e4, 3e38, -3e38, 6e4, -6e4 };
    check_case c;
    plain(&c, random, CHECK_PICK(random, types));
    attn_problem *p = &c.problem;
    p->type_mask = CHECK_PICK(random, types);
    p->mask.row = 1; /* one entry a row, broadcast along keys, heads and batch */
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, extreme ? "extreme constant" : "constant");
    for (int64_t i = 0; i < p->len_q; i++) check_set(&c.mask, 0, 0, i, 0, 0);
    for (int64_t n = 0; extreme && n < p->batch * p->heads_q * p->len_q * p->dim_qk; n++) {
        memset(c.q.base + n * (int64_t)check_size(p->type_q), 0, check_size(p->type_q));
    }
    check_expected expected = check_expect(&c, 60, random);
    double *shift = malloc((size_t)p->len_q * sizeof *shift);
    if (!shift) abort();
    for (int64_t i = 0; i < p->len_q; i++) {
        double wanted = extreme ? (check_chance(random, 0.3) ? check_lowest(p->type_mask) : CHECK_PICK(random, constants))
                                : check_uniform(random, -200, 200);
        check_set(&c.mask, 0, 0, i, 0, wanted);
        shift[i] = check_get(&c.mask, 0, 0, i, 0);
        if (isinf(shift[i])) check_set(&c.mask, 0, 0, i, 0, shift[i] = -check_lowest(p->type_mask));
    }
    for (int64_t n = 0; n < expected.count; n++) {
        expected.rows[n].lse += shift[expected.rows[n].i];
        expected.rows[n].l_lse += fabs(shift[expected.rows[n].i]);
        if (!extreme) expected.rows[n].l += fabs(shift[expected.rows[n].i]);
    }
    forward_and_compare(&c, &expected, 1, "constant");
    free(shift);
    check_expected_free(&expected);
    check_case_free(&c);
}

/* (-scale) and (-q) are the same scores, bit for bit. */
static void law_sign(check_random *random) {
    check_case a, b;
    check_random again = *random;
    attn_type type = CHECK_PICK(random, types);
    (void)CHECK_PICK(&again, types);
    plain(&a, random, type);
    plain(&b, &again, type);
    check_case_build(&a, random, CHECK_NORMAL, CHECK_AT_END);
    check_case_build(&b, &again, CHECK_NORMAL, CHECK_AT_END);
    note(&a, "sign");
    const attn_problem *p = &a.problem;
    b.problem.scale = -p->scale;
    for (int64_t n = 0; n < p->batch; n++)
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < p->len_q; i++)
                for (int64_t e = 0; e < p->dim_qk; e++) check_set(&b.q, n, h, i, e, -check_get(&b.q, n, h, i, e));
    check_case_forward(&a, context);
    check_case_forward(&b, context);
    expect_same(&a, &b, "negative scale");
    check_case_free(&a);
    check_case_free(&b);
}

/* ---- the same said in another way: the same bits ---- */
typedef enum saying { WINDOW, TRUE_MASK, ZERO_MASK, LAYOUT, FULL_LENGTHS, OFFSET, SAYINGS } saying;
static const char *const saying_names[] = { "window of all keys", "mask of true",        "mask of 0", "layout",
                                            "full lengths",       "offset for alignment" };

static bool broadcasts(const attn_problem *p) {
    const attn_strides *strides[] = { &p->q, &p->k, &p->v };
    for (int n = 0; n < 3; n++)
        if (!strides[n]->batch || !strides[n]->head || !strides[n]->row) return true;
    return false;
}

/* Changes b, which is as a was, into another way to say it. What needs its tensors is done by say_after. */
static void say_before(check_case *b, check_random *random, saying what) {
    attn_problem *p = &b->problem;
    switch (what) {
    case WINDOW:
        p->left = p->len_kv + p->len_q + check_below(random, 3);
        break;
    case TRUE_MASK:
        p->type_mask = ATTN_BOOL;
        break;
    case ZERO_MASK:
        p->type_mask = CHECK_PICK(random, types);
        break;
    case OFFSET:
        p->align = ATTN_TOP_LEFT;
        p->offset = p->len_kv - p->len_q;
        break;
    case LAYOUT:
        do check_case_arrange(b, random, check_chance(random, 0.5) ? CHECK_DENSE_BLHD : CHECK_STRIDED);
        while (broadcasts(p));
        break;
    default:
        break;
    }
    if (what == TRUE_MASK || what == ZERO_MASK) check_case_arrange_mask(b, random);
}

static void say_after(check_case *b, saying what, int32_t *lens_q, int32_t *lens_kv) {
    const attn_problem *p = &b->problem;
    if (what == TRUE_MASK) memset(b->mask.buffer.data, 1, b->mask.buffer.size);
    if (what == ZERO_MASK) memset(b->mask.buffer.data, 0, b->mask.buffer.size);
    if (what != FULL_LENGTHS) return;
    for (int64_t n = 0; n < p->batch; n++) {
        lens_q[n] = (int32_t)p->len_q;
        lens_kv[n] = (int32_t)p->len_kv;
    }
    b->args.len_q = lens_q;
    b->args.len_kv = lens_kv;
}

static void law_saying(check_random *random, saying what) {
    check_case a, b;
    attn_type type = CHECK_PICK(random, types);
    int32_t lens_q[16], lens_kv[16];
    plain(&a, random, type);
    if (what == OFFSET || check_chance(random, 0.5)) a.problem.right = check_below(random, 3);
    if (what != WINDOW && check_chance(random, 0.3)) a.problem.left = 40;
    if (what == OFFSET || check_chance(random, 0.5)) a.problem.align = ATTN_BOTTOM_RIGHT;
    b = a;
    say_before(&b, random, what);
    check_random again = *random; /* the same values in both */
    check_case_build(&a, random, CHECK_NORMAL, CHECK_AT_END);
    check_case_build(&b, &again, CHECK_NORMAL, CHECK_AT_START);
    say_after(&b, what, lens_q, lens_kv);
    check_case_forward(&a, context);
    note(&b, saying_names[what]);
    check_case_forward(&b, context);
    expect_same(&a, &b, saying_names[what]);
    check_case_free(&a);
    check_case_free(&b);
}

/* A band, the bool mask that hides the same, and the additive mask of 0 and -inf that does. */
static void law_band_mask(check_random *random) {
    check_case c;
    plain(&c, random, CHECK_PICK(random, types));
    attn_problem *p = &c.problem;
    p->align = check_chance(random, 0.5) ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
    p->right = check_below(random, 4);
    if (check_chance(random, 0.6)) p->left = check_below(random, 100);
    attn_problem banded = *p;
    p->type_mask = check_chance(random, 0.5) ? ATTN_BOOL : CHECK_PICK(random, types);
    p->mask = (attn_mask_strides){ 0, 0, p->len_kv + 1, 1 };
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "band as mask");
    for (int64_t i = 0; i < p->len_q; i++) {
        for (int64_t j = 0; j < p->len_kv; j++) {
            bool sees = check_in_band(&c, 0, i, j);
            check_set(&c.mask, 0, 0, i, j, p->type_mask == ATTN_BOOL ? sees : sees ? 0 : -INFINITY);
        }
    }
    check_expected expected = check_expect(&c, 60, random);
    p->left = p->right = ATTN_UNBOUNDED;
    forward_and_compare(&c, &expected, 1, "mask");
    attn_args masked = c.args;
    *p = banded;
    c.args.mask = NULL;
    forward_and_compare(&c, &expected, 1, "band");
    c.args = masked;
    check_expected_free(&expected);
    check_case_free(&c);
}

/* Grouped heads are key heads shared by stride 0. */
static void law_groups(check_random *random) {
    check_case c;
    plain(&c, random, CHECK_PICK(random, types));
    attn_problem *p = &c.problem;
    p->heads_kv = 1;
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "groups");
    check_expected expected = check_expect(&c, 60, random);
    forward_and_compare(&c, &expected, 1, "grouped");
    p->heads_kv = p->heads_q;
    p->k.head = p->v.head = 0;
    forward_and_compare(&c, &expected, 1, "shared by stride 0");
    check_expected_free(&expected);
    check_case_free(&c);
}

/* A sink of -inf is no sink, for rows that see nothing too. */
static void law_no_sink(check_random *random) {
    check_case c;
    plain(&c, random, CHECK_PICK(random, types));
    c.problem.right = 0;
    c.problem.offset = -2; /* the first rows see nothing */
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "no sink");
    float *sinks = malloc((size_t)c.problem.heads_q * sizeof *sinks);
    if (!sinks) abort();
    for (int64_t h = 0; h < c.problem.heads_q; h++) sinks[h] = -INFINITY;
    check_expected expected = check_expect(&c, 60, random);
    c.args.sinks = sinks;
    forward_and_compare(&c, &expected, 1, "sink of -inf");
    free(sinks);
    check_expected_free(&expected);
    check_case_free(&c);
}

static void all_laws(uint64_t first, int count) {
    for (int n = 0; n < count; n++) {
        check_seed = first + (uint64_t)n;
        check_random random = check_random_from(check_seed);
        law_split(&random);
        law_identity(&random);
        law_permutation(&random);
        law_range(&random, true);
        law_range(&random, false);
        law_constant(&random, false);
        law_constant(&random, true);
        law_sign(&random);
        for (int what = 0; what < SAYINGS; what++) law_saying(&random, (saying)what);
        law_band_mask(&random);
        law_groups(&random);
        law_no_sink(&random);
    }
}

int main(int argc, char **argv) {
    char isas[CHECK_ISAS][16];
    check_begin("check_laws", argc, argv, 1);
    int isa_count = check_isas(isas);
    uint64_t first = check_seed;
    for (int n = 0; n < 2 * isa_count; n++) {
        const bool fast = n % 2;
        if (fast && !check_rounds(isas[n / 2])) continue; /* exact again */
        check_precision = fast ? ATTN_FAST : ATTN_EXACT;
        snprintf(isa, sizeof isa, "%.15s%s", isas[n / 2], fast ? " fast" : "");
        context = check_open_serial(isas[n / 2], 2, 0, 0);
        worst = (check_worst){ 0 };
        all_laws(first, check_count(20));
        printf("%-15s worst error/bound %.3f, lse %.3f\n", isa, worst.ratio, worst.lse_ratio);
        attn_close(context);
    }
    return check_end();
}
