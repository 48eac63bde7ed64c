/* prefill.cu: many rows (Hopper). One warpgroup copies tiles of queries, keys and values; two or three others take 64 rows each through
 * both products on wgmma. The softmax of one block of keys runs while the values of the block before are multiplied, and the warpgroups
 * take turns at the tensor cores. Blocks of keys go from the last to the first, so that those that the diagonal cuts come first. */
#include "mend.cuh"
#include "sm90.cuh"
#include "wgmma.cuh"

namespace {

struct work {
    attn_cuda_call c;
    CUtensorMap q, out;
    key_maps k, v;
    uint8_t *spoilt; /* [batch][head][16 rows]: a row of these is not finite */
    band seen;
    int group, row_tiles, tiles, section, spoilt_rows;
    float scale;   /* times log2(e) */
    bool descends; /* rows that see more come later: they are taken first */
    bool boxed;    /* out is stored by the copy engine */
};

struct tile {
    int row, h, g, b;
};

/* All row tiles of a section of key heads come before the next section, so that its keys and values stay in the second cache. */
template <int M> __device__ __forceinline__ tile tile_of(const work &w, int n) {
    const int pairs = (int)(w.c.p.batch * w.c.p.heads_kv), whole = w.section * w.group * w.row_tiles, s = n / whole, left = n - s * whole;
    const int first = s * w.section, here = min(pairs - first, w.section) * w.group, m = left / here, x = left - m * here;
    const int pair = first + x / w.group;
    tile t;
    t.row = (w.descends ? w.row_tiles - 1 - m : m) * M;
    t.b = pair / (int)w.c.p.heads_kv, t.g = pair % (int)w.c.p.heads_kv;
    t.h = t.g * w.group + x % w.group;
    return t;
}

/* Blocks of keys that any of a tile's rows sees; end = first where there are none. */
struct blocks {
    int first, end;
};
template <int M, int N> __device__ __forceinline__ blocks blocks_of(const limits &l, const tile &t) {
    const int last = min(t.row + M, l.len_q) - 1;
    const int lo = lo_of(l, t.row), hi = last >= t.row ? hi_of(l, last) : 0;
    return { lo / N, hi > lo ? (hi + N - 1) / N : lo / N };
}

/* What differs from kernel to kernel. PARTS: of weights; TURNS: two warpgroups take turns. */
template <int D_, int N_, int GROUPS_, int STAGES_, bool BF16_, int PARTS_, bool TURNS_> struct shape {
    static constexpr int D = D_, N = N_, GROUPS = GROUPS_, STAGES = STAGES_, PARTS = PARTS_, M = 64 * GROUPS, PANELS = D / 64;
    static constexpr bool BF16 = BF16_, TURNS = TURNS_;
    static constexpr int Q_BYTES = M * D * 2, K_BYTES = N * D * 2, LEAST = 1024 + Q_BYTES + 2 * STAGES * K_BYTES + 256;
    static constexpr bool APART = LEAST + Q_BYTES <= 227 * 1024; /* results have a place of their own: queries can come meanwhile */
    static constexpr int SIZE = LEAST + (APART ? Q_BYTES : 0);
};

/* Where everything lies in shared memory. */
template <class S> struct places {
    uint32_t q, k, v, out, q_full, q_empty, k_full, k_empty, v_full, v_empty;
    __device__ explicit places(uint32_t pool) {
        q = (pool + 1023) & ~1023u, k = q + S::Q_BYTES, v = k + S::STAGES * S::K_BYTES;
        out = S::APART ? v + S::STAGES * S::K_BYTES : q;
        q_full = v + S::STAGES * S::K_BYTES + (S::APART ? S::Q_BYTES : 0), q_empty = q_full + 8, k_full = q_full + 16,
        k_empty = k_full + 8 * S::STAGES;
        v_full = k_empty + 8 * S::STAGES, v_empty = v_full + 8 * S::STAGES;
    }
    __device__ void init() const {
        barrier_init(q_full, 1), barrier_init(q_empty, S::GROUPS);
        for (int i = 0; i < 8 * S::STAGES; i += 8) {
            barrier_init(k_full + i, 1), barrier_init(v_full + i, 1);
            barrier_init(k_empty + i, S::GROUPS), barrier_init(v_empty + i, S::GROUPS);
        }
        barriers_ready();
    }
};

template <class S>
__device__ __forceinline__ void copy_block(uint32_t to, const key_maps &maps, uint32_t full, uint32_t empty, stage &s, int block,
                                           const tile &t, int len_kv, int end) {
    barrier_wait(empty + 8 * s.at, s.phase);
    barrier_expect(full + 8 * s.at, S::K_BYTES);
    load_keys<S::PANELS, S::N, false>(to + s.at * S::K_BYTES, maps, full + 8 * s.at, block * S::N, 0, len_kv, end, t.g, t.b);
    advance<S::STAGES>(s);
}

/* Keys come a block before the values that they are weighed with. */
template <class S> __device__ __forceinline__ void produce(const work &w, const places<S> &at) {
    stage k = { 0, 1 }, v = { 0, 1 };
    const int end = (int)w.c.p.len_kv;
    int q_phase = 1;
    for (int n = blockIdx.x; n < w.tiles; n += gridDim.x) {
        const tile t = tile_of<S::M>(w, n);
        const limits l = limits_of(w.c, w.seen, t.b);
        const blocks b = blocks_of<S::M, S::N>(l, t);
        if (b.end == b.first) continue;
        copy_block<S>(at.k, w.k, at.k_full, at.k_empty, k, b.end - 1, t, l.len_kv, end);
        barrier_wait(at.q_empty, q_phase);
        q_phase ^= 1;
        barrier_expect(at.q_full, S::Q_BYTES);
        for (int p = 0; p < S::PANELS; p++) load_box(at.q + p * S::M * 128, &w.q, at.q_full, p * 64, t.row, t.h, t.b);
        for (int j = b.end - 1; j > b.first; j--) {
            copy_block<S>(at.k, w.k, at.k_full, at.k_empty, k, j - 1, t, l.len_kv, end);
            copy_block<S>(at.v, w.v, at.v_full, at.v_empty, v, j, t, l.len_kv, end);
        }
        copy_block<S>(at.v, w.v, at.v_full, at.v_empty, v, b.first, t, l.len_kv, end);
    }
}

/* A thread's share of a warpgroup's 64 rows: rows lane / 4 and that + 8 of each warp's 16; columns lane % 4 * 2, the next, and so on by 8.
 */
template <class S> struct rows {
    float s[S::N / 2], o[S::D / 2], m[2], l[2], factor[2];
    uint32_t high[S::N / 4], low[S::PARTS == 2 ? S::N / 4 : 1];
};

template <class S> __device__ __forceinline__ void start_scores(rows<S> &r, uint32_t q, uint32_t k) {
    products_begin();
#pragma unroll
    for (int d = 0; d < S::D / 16; d++)
        wgmma<S::N, S::BF16>::ss(r.s, descriptor(q + d / 4 * S::M * 128 + d % 4 * 32, 0),
                                 descriptor(k + d / 4 * S::N * 128 + d % 4 * 32, 0), d > 0);
    products_commit();
}

template <class S> __device__ __forceinline__ void start_values(rows<S> &r, uint32_t v) {
    hold(r.high);
    if (S::PARTS == 2) hold(r.low);
    products_begin();
#pragma unroll
    for (int n = 0; n < S::N / 16; n++) {
        wgmma<S::D, S::BF16>::rv(r.o, r.high + 4 * n, descriptor(v + n * 2048, 128 * S::N), 1);
        if (S::PARTS == 2) wgmma<S::D, S::BF16>::rv(r.o, r.low + 4 * n, descriptor(v + n * 2048, 128 * S::N), 1);
    }
    products_commit();
}

template <class S> __device__ __forceinline__ void hide(rows<S> &r, const limits &l, int row, int first_key) {
    const int key = first_key + threadIdx.x % 4 * 2;
#pragma unroll
    for (int x = 0; x < 2; x++) {
        const int lo = lo_of(l, row + 8 * x), hi = hi_of(l, row + 8 * x);
#pragma unroll
        for (int i = 0; i < S::N / 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (key + i * 8 + e < lo || key + i * 8 + e >= hi) r.s[i * 4 + 2 * x + e] = -INFINITY;
    }
}

/* Scores become weights; factor: what o is to be multiplied by. m is an exponent of two. */
template <class S> __device__ __forceinline__ void weigh(rows<S> &r, float scale) {
#pragma unroll
    for (int x = 0; x < 2; x++) {
        float top = fmaxf(r.s[2 * x], r.s[2 * x + 1]), sum = 0.0f;
#pragma unroll
        for (int i = 1; i < S::N / 8; i++) top = fmaxf(top, fmaxf(r.s[i * 4 + 2 * x], r.s[i * 4 + 2 * x + 1]));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        top = fmaxf(__fmul_rn(top, scale), r.m[x]);
        const float base = top == -INFINITY ? 0.0f : top, shift = base - weight_shift<S::BF16>();
        r.factor[x] = exp2_fast(r.m[x] - base);
        r.m[x] = top;
#pragma unroll
        for (int i = 0; i < S::N / 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &at = r.s[i * 4 + 2 * x + e];
                at = exp2_fast(fmaf(at, scale, -shift));
                sum += at;
            }
        r.l[x] = r.l[x] * r.factor[x] + sum;
    }
}

/* Where scores lie in registers is where the first operand of the next product wants the weights. */
template <class S> __device__ __forceinline__ void pack(rows<S> &r) {
#pragma unroll
    for (int i = 0; i < S::N / 4; i++) {
        r.high[i] = pair_of<S::BF16>(r.s[2 * i], r.s[2 * i + 1]);
        if (S::PARTS == 2) {
            const float2 back = floats_of<S::BF16>(r.high[i]);
            r.low[i] = pair_of<S::BF16>(r.s[2 * i] - back.x, r.s[2 * i + 1] - back.y);
        }
    }
}

/* ---- the results ---- */
template <class S>
__device__ __forceinline__ void store_direct(const work &w, const tile &t, const limits &l, int row, const rows<S> &r,
                                             const float *factor) {
#pragma unroll
    for (int x = 0; x < 2; x++) {
        if (row + 8 * x >= l.len_q) continue;
        const int64_t to = place(w.c.p.out, t.b, t.h, row + 8 * x);
#pragma unroll
        for (int i = 0; i < S::D / 8; i++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int d = i * 8 + threadIdx.x % 4 * 2 + e;
                if (d < w.c.p.dim_v)
                    store_element(w.c.a.out, to + d, w.c.p.type_out, factor[x] == 0.0f ? 0.0f : r.o[i * 4 + 2 * x + e] * factor[x]);
            }
    }
}

/* Through shared memory: where the queries were, or a place of its own, which the rows before have left long ago. */
template <class S>
__device__ __forceinline__ void store_boxed(const work &w, const tile &t, uint32_t out, int g, const rows<S> &r, const float *factor) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const uint32_t mine = out + g * 64 * 128;
    if (S::APART) {
        if (threadIdx.x % 128 == 0) stores_read();
        group_sync(4 + g, 128);
    }
#pragma unroll
    for (int i = 0; i < S::D / 16; i++) {
        uint32_t x[4];
#pragma unroll
        for (int n = 0; n < 4; n++)
            x[n] = pair_of<S::BF16>(factor[n % 2] == 0.0f ? 0.0f : r.o[i * 8 + 2 * n] * factor[n % 2],
                                    factor[n % 2] == 0.0f ? 0.0f : r.o[i * 8 + 2 * n + 1] * factor[n % 2]);
        store_tiles(piece(mine + i / 4 * S::M * 128, warp * 16 + lane % 16, i % 4 * 2 + lane / 16), x[0], x[1], x[2], x[3]);
    }
    shared_written();
    group_sync(4 + g, 128);
    if (threadIdx.x % 128 == 0) {
        for (int p = 0; p < S::PANELS; p++) store_box(&w.out, mine + p * S::M * 128, p * 64, t.row + g * 64, t.h, t.b);
        stores_commit();
        if (!S::APART) stores_read();
    }
}

template <class S>
__device__ __forceinline__ void finish_rows(const work &w, const tile &t, const limits &l, const places<S> &at, int g, int row, rows<S> &r,
                                            bool boxed) {
    float factor[2]; /* 0: the row has seen nothing, and its o does not count */
    bool bad = false;
#pragma unroll
    for (int x = 0; x < 2; x++) {
        r.l[x] += __shfl_xor_sync(~0u, r.l[x], 1);
        r.l[x] += __shfl_xor_sync(~0u, r.l[x], 2);
        const state all = { r.m[x] * 0.693147181f, r.l[x] * weight_unit<S::BF16>() };
        float lse, times, divisor, largest = 0.0f;
#pragma unroll
        for (int i = 0; i < S::D / 8; i++) /* not a maximum, which would lose NaN */
            largest += fabsf(r.o[i * 4 + 2 * x] * 0x1p-20f) + fabsf(r.o[i * 4 + 2 * x + 1] * 0x1p-20f);
        finish(w.c.a.sinks, t.h, all, times, divisor, lse);
        factor[x] = times == IGNORED ? 0.0f : times / divisor * weight_unit<S::BF16>();
        const bool there = row + 8 * x < l.len_q;
        bad |= there && all.l != 0.0f && !(finite(largest) && finite(all.l) && finite(all.m) && factor[x] != 0.0f);
        if (there && threadIdx.x % 4 == 0 && w.c.a.lse != nullptr) w.c.a.lse[place(w.c.p.lse, t.b, t.h, row + 8 * x)] = lse;
    }
    const bool any = __any_sync(~0u, bad);
    const int sixteen = (t.row + g * 64) / 16 + threadIdx.x % 128 / 32;
    if (threadIdx.x % 32 == 0 && sixteen < w.spoilt_rows) w.spoilt[((int64_t)t.b * w.c.p.heads_q + t.h) * w.spoilt_rows + sixteen] = any;
    if (boxed)
        store_boxed<S>(w, t, at.out, g, r, factor);
    else
        store_direct<S>(w, t, l, row, r, factor);
}

template <class S> __device__ __forceinline__ void consume(const work &w, const places<S> &at, int g) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
    const bool leader = threadIdx.x % 128 == 0;
    stage k = { 0, 0 }, v = { 0, 0 };
    int q_phase = 0;
    if (S::TURNS && g == 1) group_arrive(1, 256);
    for (int n = blockIdx.x; n < w.tiles; n += gridDim.x) {
        const tile t = tile_of<S::M>(w, n);
        const limits l = limits_of(w.c, w.seen, t.b);
        const blocks b = blocks_of<S::M, S::N>(l, t);
        const int row = t.row + g * 64 + warp * 16 + lane / 4;
        const int all_from = lo_of(l, t.row + g * 64 + 63), all_to = hi_of(l, t.row + g * 64); /* keys that all rows see */
        rows<S> r;
#pragma unroll
        for (int i = 0; i < S::D / 2; i++) r.o[i] = 0.0f;
        r.m[0] = r.m[1] = -INFINITY, r.l[0] = r.l[1] = 0.0f;
        if (b.end > b.first) {
            const uint32_t q = at.q + g * 64 * 128;
            barrier_wait(at.q_full, q_phase);
            q_phase ^= 1;
            barrier_wait(at.k_full + 8 * k.at, k.phase);
            if (S::TURNS) group_sync(1 + g, 256);
            start_scores<S>(r, q, at.k + k.at * S::K_BYTES);
            if (S::TURNS) group_arrive(2 - g, 256);
            products_wait<0>();
            hold(r.s);
            if (leader) barrier_arrive(at.k_empty + 8 * k.at);
            if (S::APART && leader && b.end - b.first == 1) barrier_arrive(at.q_empty);
            advance<S::STAGES>(k);
            if (b.end * S::N > all_to || (b.end - 1) * S::N < all_from) hide<S>(r, l, row, (b.end - 1) * S::N);
            weigh<S>(r, w.scale);
            pack<S>(r);
            for (int j = b.end - 2; j >= b.first; j--) {
                barrier_wait(at.k_full + 8 * k.at, k.phase);
                if (S::TURNS) group_sync(1 + g, 256);
                start_scores<S>(r, q, at.k + k.at * S::K_BYTES);
                barrier_wait(at.v_full + 8 * v.at, v.phase);
                start_values<S>(r, at.v + v.at * S::K_BYTES);
                if (S::TURNS) group_arrive(2 - g, 256);
                products_wait<1>();
                hold(r.s);
                if (leader) barrier_arrive(at.k_empty + 8 * k.at);
                if (S::APART && leader && j == b.first) barrier_arrive(at.q_empty);
                advance<S::STAGES>(k);
                if ((j + 1) * S::N > all_to || j * S::N < all_from) hide<S>(r, l, row, j * S::N);
                weigh<S>(r, w.scale);
                products_wait<0>();
                hold(r.o);
                if (leader) barrier_arrive(at.v_empty + 8 * v.at);
                advance<S::STAGES>(v);
#pragma unroll
                for (int i = 0; i < S::D / 2; i++) r.o[i] *= r.factor[i / 2 % 2];
                pack<S>(r);
            }
            barrier_wait(at.v_full + 8 * v.at, v.phase);
            start_values<S>(r, at.v + v.at * S::K_BYTES);
            products_wait<0>();
            hold(r.o);
            if (leader) barrier_arrive(at.v_empty + 8 * v.at);
            advance<S::STAGES>(v);
        }
        finish_rows<S>(w, t, l, at, g, row, r, w.boxed && b.end > b.first);
        if (!S::APART && leader && b.end > b.first) barrier_arrive(at.q_empty);
    }
    if (leader) stores_read(); /* shared memory goes with the block */
}

