/* decode.cu: few rows over many 16-bit keys (Hopper). A block walks the chunks of its key heads: one warp copies keys and values, 64 at a
 * time, into a ring in shared memory, four multiply, 16 keys each, all query heads and rows of the key head as the 16 rows of a matrix
 * product. Weights go to the values in two parts. A chunk's four states are folded into one; a second kernel folds the chunks of each row,
 * in order. */
#include "mend.cuh"
#include "sm90.cuh"

namespace {

enum { WARPS = 4, KEYS = 64, ROWS = 16, PANEL = KEYS * 128 };

struct work {
    attn_cuda_call c;
    key_maps k, v;
    float *part; /* [batch][key head][chunk][row][D + 4]: o, then m (a power of two's exponent) and l */
    band seen;
    int group, rows, chunk, chunks, items;
    bool paired; /* queries can be loaded two at a time */
    float scale; /* times log2(e) */
};

struct item {
    int b, g, chunk, first, last, lo, hi; /* first, last: of the chunk; lo, hi: what any row sees */
};

__device__ __forceinline__ item item_of(const work &w, int n) {
    item i = { 0, 0, n % w.chunks, 0, 0, 0, 0 };
    n /= w.chunks;
    i.g = n % (int)w.c.p.heads_kv, i.b = n / (int)w.c.p.heads_kv;
    const limits r = limits_of(w.c, w.seen, i.b);
    i.lo = lo_of(r, 0), i.hi = hi_of(r, r.len_q - 1); /* what no row sees is not read */
    i.first = max(i.chunk * w.chunk, i.lo / KEYS * KEYS);
    i.last = i.lo < i.hi ? min(i.chunk * w.chunk + w.chunk, i.hi) : i.first;
    return i;
}

template <int D> struct tiles { static constexpr int HALF = D / 64 * PANEL, STAGE = 2 * HALF, LD = D + 4; };

template <int D, int STAGES> __device__ __forceinline__ void produce(const work &w, uint32_t ring, uint32_t full, uint32_t empty) {
    stage s = { 0, 1 };
    for (int n = blockIdx.x; n < w.items; n += gridDim.x) {
        const item i = item_of(w, n);
        for (int j = i.first; j < i.last; j += KEYS) {
            const uint32_t to = ring + s.at * tiles<D>::STAGE, ready = full + 8 * s.at;
            barrier_wait(empty + 8 * s.at, s.phase);
            barrier_expect(ready, tiles<D>::STAGE);
            load_keys<D / 64, KEYS, true>(to, w.k, ready, j, i.lo, i.hi, (int)w.c.p.len_kv, i.g, i.b);
            load_keys<D / 64, KEYS, true>(to + tiles<D>::HALF, w.v, ready, j, i.lo, i.hi, (int)w.c.p.len_kv, i.g, i.b);
            advance<STAGES>(s);
        }
    }
}

/* Rows lane / 4 and lane / 4 + 8 of all dims, two at a time: what mma wants of its first operand. */
template <int D> __device__ __forceinline__ void load_queries(const work &w, const item &i, int lane, uint32_t (&q)[D / 16][4]) {
    const attn_problem &p = w.c.p;
    const uint16_t *base = (const uint16_t *)w.c.a.q;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const int row = lane / 4 + r * 8;
        const bool there = row < w.rows;
        const int64_t at = there ? place(p.q, i.b, (int64_t)i.g * w.group + row / (int)p.len_q, row % (int)p.len_q) : 0;
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
            const int d = n * 8 + lane % 4 * 2;
            uint32_t &to = q[n / 2][n % 2 * 2 + r];
            if (w.paired)
                to = there && d < p.dim_qk ? *(const uint32_t *)(base + at + d) : 0;
            else
                to = (there && d < p.dim_qk ? base[at + d] : 0) | (there && d + 1 < p.dim_qk ? (uint32_t)base[at + d + 1] << 16 : 0);
        }
    }
}

/* A warp's 16 keys: s[n]: keys n * 8 + lane % 4 * 2 and the next, of rows lane / 4 (first two) and lane / 4 + 8. */
template <int D, bool BF16>
__device__ __forceinline__ void scores(const uint32_t (&q)[D / 16][4], uint32_t at, int row, int lane, float (&s)[2][4]) {
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t k[4];
        load_tiles(k, piece(at + d / 4 * PANEL, row, d % 4 * 2 + lane / 16));
        mma<BF16>(s[0], q[d], k[0], k[2]);
        mma<BF16>(s[1], q[d], k[1], k[3]);
    }
}

