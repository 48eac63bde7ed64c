/* decode.c: the attention of a decoder's steps on a GPU, in buffers of cudaMalloc, captured once in a CUDA graph and replayed for every
 * step: the number of keys lies in the GPU's memory, and grows between replays. Each step is held against the definition, in double. */
#include <attn/attn.h>
#include <cuda_runtime_api.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS_Q = 32, HEADS_KV = 8, CAPACITY = 4096, DIM = 128, FIRST = 1000, STEPS = 4 }; /* batch 1, one query */
enum { NO_GPU = 77 };                                                                     /* the exit status that test runners skip */

typedef struct buffers {
    uint16_t *q, *k, *v; /* bf16: [HEADS_Q][DIM], [HEADS_KV][CAPACITY][DIM] */
    float *out;          /* [HEADS_Q][DIM] */
    int32_t *len_kv;     /* [1] */
} buffers;

static void must(int good, const char *what, const char *why) {
    if (good) return;
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void cuda(cudaError_t error, const char *what) { must(error == cudaSuccess, what, cudaGetErrorString(error)); }
static void attn(attn_status status, const char *what) { must(status == ATTN_OK, what, attn_status_text(status)); }

static uint16_t *random_bf16(size_t count, uint32_t seed) {
    uint16_t *to = malloc(count * sizeof *to);
    must(to != NULL, "malloc", "no memory");
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        float value = (float)(seed >> 8) / (1 << 23) - 1.0f; /* -1 .. 1 */
        uint32_t word;
        memcpy(&word, &value, sizeof word);
        to[i] = (uint16_t)(word >> 16);
    }
    return to;
}

static void *on_gpu(const void *host, size_t bytes) {
    void *memory;
    cuda(cudaMalloc(&memory, bytes), "cudaMalloc");
    if (host != NULL) cuda(cudaMemcpy(memory, host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
    return memory;
}

static attn_problem problem_of_a_step(void) {
    attn_problem problem;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_BF16, 1, HEADS_Q, HEADS_KV, 1, CAPACITY, DIM);
    problem.type_out = ATTN_F32;
    return problem;
}

static attn_args args_of(const buffers *b) {
    attn_args args = ATTN_ARGS_INIT;
    args.q = b->q, args.k = b->k, args.v = b->v, args.out = b->out, args.len_kv = b->len_kv;
    return args;
}

/* The graph of one step. Its workspace is ours, so that the call takes no memory and waits for nothing. */
static cudaGraphExec_t capture(attn_context *context, const buffers *gpu, cudaStream_t stream, void **workspace) {
    const attn_problem problem = problem_of_a_step();
    attn_args args = args_of(gpu);
    cudaGraph_t graph;
    cudaGraphExec_t step;
    attn(attn_workspace(context, &problem, &args.workspace_size), "attn_workspace");
    args.workspace = *workspace = on_gpu(NULL, args.workspace_size);
    args.stream = stream;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    attn(attn_forward(context, &problem, &args), "attn_forward");
    cuda(cudaStreamEndCapture(stream, &graph), "capture");
    cuda(cudaGraphInstantiate(&step, graph, 0), "cudaGraphInstantiate");
    cuda(cudaGraphDestroy(graph), "cudaGraphDestroy");
    return step;
}

/* The largest difference to what the definition gives; a NaN counts as the largest. */
static double difference(attn_context *reference, buffers *host, const float *found) {
    const attn_problem problem = problem_of_a_step();
    const attn_args args = args_of(host);
    double worst = 0;
    attn(attn_forward(reference, &problem, &args), "the reference");
    for (int i = 0; i < HEADS_Q * DIM; i++) {
        double differs = fabs((double)found[i] - host->out[i]);
        if (!(differs <= worst)) worst = differs;
    }
    return worst;
}

int main(void) {
    static float expected[HEADS_Q * DIM], found[HEADS_Q * DIM];
    int32_t len_kv = FIRST;
    const size_t cache = (size_t)HEADS_KV * CAPACITY * DIM;
    attn_context *context, *reference;
    attn_options options = ATTN_OPTIONS_INIT;
    options.device = ATTN_CUDA;
    attn_status status = attn_open(&context, &options);
    if (status == ATTN_ERROR_PLUGIN || status == ATTN_ERROR_DRIVER) {
        printf("skipped: no CUDA device: %s\n", attn_failure());
        return NO_GPU;
    }
    attn(status, "attn_open");
    options.device = ATTN_REFERENCE;
    attn(attn_open(&reference, &options), "attn_open");

    buffers host = { random_bf16(HEADS_Q * DIM, 1), random_bf16(cache, 2), random_bf16(cache, 3), expected, &len_kv };
    buffers gpu = { on_gpu(host.q, HEADS_Q * DIM * sizeof *gpu.q), on_gpu(host.k, cache * sizeof *gpu.k),
                    on_gpu(host.v, cache * sizeof *gpu.v), on_gpu(NULL, sizeof found), on_gpu(&len_kv, sizeof len_kv) };
    cudaStream_t stream;
    void *workspace;
    cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
    cudaGraphExec_t step = capture(context, &gpu, stream, &workspace);

    bool good = true;
    for (int n = 0; n < STEPS; n++, len_kv += n * 700) {
        cuda(cudaMemcpyAsync(gpu.len_kv, &len_kv, sizeof len_kv, cudaMemcpyHostToDevice, stream), "cudaMemcpyAsync");
        cuda(cudaGraphLaunch(step, stream), "cudaGraphLaunch");
        cuda(cudaMemcpyAsync(found, gpu.out, sizeof found, cudaMemcpyDeviceToHost, stream), "cudaMemcpyAsync");
        cuda(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
        double differs = difference(reference, &host, found);
        good &= differs < 1e-5; /* weights may lose 2^-16, and outputs are about 0.02 */
        printf("%4d keys: out %9.6f %9.6f ..., largest difference to the definition %.1e\n", len_kv, found[0], found[1], differs);
    }
    cuda(cudaGraphExecDestroy(step), "cudaGraphExecDestroy");
    cuda(cudaStreamDestroy(stream), "cudaStreamDestroy");
    void *all[] = { gpu.q, gpu.k, gpu.v, gpu.out, gpu.len_kv, workspace };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) cuda(cudaFree(all[i]), "cudaFree");
    attn_close(context);
    attn_close(reference);
    free(host.q), free(host.k), free(host.v);
    puts(good ? "verified" : "WRONG");
    return good ? 0 : 1;
}
