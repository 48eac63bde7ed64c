/* isa_amx.c: the kernels in AVX-512 with AMX for the tile way, for f16 and bf16 (compiled with their flags); or, to
 * be checked on any machine, in plain C. */
#define ISA amx
#ifdef ATTN_EMULATE_TILES
#include "vec_scalar.h"

#include "tile_emu.h"
#else
#include "vec_avx512.h"
#endif

#define TILE_PRODUCTS "tile_amx.h"
#include "kernels.tmpl.h"