template <class S> __global__ void __launch_bounds__(128 * (S::GROUPS + 1), 1) prefill(const __grid_constant__ work w) {
    extern __shared__ uint8_t pool[];
    const places<S> at(shared_address(pool));
    if (threadIdx.x == 0) at.init();
    __syncthreads();
    if (threadIdx.x < 128) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(S::GROUPS == 3 ? 32 : 24));
        if (threadIdx.x == 0) produce<S>(w, at);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(S::GROUPS == 3 ? 160 : 240));
        consume<S>(w, at, threadIdx.x / 128 - 1);
    }
}

enum { MENDERS = 128 };

/* The rows of every 16 that are spoilt, again. */
__global__ void __launch_bounds__(MENDERS) mend(const __grid_constant__ work w, int64_t sixteens) {
    __shared__ float scratch[256 + MENDERS];
    for (int64_t from = (int64_t)blockIdx.x * MENDERS; from < sixteens; from += (int64_t)gridDim.x * MENDERS) {
        const bool mine = from + threadIdx.x < sixteens && w.spoilt[from + threadIdx.x] != 0;
        if (!__syncthreads_or(mine)) continue;
        for (int64_t n = from; n < min(from + MENDERS, sixteens); n++) {
            const int64_t first = n % w.spoilt_rows * 16, h = n / w.spoilt_rows % w.c.p.heads_q, b = n / w.spoilt_rows / w.c.p.heads_q;
            const int64_t end = min(first + 16, length(w.c.a.len_q, b, w.c.p.len_q));
            if (w.spoilt[n] == 0) continue;
            for (int64_t row = first; row < end; row++) mend_row<MENDERS>(w.c, b, h, row, scratch, scratch + 256);
        }
    }
}

