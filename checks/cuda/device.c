/* device.c: problems in the GPU's memory (device.h). */
#include "device.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SPOILT = CHECK_FILL };

const kind device_kinds[] = {
    { .name = "general",
      .kernel = "general",
      .type = ATTN_F32,
      .batch = 2,
      .heads_q = 4,
      .heads_kv = 2,
      .len_q = 37,
      .len_kv = 1300,
      .dim_qk = 40,
      .dim_v = 24,
      .left = -1,
      .causal = true,
      .lengths = true,
      .masked = true,
      .sinks = true,
      .slopes = true },
    { .name = "general, few rows",
      .kernel = "general",
      .type = ATTN_F16,
      .batch = 2,
      .heads_q = 2,
      .heads_kv = 1,
      .len_q = 1,
      .len_kv = 2500,
      .dim_qk = 72,
      .dim_v = 72,
      .left = -1,
      .masked = true },
    { .name = "decode",
      .kernel = "decode",
      .type = ATTN_BF16,
      .batch = 3,
      .heads_q = 8,
      .heads_kv = 2,
      .len_q = 1,
      .len_kv = 3000,
      .dim_qk = 128,
      .dim_v = 128,
      .left = -1,
      .lengths = true,
      .sinks = true },
    { .name = "decode, four rows",
      .kernel = "decode",
      .type = ATTN_F16,
      .batch = 2,
      .heads_q = 8,
      .heads_kv = 2,
      .len_q = 4,
      .len_kv = 1100,
      .dim_qk = 64,
      .dim_v = 64,
      .left = 900,
      .causal = true,
      .lengths = true },
    { .name = "decode that slopes send to general",
      .kernel = "decode",
      .type = ATTN_BF16,
      .batch = 2,
      .heads_q = 4,
      .heads_kv = 1,
      .len_q = 1,
      .len_kv = 1100,
      .dim_qk = 80,
      .dim_v = 80,
      .left = -1,
      .slopes = true },
    { .name = "prefill 64",
      .kernel = "prefill",
      .type = ATTN_F16,
      .batch = 2,
      .heads_q = 4,
      .heads_kv = 4,
      .len_q = 300,
      .len_kv = 500,
      .dim_qk = 64,
      .dim_v = 64,
      .left = -1,
      .causal = true,
      .sinks = true },
    { .name = "prefill 128",
      .kernel = "prefill",
      .type = ATTN_BF16,
      .batch = 2,
      .heads_q = 4,
      .heads_kv = 2,
      .len_q = 300,
      .len_kv = 700,
      .dim_qk = 128,
      .dim_v = 128,
      .left = -1,
      .causal = true,
      .lengths = true },
    { .name = "prefill 128, a window",
      .kernel = "prefill",
      .type = ATTN_BF16,
      .batch = 1,
      .heads_q = 4,
      .heads_kv = 2,
      .len_q = 520,
      .len_kv = 520,
      .dim_qk = 96,
      .dim_v = 128,
      .left = 130,
      .causal = true },
    { .name = "prefill 256",
      .kernel = "prefill",
      .type = ATTN_BF16,
      .batch = 1,
      .heads_q = 2,
      .heads_kv = 1,
      .len_q = 200,
      .len_kv = 300,
      .dim_qk = 256,
      .dim_v = 256,
      .left = -1 },
};
const int device_kinds_count = sizeof device_kinds / sizeof *device_kinds;

attn_context *device_open(attn_precision precision, int passes) {
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *context;
    options.device = ATTN_CUDA;
    options.precision = precision;
    options.passes = passes;
    const attn_status status = attn_open(&context, &options);
    if (status == ATTN_ERROR_DRIVER) printf("skipped: no CUDA device: %s\n", attn_failure());
    if (status == ATTN_ERROR_DRIVER) return NULL;
    CHECK(status == ATTN_OK, "%s (%s)", attn_status_text(status), attn_failure());
    if (status != ATTN_OK) exit(1);
    return context;
}

/* ---- tensors ---- */
static void *take(calling *c, size_t size) {
    tensor *t = &c->tensors[c->count++];
    t->size = size;
    CHECK_CUDA(cudaMalloc((void **)&t->memory, size + 2 * DEVICE_MARGIN));
    CHECK_CUDA(cudaMemset(t->memory, SPOILT, size + 2 * DEVICE_MARGIN));
    return t->memory + DEVICE_MARGIN;
}

static void *filled(calling *c, const void *from, size_t size) {
    void *to = take(c, size);
    CHECK_CUDA(cudaMemcpy(to, from, size, cudaMemcpyHostToDevice));
    return to;
}

static check_random random_numbers;

static void *numbers(calling *c, attn_type type, int64_t count) {
    const size_t size = check_size(type);
    char *host = malloc((size_t)count * size);
    for (int64_t i = 0; i < count; i++) { check_store(type, host + (size_t)i * size, check_uniform(&random_numbers, -1.0, 1.0)); }
    void *device = filled(c, host, (size_t)count * size);
    free(host);
    return device;
}

