/* tile_vec.h: the products of the tile way (tile.h) by dot products of pairs of bf16 in vector lanes: rows of A broadcast, columns of B in
 * lanes. */
#include "tile.h"

enum { TILE_BLOCK = 256 };

static bool tiles(const attn_problem *p) { return p->type_q == ATTN_BF16 && p->type_k == ATTN_BF16 && fabsf(p->scale) <= 0x1p30f; }

/* Weights times values in float32 cost as much as weights in two parts would, and are exact. */
enum { EXACT_PARTS = 0 };
static int fast_parts(attn_type type_v) { return type_v == ATTN_BF16 ? 1 : EXACT_PARTS; }
static int parts_of_weights(const attn_work *w) { return w->fast ? fast_parts(w->type_v) : EXACT_PARTS; }
static double weight_error(const attn_problem *p) { return attn_tile_error(fast_parts(p->type_v)); }

/* In units of 32 bits: a pair of bf16, or one float32 for weights that are not in parts. Chains of CHAIN terms are added up, in registers
 * or in memory: 32 registers hold 12 accumulators of each kind, or 24 of one. UNIT_BLOCK units of a few panels stay in the first cache
 * while all rows pass. PANEL: vectors of a panel. An ISA with OWN_DOTS brings dot_product and dot_rate with it. */
enum { PANEL = 16 / LANES, DOT_ROWS = 4, FMA_ROWS = PANEL == 1 ? 8 : 4, UNIT_PANELS = PANEL == 1 ? 3 : 1, UNIT_BLOCK = 64 };
enum { ROWS_AT_ONCE = 8 }; /* of the two, and of an ISA's own */

static ALWAYS_INLINE vec panel_vector(const uint16_t *b, int64_t b_panel, int i) {
    return vec_load((const float *)(const void *)(b + i / PANEL * b_panel + i % PANEL * LANES * 2));
}

static ALWAYS_INLINE void dot_tile(int panels, bool more, float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t b_panel,
                                   int units) {
    const int vectors = panels * PANEL;
    vec total[DOT_ROWS * UNIT_PANELS * PANEL];
    UNROLL for (int i = 0; i < DOT_ROWS * vectors; i++) total[i] = vec_zero();
    for (int k = 0; k < units; k += CHAIN / 2) {
        const uint16_t *ak = a + k / 16 * 512 + k % 16 * 2, *bk = b + k * 32;
        vec acc[DOT_ROWS * UNIT_PANELS * PANEL], bv[UNIT_PANELS * PANEL];
        UNROLL for (int i = 0; i < DOT_ROWS * vectors; i++) acc[i] = vec_zero();
        for (int n = units - k < CHAIN / 2 ? units - k : CHAIN / 2; n > 0; n--, ak += 2, bk += 32) {
            UNROLL for (int i = 0; i < vectors; i++) bv[i] = panel_vector(bk, b_panel, i);
            UNROLL for (int r = 0; r < DOT_ROWS; r++) {
                vec av = vec_set1_unit(ak + r * 32);
                UNROLL for (int i = 0; i < vectors; i++) acc[r * vectors + i] = vec_dot(av, bv[i], acc[r * vectors + i]);
            }
        }
        UNROLL for (int i = 0; i < DOT_ROWS * vectors; i++) total[i] = vec_add(total[i], acc[i]);
    }
    UNROLL for (int r = 0; r < DOT_ROWS; r++) UNROLL for (int i = 0; i < vectors; i++) {
        float *to = c + r * ldc + i * LANES;
        vec_store(to, more ? vec_add(vec_load(to), total[r * vectors + i]) : total[r * vectors + i]);
    }
}

static ALWAYS_INLINE void fma_tile(int panels, bool more, float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int64_t b_panel,
                                   int units) {
    const int vectors = panels * PANEL;
    for (int k = 0; k < units; k += CHAIN) {
        const uint16_t *ak = a + k * 32, *bk = b + k * 32;
        vec acc[FMA_ROWS * UNIT_PANELS * PANEL], bv[UNIT_PANELS * PANEL];
        UNROLL for (int i = 0; i < FMA_ROWS * vectors; i++) acc[i] = vec_zero();
        for (int n = units - k < CHAIN ? units - k : CHAIN; n > 0; n--, ak += 2, bk += 32) {
            UNROLL for (int i = 0; i < vectors; i++) bv[i] = panel_vector(bk, b_panel, i);
            UNROLL for (int r = 0; r < FMA_ROWS; r++) {
                vec av = vec_set1_unit(ak + r * 32);
                UNROLL for (int i = 0; i < vectors; i++) acc[r * vectors + i] = vec_fma(av, bv[i], acc[r * vectors + i]);
            }
        }
        UNROLL for (int r = 0; r < FMA_ROWS; r++) UNROLL for (int i = 0; i < vectors; i++) {
            float *to = c + r * ldc + i * LANES;
            vec_store(to, more || k > 0 ? vec_add(vec_load(to), acc[r * vectors + i]) : acc[r * vectors + i]);
        }
    }
}