template <class S> cudaError_t start(work &w, int processors, cudaStream_t stream) {
    const attn_problem *p = &w.c.p;
    cudaError_t error = attn_cuda_map(&w.q, p->type_q, w.c.a.q, &p->q, p->batch, p->heads_q, p->len_q, p->dim_qk, S::M);
    if (error == cudaSuccess) error = map_keys(&w.k, p->type_k, w.c.a.k, &p->k, p, p->dim_qk, S::N);
    if (error == cudaSuccess) error = map_keys(&w.v, p->type_v, w.c.a.v, &p->v, p, p->dim_v, S::N);
    if (error == cudaSuccess && w.boxed)
        error = attn_cuda_map(&w.out, p->type_out, w.c.a.out, &p->out, p->batch, p->heads_q, p->len_q, p->dim_v, 64);
    if (error == cudaSuccess) error = cudaFuncSetAttribute(prefill<S>, cudaFuncAttributeMaxDynamicSharedMemorySize, S::SIZE);
    if (error != cudaSuccess) return error;
    w.row_tiles = ((int)p->len_q + S::M - 1) / S::M;
    w.tiles = w.row_tiles * (int)(p->batch * p->heads_q);
    const int64_t sixteens = p->batch * p->heads_q * w.spoilt_rows, menders = (sixteens + MENDERS - 1) / MENDERS, most = processors * 8;
    const dim3 blocks((unsigned)(w.tiles < processors ? w.tiles : processors)), sweepers((unsigned)(menders < most ? menders : most));
    const auto kernel = prefill<S>;
    kernel<<<blocks, 128 * (S::GROUPS + 1), S::SIZE, stream>>>(w);
    mend<<<sweepers, MENDERS, 0, stream>>>(w, sixteens);
    return cudaGetLastError();
}