struct row_pair {
    float m[2], l[2];
    int lo[2], hi[2];
};

/* Scores become weights; returns what o is to be multiplied by. */
template <bool BF16>
__device__ __forceinline__ void weigh(float (&s)[2][4], row_pair &r, int j0, int lane, float scale, bool all, float (&factor)[2]) {
#pragma unroll
    for (int x = 0; x < 2; x++) {
        float top = -INFINITY;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int j = j0 + n * 8 + lane % 4 * 2 + e;
                float &at = s[n][2 * x + e];
                if (!all && (j < r.lo[x] || j >= r.hi[x])) at = -INFINITY;
                top = fmaxf(top, at);
            }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(__fmul_rn(top, scale), r.m[x]);
        const float shift = top == -INFINITY ? 0.0f : __fsub_rn(top, weight_shift<BF16>());
        factor[x] = exp2_fast(__fsub_rn(r.m[x], top == -INFINITY ? 0.0f : top));
        r.m[x] = top;
        float sum = 0.0f;
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &at = s[n][2 * x + e];
                at = exp2_fast(fmaf(at, scale, -shift));
                sum += at;
            }
        r.l[x] = r.l[x] * factor[x] + sum;
    }
}

template <int D, bool BF16>
__device__ __forceinline__ void values(const float (&s)[2][4], uint32_t at, int row, int lane, float (&o)[D / 8][4]) {
    uint32_t high[4], low[4];
#pragma unroll
    for (int n = 0; n < 4; n++) {
        high[n] = pair_of<BF16>(s[n / 2][n % 2 * 2], s[n / 2][n % 2 * 2 + 1]);
        const float2 back = floats_of<BF16>(high[n]);
        low[n] = pair_of<BF16>(s[n / 2][n % 2 * 2] - back.x, s[n / 2][n % 2 * 2 + 1] - back.y);
    }
#pragma unroll
    for (int d = 0; d < D / 16; d++) {
        uint32_t v[4];
        load_tiles_transposed(v, piece(at + d / 4 * PANEL, row, d % 4 * 2 + lane / 16));
        mma<BF16>(o[2 * d], high, v[0], v[1]);
        mma<BF16>(o[2 * d + 1], high, v[2], v[3]);
        mma<BF16>(o[2 * d], low, v[0], v[1]);
        mma<BF16>(o[2 * d + 1], low, v[2], v[3]);
    }
}

/* Powers of two: m is an exponent here. As fold in elements.cuh, but that sums of nothing are 0 and finite. */
__device__ __forceinline__ void fold2(float4 &a, state &s, const float4 &b, const state &t) {
    const float top = fmaxf(s.m, t.m), base = top == -INFINITY ? 0.0f : top, f = exp2_fast(s.m - base), g = exp2_fast(t.m - base);
    a = make_float4(a.x * f + b.x * g, a.y * f + b.y * g, a.z * f + b.z * g, a.w * f + b.w * g);
    s = { top, s.l * f + t.l * g };
}

/* The warps' states, in order, into the chunk's. `mine` holds [warp][row][LD]. */
template <int D>
__device__ __forceinline__ void store_chunk(const work &w, const item &i, float *mine, const float (&o)[D / 8][4], const row_pair &r,
                                            int warp, int lane) {
    constexpr int LD = tiles<D>::LD;
    group_sync(1, WARPS * 32); /* the chunk before has been read */
#pragma unroll
    for (int x = 0; x < 2; x++) {
        const int row = lane / 4 + x * 8;
        float *to = mine + (warp * w.rows + row) * LD;
        if (row >= w.rows) continue;
#pragma unroll
        for (int d = 0; d < D / 8; d++) *(float2 *)(to + d * 8 + lane % 4 * 2) = make_float2(o[d][2 * x], o[d][2 * x + 1]);
        if (lane % 4 == 0) to[D] = r.m[x], to[D + 1] = r.l[x];
    }
    group_sync(1, WARPS * 32);
    float *part = w.part + (((int64_t)i.b * w.c.p.heads_kv + i.g) * w.chunks + i.chunk) * w.rows * LD;
    for (int n = threadIdx.x; n < w.rows * (D / 4); n += WARPS * 32) {
        const int row = n / (D / 4), d = n % (D / 4) * 4;
        const float *from = mine + row * LD;
        float4 sum = *(const float4 *)(from + d);
        state all = { from[D], from[D + 1] };
        for (int x = 1; x < WARPS; x++) {
            from += w.rows * LD;
            fold2(sum, all, *(const float4 *)(from + d), { from[D], from[D + 1] });
        }
        *(float4 *)(part + row * LD + d) = sum;
        if (d == 0) *(float2 *)(part + row * LD + D) = make_float2(all.m, all.l);
    }
}

