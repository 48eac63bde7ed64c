/* tile_neon.h: the products of the tile way (tile.h) by bfmmla: two rows of A with two columns of B, four k each, to four sums. Where
 * weights are float32, by multiply-adds as in tile_vec.h.
 *
 * Two pairs of B's, zipped, are the columns that an instruction wants. Rows of A are laid out anew, once for all panels. Registers: 8 sums
 * of chains and 8 chains under way (8 rows, 4 columns), 4 + 4 operands; 5 loads (two registers each for A) and 2 zips for 8 instructions,
 * which are worth 32 multiply-adds. With 16 chains, sums would go to memory every fourth time. */
#include "tile.h"

static void dot_product(float *c, int64_t ldc, const uint16_t *a, int64_t a_rows, int rows, const uint16_t *b, int64_t b_panel, int panels,
                        int64_t units);
#define OWN_DOTS
#include "tile_vec.h"

/* A step is four k: two units. */
enum { SQUARE_ROWS = 8, SQUARE_COLUMNS = 4, SQUARES = 4, STEP_BLOCK = UNIT_BLOCK / 2, CHAIN_STEPS = CHAIN / 4 };

/* Rows of A as bfmmla takes them: [row / 8][step][4 pairs of rows][2][4], for `steps` steps. */
static void pair_rows(uint16_t *to, const uint16_t *a, int64_t a_rows, int rows, int steps) {
    for (int r = 0; r < rows; r += 2) {
        const uint16_t *from = a + r / 16 * a_rows + r % 16 * 32;
        uint16_t *at = to + (r / SQUARE_ROWS * STEP_BLOCK * SQUARES + r % SQUARE_ROWS / 2) * 8;
        for (int n = 0; n < steps; n += 2) {
            const uint16_t *p = from + n / 8 * 512 + n % 8 * 4;
            uint64x2_t even = vreinterpretq_u64_u16(vld1q_u16(p)), odd = vreinterpretq_u64_u16(vld1q_u16(p + 32));
            vst1q_u16(at + n * SQUARES * 8, vreinterpretq_u16_u64(vzip1q_u64(even, odd)));
            vst1q_u16(at + (n + 1) * SQUARES * 8, vreinterpretq_u16_u64(vzip2q_u64(even, odd)));
        }
    }
}

static inline float32x4_t square(float32x4_t c, uint16x8_t a, uint32x4_t b) {
    return vbfmmlaq_f32(c, vreinterpretq_bf16_u16(a), vreinterpretq_bf16_u32(b));
}

static ALWAYS_INLINE void square_steps(float32x4_t *acc, const uint16_t *a, const uint16_t *b, int steps) {
    UNROLL for (int i = 0; i < 2 * SQUARES; i++) acc[i] = vdupq_n_f32(0.0f);
    UNROLL_4 for (int n = 0; n < steps; n++, a += SQUARES * 8, b += 64) {
        uint32x4_t first = vreinterpretq_u32_u16(vld1q_u16(b)), second = vreinterpretq_u32_u16(vld1q_u16(b + 32));
        uint32x4_t left = vzip1q_u32(first, second), right = vzip2q_u32(first, second);
        UNROLL for (int i = 0; i < SQUARES; i++) {
            uint16x8_t av = vld1q_u16(a + i * 8);
            acc[2 * i] = square(acc[2 * i], av, left);
            acc[2 * i + 1] = square(acc[2 * i + 1], av, right);
        }
    }
}

/* Eight rows with four columns. The sums' order is tile_vec.h's. */
static void square_tile(bool more, float *c, int64_t ldc, const uint16_t *a, const uint16_t *b, int steps) {
    float32x4_t total[2 * SQUARES], acc[2 * SQUARES];
    UNROLL for (int i = 0; i < 2 * SQUARES; i++) total[i] = vdupq_n_f32(0.0f);
    int k = 0;
    for (; k + CHAIN_STEPS <= steps; k += CHAIN_STEPS) {
        square_steps(acc, a + k * SQUARES * 8, b + k * 64, CHAIN_STEPS);
        UNROLL for (int i = 0; i < 2 * SQUARES; i++) total[i] = vaddq_f32(total[i], acc[i]);
    }
    if (k < steps) {
        square_steps(acc, a + k * SQUARES * 8, b + k * 64, steps - k);
        UNROLL for (int i = 0; i < 2 * SQUARES; i++) total[i] = vaddq_f32(total[i], acc[i]);
    }
    UNROLL for (int i = 0; i < SQUARES; i++) {
        float *to = c + 2 * i * ldc;
        float32x4_t even = low_halves(total[2 * i], total[2 * i + 1]), odd = high_halves(total[2 * i], total[2 * i + 1]);
        vst1q_f32(to, more ? vaddq_f32(vld1q_f32(to), even) : even);
        vst1q_f32(to + ldc, more ? vaddq_f32(vld1q_f32(to + ldc), odd) : odd);
    }
}

/* as unit_product */
static void dot_product(float *c, int64_t ldc, const uint16_t *a, int64_t a_rows, int rows, const uint16_t *b, int64_t b_panel, int panels,
                        int64_t units) {
    uint16_t pairs[ATTN_STRIP / SQUARE_ROWS * STEP_BLOCK * SQUARES * 8];
    for (int64_t k = 0; k < units; k += UNIT_BLOCK) {
        const int steps = (int)(units - k < UNIT_BLOCK ? units - k + 1 : UNIT_BLOCK) / 2;
        pair_rows(pairs, a + k / 16 * 512, a_rows, rows, steps);
        for (int p = 0; p < panels; p++)
            for (int column = 0; column < 16; column += SQUARE_COLUMNS)
                for (int r = 0; r < rows; r += SQUARE_ROWS)
                    square_tile(k > 0, c + r * ldc + p * 16 + column, ldc, pairs + r / SQUARE_ROWS * STEP_BLOCK * SQUARES * 8,
                                b + p * b_panel + k * 32 + column * 2, steps);
    }
}

static double dot_rate(int64_t rounds) {
    enum { CHAINS = 16 };
    float32x4_t acc[CHAINS], sum = vdupq_n_f32(0.0f);
    uint16x8_t small = vdupq_n_u16(0x3400); /* 2^-23 */
    uint32x4_t one = vdupq_n_u32(0x3f803f80);
    __asm__("" : "+w"(one)); /* gcc 12 makes 1 in half precision of it */
    UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = vdupq_n_f32((float)i);
    for (int64_t n = 0; n < rounds; n++) UNROLL for (int i = 0; i < CHAINS; i++) acc[i] = square(acc[i], small, one);
    float sink[4];
    UNROLL for (int i = 0; i < CHAINS; i++) sum = vaddq_f32(sum, acc[i]);
    vst1q_f32(sink, sum);
    __asm__ volatile("" : : "r"(sink) : "memory");
    return (double)rounds * CHAINS * 4 * 8.0;
}
