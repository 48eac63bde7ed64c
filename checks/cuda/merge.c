/* merge.c: merges on the device, against the definition in double: few states and many, states that have seen nothing, infinite ones,
 * results of every type, lengths, and a merge in a graph. */
#include "checks.h"
#include "device.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 2, HEADS = 3, LEN = 5, DIM = 70, ROWS = BATCH * HEADS * LEN, MANY = 450 };

typedef struct given { /* on the host, and the same on the device */
    float *out[MANY], *lse[MANY];
    attn_state device[MANY];
} given;

static void *on_device(const void *host, size_t size) {
    void *device;
    CHECK_CUDA(cudaMalloc(&device, size));
    CHECK_CUDA(cudaMemcpy(device, host, size, cudaMemcpyHostToDevice));
    return device;
}

/* Row 0 sees nothing anywhere; elsewhere one state in four has seen nothing, and its out is NaN. */
static void make(given *s) {
    check_random random = check_random_from(check_seed);
    for (int n = 0; n < MANY; n++) {
        s->out[n] = malloc(ROWS * DIM * sizeof(float));
        s->lse[n] = malloc(ROWS * sizeof(float));
        for (int row = 0; row < ROWS; row++) {
            const bool nothing = row == 0 || check_chance(&random, 0.25);
            s->lse[n][row] = nothing ? -INFINITY : (float)check_uniform(&random, -20.0, 20.0);
            for (int d = 0; d < DIM; d++) s->out[n][row * DIM + d] = nothing ? NAN : (float)check_uniform(&random, -1.0, 1.0);
        }
        s->device[n].out = on_device(s->out[n], ROWS * DIM * sizeof(float));
        s->device[n].lse = on_device(s->lse[n], ROWS * sizeof(float));
    }
}

static void unmake(given *s) {
    for (int n = 0; n < MANY; n++) {
        CHECK_CUDA(cudaFree((void *)(uintptr_t)s->device[n].out));
        CHECK_CUDA(cudaFree((void *)(uintptr_t)s->device[n].lse));
        free(s->out[n]);
        free(s->lse[n]);
    }
}

/* The sum of exp(lse - top), and of that times |out|; the element itself. */
static double merged(const given *s, int count, int row, int d, double *size, double *lse) {
    double top = -INFINITY, sum = 0.0, value = 0.0;
    *size = 0.0;
    for (int n = 0; n < count; n++) top = fmax(top, s->lse[n][row]);
    for (int n = 0; n < count; n++) {
        if (s->lse[n][row] == -INFINITY) continue;
        const double p = exp(s->lse[n][row] - top);
        sum += p, value += p * s->out[n][row * DIM + d], *size += p * fabs(s->out[n][row * DIM + d]);
    }
    *lse = sum > 0.0 ? top + log(sum) : -INFINITY;
    if (sum > 0.0) value /= sum, *size /= sum;
    return value;
}

static void compare(const given *s, int count, attn_type type, const unsigned char *out, const float *lse, const int32_t *len_q) {
    const size_t bytes = check_size(type);
    for (int row = 0; row < ROWS; row++) {
        if (row % LEN >= len_q[row / (HEADS * LEN)]) { /* not written */
            for (size_t i = 0; i < DIM * bytes; i++) CHECK(out[(size_t)row * DIM * bytes + i] == CHECK_FILL, "row %d was written", row);
            continue;
        }
        for (int d = 0; d < DIM; d++) {
            double size, want_lse;
            const double want = merged(s, count, row, d, &size, &want_lse);
            const double got = check_load(type, out + ((size_t)row * DIM + (size_t)d) * bytes);
            const double bound = 0.5 * check_ulp(type, want) + 0x1p-24 * size * (8 + 40 + count / 1024.0);
            CHECK(fabs(got - want) <= bound, "%d states, %s, row %d, %d: %g, not %g", count, check_type_name(type), row, d, got, want);
            CHECK((double)lse[row] == want_lse || fabs(lse[row] - want_lse) <= 0x1p-24 * (8 + 80), "%d states, row %d: lse %g, not %g",
                  count, row, (double)lse[row], want_lse);
        }
    }
}

