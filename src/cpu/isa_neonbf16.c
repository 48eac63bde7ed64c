/* isa_neonbf16.c: the kernels in Advanced SIMD with bf16 dot products (FEAT_BF16; compiled with their flags): the tile way by bfmmla, for
 * queries and keys that are bf16. Weights stay float32 beside values that are widened, unless 16 bits will do. */
#define ISA neonbf16
#include "vec_neon.h"

#define TILE_PRODUCTS "tile_neon.h"
#include "kernels.tmpl.h"
