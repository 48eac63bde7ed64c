/* check_range.c: scores at the ends of float32 and in the bend of a softcap, scores of -inf, infinite states, and the memory that small
 * chunks cost: on every ISA, in the thin and the wide kernel, against the definition or the reference device. */
#include "attn/attn.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;
#define CHECK(condition, ...)                                                                                                              \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            printf("%s:%d: failed: %s: ", __FILE__, __LINE__, #condition);                                                                 \
            printf(__VA_ARGS__);                                                                                                           \
            printf("\n");                                                                                                                  \
            failures++;                                                                                                                    \
        }                                                                                                                                  \
    } while (0)

static attn_context *open_passes(attn_device device, const char *isa, int64_t chunk, int passes) {
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *context;
    options.device = device;
    options.isa = isa;
    options.threads = 1;
    options.chunk = chunk;
    options.passes = passes;
    if (attn_open(&context, &options) != ATTN_OK) exit(1);
    return context;
}

static attn_context *open_context(attn_device device, const char *isa, int64_t chunk) { return open_passes(device, isa, chunk, 0); }

static void forward(attn_context *context, const attn_problem *problem, const float *q, const float *k, const float *v, float *out,
                    float *lse) {
    attn_args args = ATTN_ARGS_INIT;
    args.q = q;
    args.k = k;
    args.v = v;
    args.out = out;
    args.lse = lse;
    attn_status status = attn_forward(context, problem, &args);
    CHECK(status == ATTN_OK, "%s", attn_status_text(status));
}

/* One visible key of any score gives its value; with a second of a far lower score too. */
static void large_scores(attn_context *context, const char *isa, int len_q) {
    enum { ROWS = 80 };
    static const float sizes[] = { 1e3f, 2e5f, 3e7f, 1e12f, 1e18f };
    float q[ROWS], k[2], v[2] = { 1.0f, 5.0f }, out[ROWS], lse[ROWS];
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++)
        for (int keys = 1; keys <= 2; keys++) {
            attn_problem problem;
            attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, 1, 1, len_q, keys, 1);
            problem.scale = 0.3f;
            for (int i = 0; i < len_q; i++) q[i] = sizes[n] * (1.0f + (float)i / 7.0f);
            k[0] = sizes[n] * 0.617285f;
            k[1] = -k[0];
            forward(context, &problem, q, k, v, out, lse);
            for (int i = 0; i < len_q; i++) {
                double score = (double)q[i] * k[0] * problem.scale;
                CHECK(out[i] == 1.0f, "%s, %d rows, %d keys, score %g: out[%d] is %g", isa, len_q, keys, score, i, out[i]);
                CHECK(fabs(lse[i] - score) <= score * 0x1p-22, "%s, score %g: lse[%d] is %g", isa, score, i, lse[i]);
            }
        }
}

/* Two keys of nearly the same capped score and opposite values: an error in a score shows undiminished. */
static void capped_scores(attn_context *context, attn_context *reference, const char *isa, int len_q, float target, float softcap) {
    enum { ROWS = 40, DIM = 64 };
    float q[ROWS * DIM], k[2 * DIM], v[2] = { 1.0f, -1.0f }, out[ROWS], want[ROWS], lse[ROWS];
    attn_problem problem;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, 1, 1, len_q, 2, DIM);
    problem.dim_v = 1;
    attn_problem_dense(&problem, ATTN_BHLD);
    problem.softcap = softcap;
    unsigned seed = 1;
    for (int round = 0; round < 50; round++) {
        for (int i = 0; i < len_q * DIM; i++) q[i] = 1.0f + (float)((seed = seed * 1664525u + 1013904223u) >> 20) * 0x1p-13f;
        for (int i = 0; i < DIM; i++) {
            k[i] = target / 8.0f / 1.25f * (1.0f + (float)((seed = seed * 1664525u + 1013904223u) >> 20) * 0x1p-16f);
            if (i % 8 == 0) k[i] = -k[i]; /* not all products of one sign: that is beyond what the bound grants */
            k[DIM + i] = k[i] * (1.0f + (float)((int)((seed = seed * 1664525u + 1013904223u) >> 20) - 2048) * 0x1p-22f);
        }
        forward(context, &problem, q, k, v, out, lse);
        forward(reference, &problem, q, k, v, want, lse);
        for (int i = 0; i < len_q; i++) {
            double size = 0.0;
            for (int d = 0; d < DIM; d++) size += fabs((double)q[i * DIM + d] * k[d]) * problem.scale;
            double bound = 0x1p-24 * (8.0 + 2.0 * size + 1.0), error = fabs((double)out[i] - want[i]);
            CHECK(error <= bound, "%s, softcap %g, score %g: error %g, bound %g", isa, softcap, size, error, bound);
        }
    }
}

