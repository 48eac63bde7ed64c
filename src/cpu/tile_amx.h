/* tile_amx.h: the products of the tile way (tile.h) by AMX: tiles of 16 rows of 64 bytes, two by two of C with two of A and two of B. Each
 * step adds the products of 16 even and those of 16 odd k's, each kind in one chain, to C. */
#ifndef ATTN_EMULATE_TILES
#include <immintrin.h>
#endif
#include "tile.h"

enum { TILE_BLOCK = 256, EXACT_PARTS = 3, ROWS_AT_ONCE = 32 };

/* float32 takes six products for one, and the wide way is as fast or faster. */
static bool tiles(const attn_problem *p) {
    return p->type_q != ATTN_F32 && p->type_k != ATTN_F32 && p->type_v != ATTN_F32 && fabsf(p->scale) <= 0x1p30f;
}

/* Weights as good as the values' type, or exact. */
static int parts_of_weights(const attn_work *w) { return w->fast ? attn_tile_parts(w->type_v) : EXACT_PARTS; }
static double weight_error(const attn_problem *p) { return attn_tile_error(attn_tile_parts(p->type_v)); }

static void tile_configure(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = { .palette = 1 };
    for (int i = 0; i < 8; i++) {
        config.row_bytes[i] = 64;
        config.rows[i] = 16;
    }
    __asm__ volatile("" : : "r"(&config) : "memory"); /* the intrinsics do not say what they read */
    _tile_loadconfig(&config);
}

static void tile_release(void) { _tile_release(); }

/* c += a * b over `steps` tiles of k, for two row tiles and one or two panels */
static ALWAYS_INLINE void amx_steps(int panels, const uint16_t *a, int64_t a_rows, const uint16_t *b, int64_t b_panel, int steps) {
    for (int n = 0; n < steps; n++, a += 512, b += 512) {
        _tile_loadd(4, a, 64);
        _tile_loadd(6, b, 64);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, a + a_rows, 64);
        _tile_dpbf16ps(2, 5, 6);
        if (panels < 2) continue;
        _tile_loadd(7, b + b_panel, 64);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(3, 5, 7);
    }
}

typedef struct amx_side {
    const uint16_t *at;
    int64_t step, part; /* 16-bit numbers from 16 rows or a panel to the next; from a part to the next */
    int parts;
} amx_side;

/* Two row tiles and one or two panels. Products of parts from the smallest on; those that lie under the last bit of float32 are left out.
 */
static ALWAYS_INLINE void amx_block(int panels, float *c, int64_t ldc, const amx_side *a, int64_t a_at, const amx_side *b, int64_t b_at,
                                    int steps) {
    const int64_t row = ldc * (int64_t)sizeof(float);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int order = 2; order >= 0; order--)
        for (int i = 0; i <= order && i < a->parts; i++)
            if (order - i < b->parts)
                amx_steps(panels, a->at + i * a->part + a_at, a->step, b->at + (order - i) * b->part + b_at, b->step, steps);
    _tile_stored(0, c, row);
    _tile_stored(2, c + 16 * ldc, row);
    if (panels > 1) {
        _tile_stored(1, c + 16, row);
        _tile_stored(3, c + 16 * ldc + 16, row);
    }
}

static void amx_product(float *c, int64_t ldc, const amx_side *a, int rows, const amx_side *b, int panels, int steps) {
    __asm__ volatile("" : : : "memory");
    for (int p = 0; p < panels; p += 2)
        for (int r = 0; r < rows; r += 32) {
            float *to = c + r * ldc + p * 16;
            if (panels - p > 1)
                amx_block(2, to, ldc, a, r / 16 * a->step, b, p * b->step, steps);
            else
                amx_block(1, to, ldc, a, r / 16 * a->step, b, p * b->step, steps);
        }
}

static void tile_scores(const attn_work *w, float *s, const uint16_t *q, int rows, const uint16_t *k, int panels) {
    const int64_t padded = attn_tile_round(w->dim_qk, 32);
    const amx_side a = { q, 16 * padded, attn_tile_q_part(w->rows, w->dim_qk), attn_tile_parts(w->type_q) };
    const amx_side b = { k, 16 * padded, attn_tile_k_part(w->dim_qk), attn_tile_parts(w->type_k) };
    amx_product(s, ATTN_SCORES_LD, &a, rows, &b, panels, (int)(padded / 32));
}

static void tile_values(const attn_work *w, float *o, int64_t ldo, const uint16_t *p, int rows, const uint16_t *v, int keys,
                        int weight_parts) {
    const amx_side a = { p, 16 * ATTN_BLOCK, ATTN_TILE_P_PART, weight_parts };
    const amx_side b = { v, 16 * ATTN_BLOCK, attn_tile_v_part(w->dim_v), attn_tile_parts(w->type_v) };
    amx_product(o, ldo, &a, rows, &b, (int)((w->dim_v + 15) / 16), keys / 32);
}

/* On numbers of all kinds: products of zeros run a quarter faster. */
static double dot_rate(int64_t rounds) {
    uint16_t numbers[2][512];
    for (uint32_t i = 0; i < 1024; i++) numbers[i / 512][i % 512] = (uint16_t)(0x3f00 | (i * 2654435761u >> 9 & 0x80ff));
    tile_configure();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    __asm__ volatile("" : : "r"(numbers) : "memory");
    _tile_loadd(4, numbers[0], 64);
    _tile_loadd(5, numbers[1], 64);
    _tile_loadd(6, numbers[1], 64);
    _tile_loadd(7, numbers[0], 64);
    for (int64_t n = 0; n < rounds; n += 16) { /* a step does as much as many vector instructions */
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
    tile_release();
    return (double)((rounds + 15) / 16) * 4 * 16 * 16 * 32 * 2.0;
}