template <int D, int STAGES, bool BF16>
__device__ __forceinline__ void consume(const work &w, uint32_t ring, uint32_t full, uint32_t empty, float *mine) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row = warp * 16 + lane % 16;
    stage s = { 0, 0 };
    for (int n = blockIdx.x; n < w.items; n += gridDim.x) {
        const item i = item_of(w, n);
        const limits l = limits_of(w.c, w.seen, i.b);
        uint32_t q[D / 16][4];
        load_queries<D>(w, i, lane, q);
        row_pair r = { { -INFINITY, -INFINITY }, { 0.0f, 0.0f }, {}, {} };
        for (int x = 0; x < 2; x++) {
            const int at = (lane / 4 + x * 8) % (int)w.c.p.len_q;
            r.lo[x] = max(i.first, lo_of(l, at)), r.hi[x] = min(i.last, hi_of(l, at));
        }
        const int all_from = lo_of(l, (int)w.c.p.len_q - 1), all_to = min(i.last, hi_of(l, 0));
        float o[D / 8][4] = {};
        for (int j = i.first; j < i.last; j += KEYS) {
            const uint32_t at = ring + s.at * tiles<D>::STAGE;
            const int j0 = j + warp * 16;
            barrier_wait(full + 8 * s.at, s.phase);
            if (j0 < i.last) {
                float x[2][4] = {}, factor[2];
                scores<D, BF16>(q, at, row, lane, x);
                weigh<BF16>(x, r, j0, lane, w.scale, j0 >= all_from && j0 + 16 <= all_to, factor);
                if (__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f))
#pragma unroll
                    for (int d = 0; d < D / 8; d++) o[d][0] *= factor[0], o[d][1] *= factor[0], o[d][2] *= factor[1], o[d][3] *= factor[1];
                values<D, BF16>(x, at + tiles<D>::HALF, row, lane, o);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(empty + 8 * s.at);
            advance<STAGES>(s);
        }
        for (int x = 0; x < 2; x++) {
            r.l[x] += __shfl_xor_sync(~0u, r.l[x], 1);
            r.l[x] += __shfl_xor_sync(~0u, r.l[x], 2);
        }
        store_chunk<D>(w, i, mine, o, r, warp, lane);
    }
}

template <int D, int STAGES, bool BF16>
__global__ void __launch_bounds__(WARPS * 32 + 32, D == 128 ? 2 : 3) decode(const __grid_constant__ work w) {
    extern __shared__ uint8_t pool[];
    __shared__ __align__(8) uint64_t bars[2 * STAGES];
    const uint32_t ring = (shared_address(pool) + 1023) & ~1023u, full = shared_address(bars), empty = full + 8 * STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < STAGES; i++) barrier_init(full + 8 * i, 1), barrier_init(empty + 8 * i, WARPS);
        barriers_ready();
    }
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); /* gather's blocks may come; they wait for the end of this */
    __syncthreads();
    if (threadIdx.x / 32 == WARPS) {
        if (threadIdx.x % 32 == 0) produce<D, STAGES>(w, ring, full, empty);
    } else
        consume<D, STAGES, BF16>(w, ring, full, empty, (float *)(pool + (ring - shared_address(pool)) + STAGES * tiles<D>::STAGE));
}

/* A block for each row: SETS groups of D / 4 threads take a share of its chunks each, in order; then their sums, in order. */
enum { SETS = 8 };

