/* kernels.tmpl.h: the kernels of one ISA, from its vocabulary. An isa_<name>.c includes the vocabulary, then this; all it exports is the
 * table, so nothing of it runs before the machine was asked what it can do. */
#include "kernels.h"
#include <string.h>

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define IN_MEMORY(x) __asm__("" : "+m"(x))
#if defined __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#define UNROLL_4 _Pragma("clang loop unroll_count(4)")
#define KEEP_LOOP _Pragma("clang loop unroll(disable)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#define UNROLL_4 _Pragma("GCC unroll 4")
#define KEEP_LOOP _Pragma("GCC unroll 1")
#endif

#include "vec_math.h"

/* Terms of a sum, of products or of keys, that are added in one chain before the chains are: chains of 32 products break the error bound
 * on real tensors whose scores are large, chains of 64 keys where all roundings have one sign. */
enum { CHAIN = 16 };

#define T float
#define NAME f32
#define SET 1
#include "products.tmpl.h"
#define T uint16_t
#define NAME f16
#define SET 1
#include "products.tmpl.h"
#define T uint16_t
#define NAME bf16
#define SET 2
#include "products.tmpl.h"

#include "finish.tmpl.h"

#ifdef VEC_DOTS
#include "pairs.tmpl.h"
#endif
#include "attend.tmpl.h"

#ifdef TILE_PRODUCTS
#include TILE_PRODUCTS
#include "tile.tmpl.h"
#endif

#define TABLE_(isa) attn_kernels_##isa
#define TABLE(isa) TABLE_(isa)
#define TEXT_(isa) #isa
#define TEXT(isa) TEXT_(isa)
const attn_kernels TABLE(ISA) = {
    .name = TEXT(ISA),
    .lanes = LANES,
    .tile_rows = TILE,
    .thin_rows = THIN_ROWS,
#ifdef TILE_PRODUCTS
    .tiles = tiles,
    .tile_block = TILE_BLOCK,
    .weight_error = weight_error,
    .begin = tile_begin,
    .end = tile_end,
    .dot_rate = dot_rate,
    .attend = attend_any,
#else
    .attend = attend,
#endif
    .fold = fold,
    .finish = finish,
    .load = load,
    .turn = turn,
    .load_mask = load_mask,
    .fma_rate = fma_rate,
    .read = read,
};