template <bool BF16> cudaError_t start_type(work &w, bool fast, int processors, cudaStream_t stream) {
    const int64_t dim = w.c.p.dim_qk > w.c.p.dim_v ? w.c.p.dim_qk : w.c.p.dim_v;
    if (dim <= 64 && fast) return start<shape<64, 128, 3, 2, BF16, 1, false>>(w, processors, stream);
    if (dim <= 64) return start<shape<64, 128, 2, 2, BF16, 2, true>>(w, processors, stream);
    if (dim <= 128 && fast) return start<shape<128, 160, 2, 2, BF16, 1, true>>(w, processors, stream);
    if (dim <= 128) return start<shape<128, 128, 2, 2, BF16, 2, true>>(w, processors, stream);
    if (fast) return start<shape<256, 80, 2, 2, BF16, 1, false>>(w, processors, stream);
    return start<shape<256, 64, 2, 2, BF16, 2, false>>(w, processors, stream);
}

} // namespace

static int64_t sixteens_of(const attn_problem *p) { return (p->len_q + 15) / 16; }

size_t attn_cuda_prefill_workspace(const attn_problem *p) { return (size_t)(p->batch * p->heads_q * sixteens_of(p)); }

cudaError_t attn_cuda_prefill(const attn_cuda_unit *unit, const attn_cuda_call *call) {
    const attn_problem *p = &call->p;
    work w = {};
    w.c = *call;
    w.spoilt = (uint8_t *)call->a.workspace;
    w.spoilt_rows = (int)sixteens_of(p);
    w.group = (int)(p->heads_q / p->heads_kv);
    w.scale = p->scale * 1.44269504f;
    w.descends = p->right != ATTN_UNBOUNDED;
    w.boxed = p->type_out == p->type_q && call->a.len_q == nullptr && attn_cuda_aligned(call->a.out) &&
              attn_cuda_mappable(&p->out, p->batch, p->heads_q, p->len_q, p->dim_v);
    w.seen = band_of(p);
    /* Key heads whose keys and values take 32 MB, but so many that each row of tiles keeps the processors busy. */
    const double each = (double)(p->dim_qk + p->dim_v) * 2.0 * (double)p->len_kv, fit = 33554432.0 / (each < 1.0 ? 1.0 : each);
    const int64_t pairs = p->batch * p->heads_kv, least = ((w.descends ? 32 : 16) + w.group - 1) / w.group;
    w.section = (int)(fit < (double)least ? least : fit < (double)pairs ? (int64_t)fit : pairs);
    if (w.section > pairs) w.section = (int)pairs;
    const cudaStream_t stream = (cudaStream_t)call->a.stream;
    return p->type_q == ATTN_BF16 ? start_type<true>(w, unit->fast, unit->processors, stream)
                                  : start_type<false>(w, unit->fast, unit->processors, stream);
}
