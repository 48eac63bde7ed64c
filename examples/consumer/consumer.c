/* consumer.c: one decode step of a grouped-query model in bf16 with an installed libattn, checked against a plain loop. */
#include <attn/attn.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { HEADS_Q = 8, HEADS_KV = 2, LEN_KV = 300, DIM = 64, GROUP = HEADS_Q / HEADS_KV };

static uint16_t q[HEADS_Q][DIM], k[HEADS_KV][LEN_KV][DIM], v[HEADS_KV][LEN_KV][DIM]; /* bf16, batch 1, len_q 1 */
static float out[HEADS_Q][DIM], lse[HEADS_Q];

static float widen(uint16_t bits) {
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Some values in -1 .. 1, all of them exact in bf16: multiples of 1/64 that have at most 7 bits. */
static void fill(uint16_t *to, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float value = (float)((int)(seed >> 25) - 64) / 64;
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        to[i] = (uint16_t)(word >> 16);
    }
}

/* A NaN counts as the largest. */
static double larger(double a, double b) { return a >= b || isnan(a) ? a : b; }

/* The definition, for one head; returns the largest difference of out and lse. */
static double difference(int h) {
    int g = h / GROUP;
    double sum = 0, worst = 0, expected[DIM] = { 0 };
    for (int j = 0; j < LEN_KV; j++) {
        double score = 0;
        for (int d = 0; d < DIM; d++) score += (double)widen(q[h][d]) * widen(k[g][j][d]);
        double weight = exp(score / sqrt(DIM));
        sum += weight;
        for (int d = 0; d < DIM; d++) expected[d] += weight * widen(v[g][j][d]);
    }
    for (int d = 0; d < DIM; d++) worst = larger(worst, fabs(out[h][d] - expected[d] / sum));
    return larger(worst, fabs(lse[h] - log(sum)));
}

int main(void) {
    fill(&q[0][0], sizeof q / sizeof q[0][0], 1);
    fill(&k[0][0][0], sizeof k / sizeof k[0][0][0], 2);
    fill(&v[0][0][0], sizeof v / sizeof v[0][0][0], 3);

    attn_context *context;
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    attn_status status = attn_open(&context, NULL);
    attn_problem_init(&problem, ATTN_BHLD, ATTN_BF16, 1, HEADS_Q, HEADS_KV, 1, LEN_KV, DIM);
    problem.type_out = ATTN_F32;
    args.q = q;
    args.k = k;
    args.v = v;
    args.out = out;
    args.lse = lse;
    if (status == ATTN_OK) status = attn_forward(context, &problem, &args);
    attn_close(context);
    if (status != ATTN_OK) return fprintf(stderr, "%s\n", attn_status_text(status)), 1;

    double worst = 0;
    for (int h = 0; h < HEADS_Q; h++) {
        printf("head %d: out %9.6f %9.6f ... lse %9.6f\n", h, out[h][0], out[h][1], lse[h]);
        worst = larger(worst, difference(h));
    }
    printf("libattn %s: largest difference from the definition %.1e\n", attn_version(), worst);
    return worst < 1e-5 ? 0 : 1;
}
