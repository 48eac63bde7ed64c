/* check_ladder.c: every rung against the definition in double (oracle.c): the reference device, then each ISA, exact and, where that rounds
 * weights, fast, over sweeps of one size at a time and over random problems. Prints the worst error of each as a share of the bound.
 * `check_ladder SEED 1` repeats one random problem. */
#include "harness.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FORMS = 4, RUNGS = 2 * CHECK_ISAS + 1 };
/* One rung: the reference, or an ISA and precision in several forms (threads, passes, chunk) that cases take in turn. */
typedef struct rung {
    char name[24];
    bool fast;
    attn_context *contexts[FORMS];
    check_worst worst, normal; /* of all cases; of those with normal inputs, for the share of correctly rounded results */
    double relative;           /* of compare_with_peers */
} rung;
static rung rungs[RUNGS];
static int rung_count;

static void add_rung(const char *isa, attn_precision precision) {
    rung *r = &rungs[rung_count++];
    r->fast = precision == ATTN_FAST;
    snprintf(r->name, sizeof r->name, "%.15s%s", isa, r->fast ? " fast" : "");
    check_precision = precision;
    r->contexts[0] = check_open(isa, 1, 0, 0);
    r->contexts[1] = check_open_serial(isa, 2, 2, 0);
    r->contexts[2] = check_open_serial(isa, 3, 0, 100);
    r->contexts[3] = check_open(isa, 1, 1, 0);
    check_precision = ATTN_EXACT;
}

static void open_rungs(void) {
    char isas[CHECK_ISAS][16];
    int count = check_isas(isas);
    snprintf(rungs[0].name, sizeof rungs[0].name, "reference");
    for (int form = 0; form < FORMS; form++) rungs[0].contexts[form] = form == 0 ? check_open_reference() : rungs[0].contexts[0];
    rung_count = 1;
    for (int n = 0; n < count; n++) {
        add_rung(isas[n], ATTN_EXACT);
        if (check_rounds(isas[n])) add_rung(isas[n], ATTN_FAST);
    }
}

static void close_rungs(void) {
    for (int n = 0; n < rung_count; n++)
        for (int form = 0; form < (n == 0 ? 1 : FORMS); form++) attn_close(rungs[n].contexts[form]);
}

/* Builds the case, works out what is expected once, and takes it up the ladder; on the first bad rung it stops: those above would only
 * repeat it. */
static void climb(check_case *c, check_random *random, check_values values) {
    check_side side = check_chance(random, 0.5) ? CHECK_AT_END : CHECK_AT_START;
    int form = (int)check_below(random, FORMS);
    check_case_build(c, random, values, side);
    check_case_note(c, "climb");
    check_expected expected = check_expect(c, 40, random);
    for (int n = 0; n < rung_count; n++) {
        int before = check_failures();
        if (rungs[n].fast && !(check_explain(rungs[n].contexts[form], &c->problem).weight_error > 0)) continue; /* the exact rung again */
        check_case_forward(c, rungs[n].contexts[form]);
        CHECK(rungs[n].fast || c->weight_error == 0, "%s: weight_error %g", rungs[n].name, c->weight_error);
        check_compare(c, &expected, 1, rungs[n].name, &rungs[n].worst);
        if (values == CHECK_NORMAL) check_compare(c, &expected, 1, rungs[n].name, &rungs[n].normal);
        if (check_failures() > before) break;
    }
    check_expected_free(&expected);
    check_case_free(c);
}

static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };

/* ---- sweeps: one size at a time over all that matter, the others small ---- */
static void sweep_dims(check_random *random) {
    static const int64_t dims[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,  13,  14,  15,  16,  17,  18,  19, 20,
                                    24, 31, 32, 33, 40, 63, 64, 65, 72, 80, 96, 112, 127, 128, 129, 192, 256, 320, 512 };
    static const int64_t pairs[][2] = { { 576, 512 }, { 16, 96 }, { 96, 16 }, { 192, 128 } };
    check_case c;
    for (size_t n = 0; n < sizeof dims / sizeof *dims; n++) {
        for (int t = 0; t < 3; t++) {
            check_case_init(&c, types[t], 1, 2, 1, t == 0 ? 17 : 1 + (int64_t)n % 3, 67, dims[n]);
            climb(&c, random, CHECK_NORMAL);
        }
    }
    for (size_t n = 0; n < sizeof pairs / sizeof *pairs; n++) {
        for (int64_t len = 1; len < 40; len += 19) {
            check_case_init(&c, types[n % 3], 1, 4, 2, len, 131, pairs[n][0]);
            c.problem.dim_v = pairs[n][1];
            check_case_arrange(&c, random, n % 2 ? CHECK_DENSE_BHLD : CHECK_DENSE_BLHD);
            climb(&c, random, CHECK_NORMAL);
        }
    }
}

