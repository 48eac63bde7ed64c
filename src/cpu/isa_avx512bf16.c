/* isa_avx512bf16.c: the kernels in AVX-512 with bf16 dot products (compiled with their flags): the tile way by vdpbf16ps, for queries and
 * keys that are bf16. Weights stay float32 beside values that are widened, unless 16 bits will do. */
#define ISA avx512bf16
#include "vec_avx512.h"

#define TILE_PRODUCTS "tile_vec.h"
#include "kernels.tmpl.h"
