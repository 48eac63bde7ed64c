/* device.h: for checks of the CUDA device: problems, one for each way through its kernels, in the GPU's memory with margins that show stray
 * writes. Everything by CUDA itself: what attn_alloc and attn_copy do is not taken for granted. */
#ifndef CHECK_CUDA_DEVICE_H
#define CHECK_CUDA_DEVICE_H
#include "attn/attn.h"
#include "harness.h"
#include <cuda.h>
#include <cuda_runtime_api.h>

#define CHECK_CUDA(call)                                                                                                                   \
    do {                                                                                                                                   \
        const cudaError_t check_error_ = (call);                                                                                           \
        CHECK(check_error_ == cudaSuccess, "%s", cudaGetErrorString(check_error_));                                                        \
    } while (0)

typedef struct kind { /* a problem of the list, and the kernel that Hopper has for it */
    const char *name, *kernel;
    attn_type type;
    int64_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
    int64_t left;
    bool causal, lengths, masked, sinks, slopes;
} kind;
extern const kind device_kinds[];
extern const int device_kinds_count;

enum { DEVICE_TENSORS = 11, DEVICE_MARGIN = 512 };

typedef struct tensor {
    unsigned char *memory; /* [DEVICE_MARGIN | size | DEVICE_MARGIN] */
    size_t size;
} tensor;

typedef struct calling { /* one problem in memory */
    const kind *kind;
    attn_context *context;
    attn_problem problem;
    attn_args args;
    tensor tensors[DEVICE_TENSORS]; /* of which out, lse and workspace come first */
    int count;
} calling;
enum { DEVICE_OUT, DEVICE_LSE, DEVICE_WORKSPACE };

typedef struct results {
    unsigned char *bytes; /* out, then lse */
    size_t size;
} results;

/* NULL where there is no driver or no GPU: says so. */
attn_context *device_open(attn_precision precision, int passes);
/* Random numbers by check_seed; a workspace of the exact size. */
void device_make(calling *c, attn_context *context, const kind *kind);
void device_free(calling *c);
/* Fills out, lse and workspace with NaN, in the stream. */
void device_spoil(const calling *c, cudaStream_t stream);
/* device_spoil, then attn_forward, in the stream. */
void device_start(const calling *c, cudaStream_t stream);
/* When all is done: what out and lse hold; and that the margins are whole. */
results device_results(const calling *c);
/* That out and lse hold just these bits. */
void device_compare(const calling *c, const results *want, const char *what);
/* device_start and device_results, in the default stream. */
results device_run(const calling *c);
#endif
