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
    ATTN_STRIP = 32,      /* rows that go from scores to values together */
    ATTN_WEIGHT_PARTS = 3 /* of a weight, at most */
};

static inline int64_t attn_tile_round(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static inline int attn_tile_parts(attn_type type) { return type == ATTN_BF16 ? 1 : type == ATTN_F16 ? 2 : 3; }

/* What a weight in so many parts lacks, relative to it: all parts but the last are cut off, the last is rounded. None: it stays float32. */
static inline double attn_tile_error(int parts) { return parts == 1 ? 0x1p-8 : parts == 2 ? 0x1p-16 : 0.0; }

/* 16-bit numbers of one part: of a row block's queries, of a block's keys and values, of a strip's weights */
static inline int64_t attn_tile_q_part(int64_t rows, int64_t dim_qk) {
    return attn_tile_round(rows, ATTN_STRIP) * attn_tile_round(dim_qk, 32);
}
static inline int64_t attn_tile_k_part(int64_t dim_qk) { return ATTN_BLOCK * attn_tile_round(dim_qk, 32); }
static inline int64_t attn_tile_v_part(int64_t dim_v) { return ATTN_BLOCK * attn_tile_round(dim_v, 16); }
enum { ATTN_TILE_P_PART = ATTN_STRIP * ATTN_BLOCK };

/* What `begin` makes of the queries: a flag for each row that must go another way, then the parts. Bytes. */
static inline int64_t attn_tile_packed(int64_t rows, int64_t dim_qk, attn_type type_q) {
    return attn_tile_round(rows, 64) + attn_tile_parts(type_q) * attn_tile_q_part(rows, dim_qk) * (int64_t)sizeof(uint16_t);
}

typedef struct attn_tile_scratch {
    uint16_t *k, *v;                      /* B: [part] keys, values; values may be float32 rows instead */
    uint16_t *p;                          /* A: [part] weights */
    uint16_t *rows;                       /* 16 rows in parts, before they are laid out */
    float *o;                             /* a strip's weighted values, where it has fewer rows than a strip */
    unsigned char *unusual_k, *unusual_v; /* [ATTN_BLOCK]: keys and values that took part as zeros */
    size_t size;                          /* bytes of all */
} attn_tile_scratch;

static inline attn_tile_scratch attn_tile_lay(void *base, int64_t dim_qk, int64_t dim_v, attn_type type_k, attn_type type_v) {
    const int64_t longest = attn_tile_round(dim_qk > dim_v ? dim_qk : dim_v, 32), parts_v = attn_tile_parts(type_v);
    const int64_t k = attn_tile_parts(type_k) * attn_tile_k_part(dim_qk), v = (parts_v > 2 ? parts_v : 2) * attn_tile_v_part(dim_v);
    const int64_t p = ATTN_WEIGHT_PARTS * ATTN_TILE_P_PART, rows = 16 * 3 * longest, o = ATTN_STRIP * attn_tile_round(dim_v, 16);
    attn_tile_scratch s = { .size = (size_t)(k + v + p + rows + 2 * o) * sizeof(uint16_t) + 2 * ATTN_BLOCK };
    if (!base) return s;
    s.k = base;
    s.v = s.k + k;
    s.p = s.v + v;
    s.rows = s.p + p;
    s.o = (float *)(void *)(s.rows + rows);
    s.unusual_k = (unsigned char *)(s.o + o);
    s.unusual_v = s.unusual_k + ATTN_BLOCK;
    return s;
}
#endif