/* One key in four is hidden. */
static void *mask(calling *c, int64_t count) {
    unsigned char *host = malloc((size_t)count);
    for (int64_t i = 0; i < count; i++) host[i] = !check_chance(&random_numbers, 0.25);
    void *device = filled(c, host, (size_t)count);
    free(host);
    return device;
}

/* The first sequence is whole, later ones are shorter. */
static void *lengths(calling *c, int64_t batch, int64_t most, int64_t less) {
    int32_t host[16];
    for (int64_t b = 0; b < batch; b++) host[b] = (int32_t)(most - b * less > 1 ? most - b * less : 1);
    return filled(c, host, (size_t)batch * sizeof *host);
}

static void make_problem(attn_problem *p, const kind *k) {
    attn_problem_init(p, ATTN_BHLD, k->type, k->batch, k->heads_q, k->heads_kv, k->len_q, k->len_kv, k->dim_qk);
    p->dim_v = k->dim_v;
    (void)attn_problem_dense(p, ATTN_BHLD);
    p->left = k->left;
    if (k->causal) p->right = 0;
    p->align = ATTN_BOTTOM_RIGHT;
    if (!k->masked) return;
    p->type_mask = ATTN_BOOL;
    p->mask.key = 1;
    p->mask.row = k->len_kv;
}

void device_make(calling *c, attn_context *context, const kind *k) {
    *c = (calling){ .kind = k, .context = context, .args = ATTN_ARGS_INIT };
    make_problem(&c->problem, k);
    random_numbers = check_random_from(check_seed);
    attn_args *a = &c->args;
    size_t workspace = 0;
    CHECK_OK(attn_workspace(context, &c->problem, &workspace), k->name);
    a->out = take(c, (size_t)(k->batch * k->heads_q * k->len_q * k->dim_v) * check_size(k->type));
    a->lse = take(c, (size_t)(k->batch * k->heads_q * k->len_q) * sizeof *a->lse);
    a->workspace = take(c, workspace);
    a->workspace_size = workspace;
    a->q = numbers(c, k->type, k->batch * k->heads_q * k->len_q * k->dim_qk);
    a->k = numbers(c, k->type, k->batch * k->heads_kv * k->len_kv * k->dim_qk);
    a->v = numbers(c, k->type, k->batch * k->heads_kv * k->len_kv * k->dim_v);
    if (k->masked) a->mask = mask(c, k->len_q * k->len_kv);
    if (k->sinks) a->sinks = numbers(c, ATTN_F32, k->heads_q);
    if (k->slopes) a->slopes = numbers(c, ATTN_F32, k->heads_q);
    if (k->lengths) a->len_q = lengths(c, k->batch, k->len_q, 1);
    if (k->lengths) a->len_kv = lengths(c, k->batch, k->len_kv, 333);
}

void device_free(calling *c) {
    for (int i = 0; i < c->count; i++) CHECK_CUDA(cudaFree(c->tensors[i].memory));
    c->count = 0;
}

/* ---- calls ---- */
void device_spoil(const calling *c, cudaStream_t stream) {
    for (int i = DEVICE_OUT; i <= DEVICE_WORKSPACE; i++)
        CHECK_CUDA(cudaMemsetAsync(c->tensors[i].memory + DEVICE_MARGIN, SPOILT, c->tensors[i].size, stream));
}

void device_start(const calling *c, cudaStream_t stream) {
    attn_args args = c->args;
    args.stream = stream;
    device_spoil(c, stream);
    CHECK_OK(attn_forward(c->context, &c->problem, &args), c->kind->name);
}

static void expect_margins(const calling *c) {
    static unsigned char host[DEVICE_MARGIN];
    for (int i = 0; i < c->count; i++)
        for (int side = 0; side < 2; side++) {
            const unsigned char *from = c->tensors[i].memory + (side ? DEVICE_MARGIN + c->tensors[i].size : 0);
            int written = 0;
            CHECK_CUDA(cudaMemcpy(host, from, sizeof host, cudaMemcpyDeviceToHost));
            for (int n = 0; n < DEVICE_MARGIN; n++) written += host[n] != SPOILT;
            CHECK(written == 0, "%s: %d bytes %s tensor %d were written", c->kind->name, written, side ? "behind" : "before", i);
        }
}

results device_results(const calling *c) {
    const size_t out = c->tensors[DEVICE_OUT].size, lse = c->tensors[DEVICE_LSE].size;
    results r = { malloc(out + lse), out + lse };
    CHECK_CUDA(cudaDeviceSynchronize());
    CHECK_CUDA(cudaMemcpy(r.bytes, c->args.out, out, cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(r.bytes + out, c->args.lse, lse, cudaMemcpyDeviceToHost));
    expect_margins(c);
    return r;
}

void device_compare(const calling *c, const results *want, const char *what) {
    results got = device_results(c);
    size_t at = 0;
    while (at < got.size && got.bytes[at] == want->bytes[at]) at++;
    CHECK(at == got.size, "%s: %s: byte %zu of %zu (out has %zu)", c->kind->name, what, at, got.size, c->tensors[DEVICE_OUT].size);
    free(got.bytes);
}

results device_run(const calling *c) {
    device_start(c, NULL);
    return device_results(c);
}
