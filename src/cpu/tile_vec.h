/* tile_vec.h: the products of the tile way (tile.h) by dot products of pairs of bf16 in vector lanes: rows of A broadcast, columns of B in
 * lanes. */
#include "tile.h"

enum { TILE_BLOCK = 128 }; /* rows of a row block: packing keys and values costs them a fiftieth then */

static bool tiles(const attn_problem *p) {
    return p->type_q == ATTN_BF16 && p->type_k == ATTN_BF16 && fabsf(p->scale) <= 0x1p30f;
}

/* 0: float32 weights times float32 values cost as much as weights in two parts would, and are exact. */
static int parts_of_weights(const attn_work *w) { return w->fast && w->type_v == ATTN_BF16 ? 1 : 0; }

/* DOT_CHAIN pairs are CHAIN terms; LONG_CHAIN is for weights of 16 bits, beside whose error it does not show. */
enum { DOT_ROWS = 8, DOT_PANELS = 3, DOT_CHAIN = CHAIN / 2, LONG_CHAIN = 32 };

static ALWAYS_INLINE void dot_tile(int rows, int panels, float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t b_panel,
                                   int64_t pairs, int chain) {
    for (int64_t k = 0; k < pairs; k += chain) {
        vec acc[DOT_ROWS * DOT_PANELS];
        UNROLL for (int i = 0; i < rows * panels; i++) acc[i] = vec_zero();
        const uint16_t *ak = a + k / 16 * 512 + k % 16 * 2, *bk = b + k * 32;
        for (int64_t end = k + chain < pairs ? k + chain : pairs, n = k; n < end;) {
            for (int64_t stop = n - n % 16 + 16 < end ? n - n % 16 + 16 : end; n < stop; n++, ak += 2, bk += 32) {
                vec_pairs bv[DOT_PANELS];
                UNROLL for (int p = 0; p < panels; p++) bv[p] = vec_load_pairs(bk + p * b_panel);
                UNROLL for (int r = 0; r < rows; r++) {
                    vec_pairs av = vec_set1_pair(ak + r * 32);
                    UNROLL for (int p = 0; p < panels; p++) acc[r * panels + p] = vec_dot(av, bv[p], acc[r * panels + p]);
                }
            }
            if (n % 16 == 0) ak += 512 - 32;
        }
        UNROLL for (int r = 0; r < rows; r++) UNROLL for (int p = 0; p < panels; p++) {
            float *to = c + r * ldc + p * LANES;
            vec_store(to, k == 0 ? acc[r * panels + p] : vec_add(vec_load(to), acc[r * panels + p]));
        }
    }
}

/* c[row][16 * panel ..] = a * b for ATTN_STRIP rows; a_rows: 16-bit numbers from 16 rows of a to the next, b_panel: from a panel to the
 * next. Chains as short as float32-grade sums need, or longer ones. */
static void dot_product(float *c, int64_t ldc, const uint16_t *a, int64_t a_rows, const uint16_t *b, int64_t b_panel, int panels,
                        int64_t pairs, bool short_chains) {
    for (int p = 0, n; p < panels; p += n) { /* a few panels stay in the first cache for all rows */
        const int left = panels - p;
        n = left == 3 || left > 4 ? 3 : left == 1 ? 1 : 2;
        for (int r = 0; r < ATTN_STRIP; r += DOT_ROWS) {
            const uint16_t *ar = a + r / 16 * a_rows + r % 16 * 32, *bp = b + p * b_panel;
            float *to = c + r * ldc + p * LANES;
            switch (n + (short_chains ? 4 : 0)) {
#define PANELS(n)                                                                                                                          \
    case n:                                                                                                                                \
        dot_tile(DOT_ROWS, n, to, ldc, ar, bp, b_panel, pairs, LONG_CHAIN);                                                                \
        break;                                                                                                                             \
    case n + 4:                                                                                                                            \
        dot_tile(DOT_ROWS, n, to, ldc, ar, bp, b_panel, pairs, DOT_CHAIN);                                                                 \
        break;
                PANELS(1) PANELS(2) PANELS(3)
#undef PANELS
            }
        }
    }
}

static void tile_scores(const attn_work *w, float *s, const uint16_t *q, const uint16_t *k, int panels) {
    const int64_t padded = attn_tile_round(w->dim_qk, 32);
    dot_product(s, ATTN_SCORES_LD, q, 16 * padded, k, 16 * padded, panels, (w->dim_qk + 1) / 2, true);
}

/* `parts` is 1 */
static void tile_values(const attn_work *w, float *o, int64_t ldo, const uint16_t *p, const uint16_t *v, int keys, int parts) {
    (void)parts;
    dot_product(o, ldo, p, 16 * ATTN_BLOCK, v, 16 * ATTN_BLOCK, (int)((w->dim_v + 15) / 16), keys / 2, false);
}

static double dot_rate(int64_t rounds) {
    enum { CHAINS = 16 };
    const uint32_t small = 0x34003400, one = 0x3f803f80; /* pairs of 2^-23 and of 1 */
    vec acc[CHAINS];
    vec_pairs a = vec_set1_pair((const uint16_t *)&small), b = vec_set1_pair((const uint16_t *)&one);
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vec_set1((float)i);
    for (int64_t n = 0; n < rounds; n++) UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vec_dot(a, b, acc[i]);
    float sink[LANES];
    vec sum = vec_zero();
    UNROLL for (int i = 0; i < CHAINS; i++) sum = vec_add(sum, acc[i]);
    vec_store(sink, sum);
    __asm__ volatile("" : : "r"(sink) : "memory");
    return (double)rounds * CHAINS * LANES * 4.0;
}
