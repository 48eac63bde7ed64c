/* sm90.cuh: what Hopper's kernels are made of: barriers in shared memory, copies by the tensor copy engine, descriptors for wgmma, and the
 * 16-bit numbers of mma. */
#ifndef ATTN_SM90_CUH
#define ATTN_SM90_CUH
#include "maps.h"
#include <cuda_fp16.h>

static __device__ __forceinline__ uint32_t shared_address(const void *p) { return (uint32_t)__cvta_generic_to_shared(p); }

/* ---- barriers that count arrivals and bytes; a wait is for the end of a phase, 0 and 1 in turn ---- */
static __device__ __forceinline__ void barrier_init(uint32_t b, int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(arrivals));
}
static __device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
static __device__ __forceinline__ void barrier_expect(uint32_t b, int bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}
static __device__ __forceinline__ void barrier_arrive(uint32_t b) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}
static __device__ __forceinline__ void barrier_wait(uint32_t b, int phase) {
    asm volatile("{ .reg .pred p;\n"
                 "AGAIN_%=: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE_%=;\n"
                 "bra AGAIN_%=;\n"
                 "DONE_%=:\n}" ::"r"(b),
                 "r"(phase)
                 : "memory");
}
/* Barriers of some of a block's threads, by number. */
static __device__ __forceinline__ void group_sync(int id, int threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
static __device__ __forceinline__ void group_arrive(int id, int threads) {
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Stages of a ring: which one, and its phase. */
struct stage {
    int at, phase;
};
template <int STAGES> static __device__ __forceinline__ void advance(stage &s) {
    if (++s.at == STAGES) s.at = 0, s.phase ^= 1;
}

/* ---- copies of boxes of 64 elements by some rows; rows past the tensor's end come as zeros, and are not written ---- */
static __device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap *map, uint32_t barrier, int element, int row, int head,
                                                int batch) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
        "l"(map), "r"(barrier), "r"(element), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
/* The same for what is read once: the second cache need not keep it. */
static __device__ __forceinline__ void load_box_once(uint32_t to, const CUtensorMap *map, uint32_t barrier, int element, int row, int head,
                                                     int batch) {
    asm volatile(
        "{ .reg .b64 policy;\n"
        "createpolicy.fractional.L2::evict_first.b64 policy, 1.0;\n"
        "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1, {%3, %4, %5, %6}], "
        "[%2], policy; }" ::"r"(to),
        "l"(map), "r"(barrier), "r"(element), "r"(row), "r"(head), "r"(batch)
        : "memory");
}
/* A tensor of keys or values in boxes of a whole block, of eight rows and of one. */
struct key_maps {
    CUtensorMap block, eight, one;
};
static inline cudaError_t map_keys(key_maps *maps, attn_type type, const void *base, const attn_strides *strides, const attn_problem *p,
                                   int64_t dim, int block) {
    cudaError_t error = attn_cuda_map(&maps->block, type, base, strides, p->batch, p->heads_kv, p->len_kv, dim, block);
    if (error == cudaSuccess) error = attn_cuda_map(&maps->eight, type, base, strides, p->batch, p->heads_kv, p->len_kv, dim, 8);
    if (error == cudaSuccess) error = attn_cuda_map(&maps->one, type, base, strides, p->batch, p->heads_kv, p->len_kv, dim, 1);
    return error;
}
template <bool ONCE>
static __device__ __forceinline__ void load_some(uint32_t to, const CUtensorMap *map, uint32_t barrier, int element, int row, int head,
                                                 int batch) {
    if (ONCE)
        load_box_once(to, map, barrier, element, row, head, batch);
    else
        load_box(to, map, barrier, element, row, head, batch);
}
/* ROWS keys from j on, of which those from lo to hi - 1 may be read. Where the block has others as well, they get some that may be read in
 * their place, which have no weight: what lies beyond a length need not be memory, and often is NaN. end: where the tensor ends; rows
 * behind it are not read anyway. */
template <int PANELS, int ROWS, bool ONCE>
static __device__ __forceinline__ void load_keys(uint32_t to, const key_maps &maps, uint32_t barrier, int j, int lo, int hi, int end,
                                                 int head, int batch) {
    if (j >= lo && (j + ROWS <= hi || hi == end)) {
        for (int p = 0; p < PANELS; p++) load_some<ONCE>(to + p * ROWS * 128, &maps.block, barrier, p * 64, j, head, batch);
        return;
    }
#pragma unroll 1 /* and few registers: it is seldom */
    for (int n = 0; n < PANELS * (ROWS / 8); n++) {
        const int p = n % PANELS, r = n / PANELS * 8, first = j + r;
        const bool inside = first >= lo && first + 8 <= hi, outside = first + 8 <= lo || first >= hi;
        const uint32_t at = to + p * ROWS * 128 + r * 128;
        if (inside || (outside && hi - lo >= 8)) {
            load_some<ONCE>(at, &maps.eight, barrier, p * 64, inside ? first : lo, head, batch);
            continue;
        }
#pragma unroll 1
        for (int i = 0; i < 8; i++) load_some<ONCE>(at + i * 128, &maps.one, barrier, p * 64, min(max(first + i, lo), hi - 1), head, batch);
    }
}
static __device__ __forceinline__ void store_box(const CUtensorMap *map, uint32_t from, int element, int row, int head, int batch) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map), "r"(from),
                 "r"(element), "r"(row), "r"(head), "r"(batch)
                 : "memory");
}
static __device__ __forceinline__ void stores_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/* Waits until the boxes that were committed have left shared memory. */
static __device__ __forceinline__ void stores_read() { asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory"); }
/* What threads wrote to shared memory becomes visible to the copy engine and to wgmma. */
static __device__ __forceinline__ void shared_written() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/* A box lies swizzled: 16-byte piece c of row r is at piece c ^ r % 8. */
static __device__ __forceinline__ uint32_t piece(uint32_t panel, int row, int c) { return panel + row * 128 + ((c ^ (row & 7)) << 4); }

/* ---- wgmma ---- */
static __device__ __forceinline__ uint64_t descriptor(uint32_t at, int panel_bytes) {
    return (uint64_t)((at & 0x3ffff) >> 4) | (uint64_t)((panel_bytes & 0x3ffff) >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 | 1ull << 62;
}
static __device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
static __device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
/* Waits until all but the last PENDING commits are done. */
template <int PENDING> static __device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
/* Keeps the compiler from moving what uses these registers across this place. */
template <int N> static __device__ __forceinline__ void hold(float (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+f"(d[i])::"memory");
}
template <int N> static __device__ __forceinline__ void hold(uint32_t (&d)[N]) {
#pragma unroll
    for (int i = 0; i < N; i++) asm volatile("" : "+r"(d[i])::"memory");
}

/* ---- pairs of 16-bit numbers ---- */
template <bool BF16> static __device__ __forceinline__ uint32_t pair_of(float low, float high) {
    uint32_t r;
    if (BF16)
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}
template <bool BF16> static __device__ __forceinline__ float2 floats_of(uint32_t x) {
    if (BF16) return make_float2(__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u));
    return __half22float2(*reinterpret_cast<__half2 *>(&x));
}
/* 2^x, 0 for -inf; within two units of the last place. */
static __device__ __forceinline__ float exp2_fast(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
/* Weights in f16 are taken times so many powers of two: the parts of small ones would be lost below its smallest number. l and o come with
 * them, and are multiplied by weight_unit in the end. */
template <bool BF16> static __device__ __forceinline__ constexpr float weight_shift() { return BF16 ? 0.0f : 12.0f; }
template <bool BF16> static __device__ __forceinline__ constexpr float weight_unit() { return BF16 ? 1.0f : 0x1p-12f; }

static __device__ __forceinline__ void load_tiles(uint32_t *r, uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void load_tiles_transposed(uint32_t *r, uint32_t at) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}
static __device__ __forceinline__ void store_tiles(uint32_t at, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
}
template <bool BF16> static __device__ __forceinline__ void mma(float *d, const uint32_t *a, uint32_t b0, uint32_t b1) {
#define MMA(type)                                                                                                                          \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "              \
                 "{%0, %1, %2, %3};"                                                                                                       \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                                          \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (BF16)
        MMA("bf16");
    else
        MMA("f16");
#undef MMA
}
#endif