static void sweep_lengths(check_random *random) {
    static const int64_t lens_q[] = { 0, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129 };
    static const int64_t lens_kv[] = { 0, 1, 2, 15, 16, 17, 31, 32, 33, 127, 128, 129, 511, 512, 513, 1023, 1024, 1025, 1500 };
    check_case c;
    for (size_t n = 0; n < sizeof lens_q / sizeof *lens_q; n++) {
        for (size_t m = 0; m < sizeof lens_kv / sizeof *lens_kv; m++) {
            check_case_init(&c, types[(n + m) % 3], 1, 2, 1 + (int64_t)(n + m) % 2, lens_q[n], lens_kv[m], 8 + (int64_t)(n % 2) * 8);
            if ((n + m) % 3 == 1) c.problem.right = 0;
            if ((n + m) % 6 == 1) c.problem.align = ATTN_BOTTOM_RIGHT;
            climb(&c, random, CHECK_NORMAL);
        }
    }
}

static void sweep_groups(check_random *random) {
    static const int64_t groups[] = { 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33 };
    check_case c;
    for (size_t n = 0; n < sizeof groups / sizeof *groups; n++) {
        for (int64_t len_q = 1; len_q <= 9; len_q += 4) {
            check_case_init(&c, types[n % 3], 2, groups[n] * 2, 2, len_q, 300, 32);
            c.problem.right = len_q == 5 ? 0 : ATTN_UNBOUNDED;
            c.problem.align = ATTN_BOTTOM_RIGHT;
            climb(&c, random, CHECK_NORMAL);
        }
    }
}

static void sweep_types(check_random *random) {
    check_case c;
    for (int n = 0; n < 81; n++) {
        for (int64_t len_q = 1; len_q <= 20; len_q += 19) {
            check_case_init(&c, types[n % 3], 1, 4, 2, len_q, 90, 40);
            c.problem.type_k = types[n / 3 % 3];
            c.problem.type_v = types[n / 9 % 3];
            c.problem.type_out = types[n / 27];
            climb(&c, random, CHECK_NORMAL);
        }
    }
}

/* The sums where float32 loses most if it is not careful: large logits; many values of one sign, or all the same; many magnitudes;
 * subnormal values. */
static void sweep_values(check_random *random) {
    static const check_values values[] = { CHECK_LARGE, CHECK_POSITIVE, CHECK_WIDE, CHECK_TINY, CHECK_LEVEL };
    static const int64_t lens_kv[] = { 100, 1500, 5000 };
    check_case c;
    for (int n = 0; n < 5; n++) {
        for (int m = 0; m < 9; m++) {
            for (int64_t len_q = 1; len_q <= 33; len_q += 16) {
                check_case_init(&c, types[m / 3], 1, 2, 1, len_q, lens_kv[m % 3], 64);
                climb(&c, random, values[n]);
            }
        }
    }
}

/* bf16 on normal inputs and hundreds of keys, where PyTorch, which rounds weights too, errs by up to 2.3e-3 of the largest output. Fast
 * must be no worse, though its bound is wider. The output is float32: what rounding it to bf16 costs depends on where in its power of two
 * the largest output happens to lie. */
