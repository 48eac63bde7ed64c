/* cuda.h: what the files of the CUDA plugin share: a call as kernels see it, the states that pass between them, the plan, and the kernels'
 * launchers. */
#ifndef ATTN_CUDA_H
#define ATTN_CUDA_H
extern "C" {
#include "../device.h"
}
#include <cuda_runtime.h>

constexpr int64_t ATTN_CUDA_CHUNK = 512; /* keys whose state begins anew and is folded into the row's, in order */

/* A call by value: what a kernel gets. */
struct attn_cuda_call {
    attn_problem p;
    attn_args a;
};

/* Float32 states of chunks in the workspace, [batch][head][chunk][row]: o holds dim_v numbers a row. */
struct attn_cuda_states {
    float *m, *l, *o;
    int64_t chunk, chunks;
};

enum attn_cuda_way { ATTN_CUDA_GENERAL, ATTN_CUDA_DECODE, ATTN_CUDA_PREFILL };

struct attn_cuda_plan {
    attn_cuda_way way;
    int passes;
    int64_t chunk, chunks, rows, jobs;
    size_t workspace;
    double weight_error;
    const char *kernel, *reason;
    const char *slow; /* why not a faster kernel, or NULL */
};

/* A GPU that a context is open on. */
struct attn_cuda_unit {
    int index, processors, major;
    bool fast, general; /* options.precision, options.isa */
    int64_t forced_chunk;
    int forced_passes;
    char isa[16];
};

attn_cuda_plan attn_cuda_plan_of(const attn_cuda_unit *unit, const attn_problem *problem);
/* For arguments that the plan's kernel cannot take: the general kernel in one pass, which needs no workspace. */
attn_cuda_plan attn_cuda_plan_without(const attn_cuda_unit *unit, const attn_problem *problem);
attn_cuda_states attn_cuda_states_of(const attn_cuda_plan *plan, const attn_problem *problem, void *workspace);

/* Bytes. */
size_t attn_cuda_decode_workspace(const attn_cuda_plan *plan, const attn_problem *problem);
size_t attn_cuda_prefill_workspace(const attn_problem *problem);

/* These start work in args->stream, on the current device. */
cudaError_t attn_cuda_general(const attn_cuda_plan *plan, const attn_cuda_call *call);
cudaError_t attn_cuda_decode(const attn_cuda_plan *plan, const attn_cuda_unit *unit, const attn_cuda_call *call);
cudaError_t attn_cuda_prefill(const attn_cuda_unit *unit, const attn_cuda_call *call);
cudaError_t attn_cuda_merge(const attn_cuda_call *call, const attn_state *states, int64_t count);
cudaError_t attn_cuda_measure(const attn_cuda_unit *unit, attn_ceiling ceiling, double *per_second);
#endif
