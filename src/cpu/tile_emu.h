/* tile_emu.h: the AMX instructions that tile_amx.h uses, in plain C, and what tile.tmpl.h wants of a vocabulary beyond the usual: so that
 * the logic of the tile way can be checked on any machine. Slow. */
#include <stdint.h>
#include <string.h>

static _Thread_local uint32_t emu_tiles[8][16][16];
static _Thread_local int emu_configured;

/* Instructions without a configuration trap. */
static void emu_demand(int configured) {
    if (emu_configured != configured) __builtin_trap();
}

static float emu_flush(float x) { return x < 0x1p-126f && x > -0x1p-126f ? x * 0.0f : x; }

static float emu_bf16(uint32_t pair, int odd) {
    uint32_t bits = odd ? pair & 0xffff0000u : pair << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return emu_flush(x);
}

static void emu_dpbf16ps(int c, int a, int b) {
    emu_demand(1);
    for (int m = 0; m < 16; m++) {
        float even[16] = { 0 }, odd[16] = { 0 }, sum[16];
        for (int k = 0; k < 16; k++)
            for (int n = 0; n < 16; n++) {
                even[n] = emu_flush(even[n] + emu_bf16(emu_tiles[a][m][k], 0) * emu_bf16(emu_tiles[b][k][n], 0));
                odd[n] = emu_flush(odd[n] + emu_bf16(emu_tiles[a][m][k], 1) * emu_bf16(emu_tiles[b][k][n], 1));
            }
        memcpy(sum, emu_tiles[c][m], sizeof sum);
        for (int n = 0; n < 16; n++) sum[n] = emu_flush(sum[n] + emu_flush(even[n] + odd[n]));
        memcpy(emu_tiles[c][m], sum, sizeof sum);
    }
}

static void emu_load(int tile, const void *from, int64_t stride) {
    emu_demand(1);
    for (int m = 0; m < 16; m++) memcpy(emu_tiles[tile][m], (const char *)from + m * stride, 64);
}

static void emu_store(int tile, void *to, int64_t stride) {
    emu_demand(1);
    for (int m = 0; m < 16; m++) memcpy((char *)to + m * stride, emu_tiles[tile][m], 64);
}

static void emu_zero(int tile) {
    emu_demand(1);
    memset(emu_tiles[tile], 0, sizeof emu_tiles[tile]);
}

static void emu_configure(int on) {
    emu_demand(!on); /* once a job, and released */
    emu_configured = on;
    memset(emu_tiles, 0, sizeof emu_tiles);
}

#define _tile_loadconfig(config) ((void)(config), emu_configure(1))
#define _tile_release() emu_configure(0)
#define _tile_loadd(tile, from, stride) emu_load(tile, from, stride)
#define _tile_stored(tile, to, stride) emu_store(tile, to, stride)
#define _tile_zero(tile) emu_zero(tile)
#define _tile_dpbf16ps(c, a, b) emu_dpbf16ps(c, a, b)

static inline vec vec_round(vec x) {
    float lanes[LANES];
    vec_store(lanes, x);
    for (int i = 0; i < LANES; i++) lanes[i] = nearbyintf(lanes[i]);
    return vec_load(lanes);
}

static inline vec vec_scale2(vec x, vec n) {
    float lanes[LANES], by[LANES];
    vec_store(lanes, x);
    vec_store(by, n);
    for (int i = 0; i < LANES; i++) lanes[i] = by[i] < -1000.0f ? 0.0f : isnan(by[i]) ? by[i] : ldexpf(lanes[i], (int)by[i]);
    return vec_load(lanes);
}

static inline vec vec_high_bits(vec x) {
    float lanes[LANES];
    vec_store(lanes, x);
    for (int i = 0; i < LANES; i++) {
        uint32_t bits;
        memcpy(&bits, lanes + i, sizeof bits);
        bits &= 0xffff0000u;
        memcpy(lanes + i, &bits, sizeof bits);
    }
    return vec_load(lanes);
}

static inline bool vec_unusual_bf16(const uint16_t *p, uint16_t least, uint16_t limit) {
    for (int i = 0; i < 32; i++) {
        uint16_t size = p[i] & 0x7fff;
        if (size && (size < least || size >= limit)) return true;
    }
    return false;
}

static inline bool vec_copy_bf16(uint16_t *to, const uint16_t *from, int count, uint16_t least, uint16_t limit) {
    for (int i = 0; i < 32; i++) to[i] = i < count ? from[i] : 0;
    return vec_unusual_bf16(to, least, limit);
}

static inline void vec_zip_16(uint16_t *to, const uint16_t *even, const uint16_t *odd) {
    for (int i = 0; i < 16; i++) {
        to[2 * i] = even[i];
        to[2 * i + 1] = odd[i];
    }
}

static inline void vec_store_bf16_32(uint16_t *to, const vec *x) {
    for (int i = 0; i < 32 / LANES; i++) vec_store_bf16_part(to + i * LANES, x[i], vec_part_of(LANES));
}