static void spoil(const attn_args *a, attn_type type, cudaStream_t stream) {
    CHECK_CUDA(cudaMemsetAsync(a->out, CHECK_FILL, ROWS * DIM * check_size(type), stream));
    CHECK_CUDA(cudaMemsetAsync(a->lse, CHECK_FILL, ROWS * sizeof(float), stream));
}

static void one_merge(attn_context *context, const given *s, int count, attn_type type, bool graph) {
    const int32_t len_q[BATCH] = { LEN, LEN - 2 };
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    cudaStream_t stream;
    attn_problem_init(&problem, ATTN_BHLD, type, BATCH, HEADS, HEADS, LEN, 1, DIM);
    CHECK_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    CHECK_CUDA(cudaMalloc(&args.out, ROWS * DIM * check_size(type)));
    CHECK_CUDA(cudaMalloc((void **)&args.lse, ROWS * sizeof(float)));
    args.len_q = on_device(len_q, sizeof len_q);
    args.stream = stream;
    CHECK_OK(attn_reserve(context, &problem), "reserve");
    cudaGraph_t captured;
    cudaGraphExec_t exec;
    spoil(&args, type, stream);
    if (graph) CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    CHECK_OK(attn_merge(context, &problem, s->device, count, &args), "merge");
    if (graph) {
        CHECK_CUDA(cudaStreamEndCapture(stream, &captured));
        CHECK_CUDA(cudaGraphInstantiate(&exec, captured, 0));
        CHECK_CUDA(cudaGraphLaunch(exec, stream));
    }
    CHECK_CUDA(cudaStreamSynchronize(stream));
    if (graph) {
        CHECK_CUDA(cudaGraphExecDestroy(exec));
        CHECK_CUDA(cudaGraphDestroy(captured));
    }
    unsigned char *out = malloc(ROWS * DIM * check_size(type));
    float lse[ROWS];
    CHECK_CUDA(cudaMemcpy(out, args.out, ROWS * DIM * check_size(type), cudaMemcpyDeviceToHost));
    CHECK_CUDA(cudaMemcpy(lse, args.lse, sizeof lse, cudaMemcpyDeviceToHost));
    compare(s, count, type, out, lse, len_q);
    free(out);
    CHECK_CUDA(cudaFree(args.out));
    CHECK_CUDA(cudaFree(args.lse));
    CHECK_CUDA(cudaFree((void *)(uintptr_t)args.len_q));
    CHECK_CUDA(cudaStreamDestroy(stream));
}

static void refuses(attn_context *context, const given *s) {
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, BATCH, HEADS, HEADS, LEN, 1, DIM);
    CHECK_CUDA(cudaMalloc(&args.out, ROWS * DIM * sizeof(float)));
    for (int part = 0; part < 2; part++) {
        attn_state states[2] = { s->device[0], s->device[1] };
        if (part) states[1].lse = s->lse[1];
        if (!part) states[1].out = s->out[1];
        const attn_status status = attn_merge(context, &problem, states, 2, &args);
        CHECK(status == ATTN_ERROR_HOST_POINTER, "a state on the host: %s", attn_status_text(status));
    }
    CHECK_CUDA(cudaFree(args.out));
}

void check_merges(void) {
    static const int counts[] = { 0, 1, 2, 7, 200, 201, MANY };
    attn_context *context = device_open(ATTN_EXACT, 0);
    given *s = malloc(sizeof *s);
    make(s);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        for (attn_type type = ATTN_F32; type <= ATTN_BF16; type++)
            for (int graph = 0; graph < 2; graph++) one_merge(context, s, counts[i], type, graph);
    refuses(context, s);
    unmake(s);
    free(s);
    attn_close(context);
}