static ALWAYS_INLINE void unit_panels(bool dot, int panels, bool more, float *c, int64_t ldc, const uint16_t *a, int64_t a_rows,
                                      const uint16_t *b, int64_t b_panel, int units, int rows) {
    for (int r = 0; r < rows; r += dot ? DOT_ROWS : FMA_ROWS) {
        const uint16_t *ar = a + r / 16 * a_rows + r % 16 * 32;
        if (dot)
            dot_tile(panels, more, c + r * ldc, ldc, ar, b, b_panel, units);
        else
            fma_tile(panels, more, c + r * ldc, ldc, ar, b, b_panel, units);
    }
}

/* c[row][16 * panel ..] = a * b; a_rows: 16-bit numbers from 16 rows of a to the next, b_panel: from a panel to the
 * next. */
static ALWAYS_INLINE void unit_product(bool dot, float *c, int64_t ldc, const uint16_t *a, int64_t a_rows, int rows, const uint16_t *b,
                                       int64_t b_panel, int panels, int64_t units) {
    for (int64_t k = 0; k < units; k += UNIT_BLOCK) {
        const int count = (int)(units - k < UNIT_BLOCK ? units - k : UNIT_BLOCK);
        const uint16_t *ak = a + k / 16 * 512, *bk = b + k * 32;
        for (int p = 0, n; p < panels; p += n) {
            const int left = panels - p;
            n = UNIT_PANELS == 1 || left == 1 ? 1 : left == 3 || left > 4 ? 3 : 2;
            if (n == 3)
                unit_panels(dot, 3, k > 0, c + p * 16, ldc, ak, a_rows, bk + p * b_panel, b_panel, count, rows);
            else if (n == 2)
                unit_panels(dot, 2, k > 0, c + p * 16, ldc, ak, a_rows, bk + p * b_panel, b_panel, count, rows);
            else
                unit_panels(dot, 1, k > 0, c + p * 16, ldc, ak, a_rows, bk + p * b_panel, b_panel, count, rows);
        }
    }
}

#ifndef OWN_DOTS
static ALWAYS_INLINE void dot_product(float *c, int64_t ldc, const uint16_t *a, int64_t a_rows, int rows, const uint16_t *b,
                                      int64_t b_panel, int panels, int64_t units) {
    unit_product(true, c, ldc, a, a_rows, rows, b, b_panel, panels, units);
}

static double dot_rate(int64_t rounds) {
    enum { CHAINS = 16 };
    const uint32_t small = 0x34003400, one = 0x3f803f80; /* pairs of 2^-23 and of 1 */
    vec acc[CHAINS];
    vec a = vec_set1_unit((const uint16_t *)&small), b = vec_set1_unit((const uint16_t *)&one);
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vec_set1((float)i);
    for (int64_t n = 0; n < rounds; n++) UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vec_dot(a, b, acc[i]);
    use_up(acc, CHAINS);
    return (double)rounds * CHAINS * LANES * 4.0;
}
#endif

static void tile_configure(void) {}
static void tile_release(void) {}

static void tile_scores(const attn_work *w, float *s, const uint16_t *q, int rows, const uint16_t *k, int panels) {
    const int64_t padded = attn_tile_round(w->dim_qk, 32);
    dot_product(s, ATTN_SCORES_LD, q, 16 * padded, rows, k, 16 * padded, panels, (w->dim_qk + 1) / 2);
}

static void tile_values(const attn_work *w, float *o, int64_t ldo, const uint16_t *p, int rows, const uint16_t *v, int keys,
                        int weight_parts) {
    const int panels = (int)((w->dim_v + 15) / 16);
    if (weight_parts)
        dot_product(o, ldo, p, 16 * ATTN_BLOCK, rows, v, 16 * ATTN_BLOCK, panels, keys / 2);
    else
        unit_product(false, o, ldo, p, 32 * ATTN_BLOCK, rows, v, 32 * ATTN_BLOCK, panels, keys);
}