static void compare_with_peers(check_random *random) {
    static const double theirs = 2.3e-3;
    static const int64_t shapes[][5] = { { 8, 2, 200, 2048, 128 }, { 2, 2, 1024, 1024, 64 }, { 4, 4, 512, 512, 80 } };
    check_case c;
    for (int m = 0; m < 6; m++) {
        const int64_t *shape = shapes[m % 3];
        check_case_init(&c, ATTN_BF16, 1, shape[0], shape[1], shape[2], shape[3], shape[4]);
        c.problem.type_out = ATTN_F32;
        if (m % 2) c.problem.right = 0, c.problem.align = ATTN_BOTTOM_RIGHT;
        check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
        check_case_note(&c, "peers");
        check_expected expected = check_expect(&c, 100, random);
        for (int n = 1; n < rung_count; n++) {
            if (!rungs[n].fast) continue;
            check_worst one = { 0 };
            check_case_forward(&c, rungs[n].contexts[0]);
            check_compare(&c, &expected, 1, rungs[n].name, &one);
            CHECK(one.relative <= theirs, "%s: error %.3g of the largest output", rungs[n].name, one.relative);
            rungs[n].relative = fmax(rungs[n].relative, one.relative);
        }
        check_expected_free(&expected);
        check_case_free(&c);
    }
}

/* Level values, where all roundings of folding have one sign: chunks shorter than a block fold more often, and the bound counts that. */
static void sweep_chunks(check_random *random) {
    static const int64_t chunks[] = { 1, 7, 64, 100, 300 };
    for (int m = 0; m < 10; m++) {
        check_case c;
        check_case_init(&c, types[m % 3], 1, 2, 1, m % 2 ? 1 : 70, 4000, 16);
        c.problem.type_out = ATTN_F32;
        check_case_build(&c, random, CHECK_LEVEL, CHECK_AT_END);
        check_case_note(&c, "chunks");
        check_expected expected = check_expect(&c, 20, random);
        for (int n = 1; n < rung_count; n++) {
            if (rungs[n].fast) continue;
            attn_context *context = check_open_serial(rungs[n].name, 2, 1 + m % 2, chunks[m / 2]);
            check_case_forward(&c, context);
            check_compare(&c, &expected, 1, rungs[n].name, &rungs[n].worst);
            attn_close(context);
        }
        check_expected_free(&expected);
        check_case_free(&c);
    }
}

static void random_cases(void) {
    static const check_values values[] = { CHECK_NORMAL,   CHECK_NORMAL, CHECK_NORMAL, CHECK_LARGE,
                                           CHECK_POSITIVE, CHECK_WIDE,   CHECK_TINY,   CHECK_LEVEL };
    uint64_t first = check_seed;
    int count = check_count(700);
    for (int n = 0; n < count; n++) {
        check_seed = first + (uint64_t)n;
        check_random random = check_random_from(check_seed);
        check_case c;
        check_case_random(&c, &random, check_chance(&random, 0.1) ? 2e7 : 3e6);
        climb(&c, &random, CHECK_PICK(&random, values));
    }
}

static void report(void) {
    for (int n = 0; n < rung_count; n++) {
        const check_worst *w = &rungs[n].worst, *normal = &rungs[n].normal;
        double share = normal->elements ? (double)normal->rounded / (double)normal->elements : 1;
        printf("%-15s worst error/bound %.3f at [%d][%d][%d][%d] of seed %llu; lse %.3f; correctly rounded 16-bit results %.3f %%\n",
               rungs[n].name, w->ratio, (int)w->b, (int)w->h, (int)w->i, (int)w->e, (unsigned long long)w->seed, w->lse_ratio, 100 * share);
        if (rungs[n].relative > 0) printf("%-15s error %.2e of the largest output\n", "", rungs[n].relative);
        /* Rounded weights leave fewer outputs correctly rounded, as they may: compare_with_peers and the bound are fast's rules. */
        CHECK(rungs[n].fast || share >= 0.99 || normal->elements < 10000, "%s: correctly rounded: %.3f %%", rungs[n].name, 100 * share);
    }
}

int main(int argc, char **argv) {
    check_begin("check_ladder", argc, argv, 1000);
    open_rungs();
    if (argc < 3) {
        check_random random = check_random_from(check_seed);
        sweep_dims(&random);
        sweep_lengths(&random);
        sweep_groups(&random);
        sweep_types(&random);
        sweep_values(&random);
        compare_with_peers(&random);
        sweep_chunks(&random);
    }
    random_cases();
    report();
    close_rungs();
    return check_end();
}