/* Keys whose scores are -inf, with values that are not finite: alone they are as good as none, in whichever chunk, and in front of others
 * one pass and two are of one mind about them. */
static void unseen_scores(const char *isa, int len_q, int passes) {
    enum { ROWS = 40, KEYS = 128, CHUNK = 64 };
    float q[ROWS], k[KEYS], v[KEYS], out[ROWS], lse[ROWS];
    attn_context *context = open_passes(ATTN_CPU, isa, CHUNK, passes);
    for (int i = 0; i < ROWS; i++) q[i] = 1.0f;
    for (int seen = KEYS; seen >= CHUNK; seen -= CHUNK) { /* the first key that is seen, if any is */
        attn_problem problem;
        attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, 1, 1, len_q, KEYS, 1);
        for (int j = 0; j < KEYS; j++) {
            k[j] = j < seen ? -INFINITY : 0.0f;
            v[j] = j >= seen ? 3.0f : j % 2 ? NAN : INFINITY;
        }
        forward(context, &problem, q, k, v, out, lse);
        for (int i = 0; i < len_q; i++)
            CHECK(seen == KEYS ? out[i] == 0.0f && lse[i] == -INFINITY : out[i] == 3.0f && fabsf(lse[i] - logf(CHUNK)) < 1e-5f,
                  "%s, %d rows, passes %d, %d keys unseen: out[%d] is %g, lse %g", isa, len_q, passes, seen, i, out[i], lse[i]);
    }
    attn_close(context);
}

static void infinite_states(attn_context *context, const char *isa) {
    const float outs[3] = { 1.0f, 2.0f, NAN }, lses[3] = { INFINITY, 0.0f, -INFINITY };
    attn_state states[3] = { { outs, lses }, { outs + 1, lses + 1 }, { outs + 2, lses + 2 } };
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    float out = NAN, lse = NAN;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 0, 1);
    args.out = &out;
    args.lse = &lse;
    attn_status status = attn_merge(context, &problem, states, 3, &args);
    CHECK(status == ATTN_OK && out == 1.0f && lse == INFINITY, "%s: out %g, lse %g", isa, out, lse);
}

static void small_chunks(const char *isa) {
    attn_context *context = open_context(ATTN_CPU, isa, 33);
    attn_problem problem;
    size_t bytes = 0;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_BF16, 1, 32, 8, 64, 1 << 20, 128);
    attn_status status = attn_workspace(context, &problem, &bytes);
    CHECK(status == ATTN_OK && bytes < (size_t)256 << 20, "%s: %zu bytes", isa, bytes);
    attn_close(context);
}

static void check_isa(const char *isa, attn_context *reference) {
    attn_context *context = open_context(ATTN_CPU, isa, 0);
    static const int rows[] = { 1, 3, 40 };
    for (size_t n = 0; n < sizeof rows / sizeof *rows; n++) {
        large_scores(context, isa, rows[n]);
        capped_scores(context, reference, isa, rows[n], 20.0f, 50.0f);
        capped_scores(context, reference, isa, rows[n], 80.0f, 200.0f);
        capped_scores(context, reference, isa, rows[n], 60.0f, 30.0f);
        unseen_scores(isa, rows[n], 1);
        unseen_scores(isa, rows[n], 2);
    }
    infinite_states(context, isa);
    small_chunks(isa);
    attn_close(context);
}

int main(void) {
    attn_context *context = open_context(ATTN_CPU, NULL, 0), *reference = open_context(ATTN_REFERENCE, NULL, 0);
    attn_description description = ATTN_DESCRIPTION_INIT;
    attn_describe(context, &description);
    char isas[256];
    snprintf(isas, sizeof isas, "%s", description.isas);
    for (char *isa = strtok(isas, " "); isa; isa = strtok(NULL, " ")) check_isa(isa, reference);
    infinite_states(reference, "reference");
    attn_close(context);
    attn_close(reference);
    printf("check_range: %s\n", failures ? "FAILED" : "ok");
    return failures != 0;
}
