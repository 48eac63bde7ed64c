/* tile.h: the scratch of the tile way: 16-bit parts of queries, keys, weights and values, laid out for products of matrices.
 *
 * A product is C[row][column] = sum over k of A[row][k] * B[k][column] in float32, with A and B in bf16. A lies in tiles of 16 rows by 32
 * k, [row tile][k tile][16][32]; B in panels of 16 columns, pairs of k side by side, [panel][k / 2][16][2], so that 16 pairs of it are a
 * tile as well. Both are padded with zeros to whole tiles.
 *
 *   scores    A = queries [row][dim]     B = keys, a column each   k = dim
 *   values    A = weights [row][key]     B = values, [key][dim]    k = key
 *
 * A number that needs more than bf16 holds is a sum of parts, the largest first: f16 has two, f32 three, all exact. */
#ifndef ATTN_TILE_H
#define ATTN_TILE_H
#include "kernels.h"

enum {
    ATTN_STRIP = 32,     /* rows that go from scores to values together */
    ATTN_TILE_PARTS = 3, /* of a number, at most */
    ATTN_TILE_BYTES = 1024
};

typedef struct attn_tile_scratch {
    uint16_t *k, *v; /* [part] B: keys and values of the block */
    uint16_t *p;     /* [part] A: weights of a strip */
    uint16_t *rows;  /* 16 rows split into parts, before they are laid out */
    size_t size;     /* bytes of all */
} attn_tile_scratch;

static inline int64_t attn_tile_round(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static inline int attn_tile_parts(attn_type type) { return type == ATTN_BF16 ? 1 : type == ATTN_F16 ? 2 : 3; }

/* 16-bit numbers of one part of the keys, of the values, of the weights */
static inline int64_t attn_tile_k_part(int64_t dim_qk) { return ATTN_BLOCK * attn_tile_round(dim_qk, 32); }
static inline int64_t attn_tile_v_part(int64_t dim_v) { return ATTN_BLOCK * attn_tile_round(dim_v, 16); }
enum { ATTN_TILE_P_PART = ATTN_STRIP * ATTN_BLOCK };

static inline attn_tile_scratch attn_tile_lay(void *base, int64_t dim_qk, int64_t dim_v, attn_type type_k, attn_type type_v) {
    const int64_t longest = attn_tile_round(dim_qk > dim_v ? dim_qk : dim_v, 32);
    const int64_t k = attn_tile_parts(type_k) * attn_tile_k_part(dim_qk), v = attn_tile_parts(type_v) * attn_tile_v_part(dim_v);
    const int64_t p = ATTN_TILE_PARTS * ATTN_TILE_P_PART, rows = 16 * ATTN_TILE_PARTS * longest;
    attn_tile_scratch s = { .size = (size_t)(k + v + p + rows) * sizeof(uint16_t) };
    if (!base) return s;
    s.k = base;
    s.v = s.k + k;
    s.p = s.v + v;
    s.rows = s.p + p;
    return s;
}
#endif
