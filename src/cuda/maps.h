/* maps.h: a tensor as the copy engine sees it, and a row's limits as Hopper's kernels count them: in 32 bits. */
#ifndef ATTN_MAPS_H
#define ATTN_MAPS_H
#include "cuda.h"
#include <cuda.h>

/* Whether the copy engine can step through a tensor of 16-bit elements with these strides. Its base has to lie at a multiple of 16 bytes.
 */
bool attn_cuda_mappable(const attn_strides *strides, int64_t batch, int64_t heads, int64_t rows, int64_t dim);
bool attn_cuda_aligned(const void *base);

/* Boxes of 64 elements by `box` rows, swizzled. cudaErrorNotSupported where the copy engine will not have such a tensor. */
cudaError_t attn_cuda_map(CUtensorMap *map, attn_type type, const void *base, const attn_strides *strides, int64_t batch, int64_t heads,
                          int64_t rows, int64_t dim, int box);
#endif