template <int D, bool BF16> __global__ void __launch_bounds__(D / 4 * SETS) gather(const __grid_constant__ work w) {
    constexpr int LD = tiles<D>::LD, THREADS = D / 4 * SETS;
    __shared__ float4 sums[SETS][D / 4];
    __shared__ state states[SETS];
    __shared__ float scratch[D + THREADS];
    const int r = blockIdx.x, g = blockIdx.y, b = blockIdx.z, d = threadIdx.x % (D / 4) * 4, set = threadIdx.x / (D / 4);
    const int64_t h = (int64_t)g * w.group + r / (int)w.c.p.len_q, row = r % (int)w.c.p.len_q;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    if (row >= length(w.c.a.len_q, b, w.c.p.len_q)) return;
    const float *from = w.part + (((int64_t)b * w.c.p.heads_kv + g) * w.chunks * w.rows + r) * LD;
    const int64_t step = (int64_t)w.rows * LD;
    const int per = (w.chunks + SETS - 1) / SETS, first = set * per, last = min(w.chunks, first + per);
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    state all = { -INFINITY, 0.0f };
#pragma unroll 4
    for (int i = first; i < last; i++) {
        const float2 ml = *(const float2 *)(from + i * step + D);
        fold2(sum, all, *(const float4 *)(from + i * step + d), { ml.x, ml.y });
    }
    sums[set][d / 4] = sum;
    if (d == 0) states[set] = all;
    __syncthreads();
    bool good = true;
    if (set == 0) {
        for (int i = 1; i < SETS; i++) fold2(sum, all, sums[i][d / 4], states[i]);
        all = { all.m * 0.693147181f, all.l * weight_unit<BF16>() };
        good = all.l == 0.0f || (finite(sum.x) && finite(sum.y) && finite(sum.z) && finite(sum.w) && finite(all.l) && finite(all.m));
        float factor, divisor, lse;
        finish(w.c.a.sinks, h, all, factor, divisor, lse);
        const int64_t to = place(w.c.p.out, b, h, row) + d;
        const float unit = weight_unit<BF16>(), results[4] = { sum.x * unit, sum.y * unit, sum.z * unit, sum.w * unit };
        for (int i = 0; i < 4; i++)
            if (d + i < w.c.p.dim_v) store_element(w.c.a.out, to + i, w.c.p.type_out, finished(results[i], factor, divisor));
        if (d == 0 && w.c.a.lse != nullptr) w.c.a.lse[place(w.c.p.lse, b, h, row)] = lse;
    }
    if (__syncthreads_or(!good)) mend_row<THREADS>(w.c, b, h, row, scratch, scratch + D);
}

template <int D, int STAGES, bool BF16> cudaError_t start(const work &w, int processors, cudaStream_t stream) {
    const int per = D == 128 ? 2 : 3, size = 1024 + STAGES * tiles<D>::STAGE + WARPS * w.rows * tiles<D>::LD * (int)sizeof(float);
    const auto kernel = decode<D, STAGES, BF16>;
    const cudaError_t error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, size);
    if (error != cudaSuccess) return error;
    const int blocks = w.items < processors * per ? w.items : processors * per;
    kernel<<<blocks, WARPS * 32 + 32, size, stream>>>(w);
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute early = {};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)w.rows, (unsigned)w.c.p.heads_kv, (unsigned)w.c.p.batch);
    config.blockDim = dim3(D / 4 * SETS);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, gather<D, BF16>, w);
}

} // namespace

size_t attn_cuda_decode_workspace(const attn_cuda_plan *plan, const attn_problem *p) {
    const int64_t dim = p->dim_qk > 64 || p->dim_v > 64 ? 128 : 64;
    return (size_t)(p->batch * p->heads_kv * plan->chunks * (p->heads_q / p->heads_kv * p->len_q) * (dim + 4)) * sizeof(float);
}

cudaError_t attn_cuda_decode(const attn_cuda_plan *plan, const attn_cuda_unit *unit, const attn_cuda_call *call) {
    const attn_problem *p = &call->p;
    work w = {};
    w.c = *call;
    w.part = (float *)call->a.workspace;
    w.group = (int)(p->heads_q / p->heads_kv), w.rows = w.group * (int)p->len_q;
    w.chunk = (int)plan->chunk, w.chunks = (int)plan->chunks;
    w.items = (int)(p->batch * p->heads_kv) * w.chunks;
    w.scale = p->scale * 1.44269504f;
    w.seen = band_of(p);
    w.paired = ((uintptr_t)call->a.q % 4 | (p->q.batch | p->q.head | p->q.row | p->dim_qk) % 2) == 0;
    cudaError_t error = map_keys(&w.k, p->type_k, call->a.k, &p->k, p, p->dim_qk, KEYS);
    if (error == cudaSuccess) error = map_keys(&w.v, p->type_v, call->a.v, &p->v, p, p->dim_v, KEYS);
    if (error != cudaSuccess) return error;
    const bool wide = p->dim_qk > 64 || p->dim_v > 64, bf16 = p->type_k == ATTN_BF16;
    const cudaStream_t stream = (cudaStream_t)call->a.stream;
    if (wide) return bf16 ? start<128, 3, true>(w, unit->processors, stream) : start<128, 3, false>(w, unit->processors, stream);
    return bf16 ? start<64, 4, true>(w, unit->processors, stream) : start<64, 4, false>(w, unit->processors, stream);
}
