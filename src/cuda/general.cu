/* general.cu: every problem there is, by plain float32 arithmetic: 16 rows of a head to a block, 32 keys at a time, a thread for each
 * element of a slice of values. Keys are cut into chunks, whose states are folded in order, by the block itself or by a second kernel: the
 * same bits either way. */
#include "elements.cuh"

namespace {

enum { ROWS = 16, KEYS = 32, THREADS = 128, DIMS = 64, SLICE = THREADS, CHAIN = 16, LANES = THREADS / ROWS };

/* What a block works on. */
struct job {
    int64_t b, h, row, slice, chunk; /* the first row and element of the values; the chunk, or -1 for all */
};

__device__ job job_of(const attn_cuda_call &c, int64_t n, int64_t chunks) {
    const int64_t slices = (c.p.dim_v + SLICE - 1) / SLICE, tiles = (c.p.len_q + ROWS - 1) / ROWS;
    job j;
    j.chunk = chunks > 0 ? n % chunks : -1;
    if (chunks > 0) n /= chunks;
    j.slice = n % slices * SLICE, n /= slices;
    j.row = n % tiles * ROWS, n /= tiles;
    j.h = n % c.p.heads_q, j.b = n / c.p.heads_q;
    return j;
}

struct shared {
    float q[ROWS][DIMS + 1], k[KEYS][DIMS + 1], weight[ROWS][KEYS + 1];
    float scale[ROWS]; /* what a row's sums are to be multiplied by */
    float m[ROWS], l[ROWS];
};

/* Scores of a thread's row with keys lane, lane + LANES, ... of the block that begins with key j0. A score is a sum of chains. */
__device__ void products(const attn_cuda_call &c, const job &w, shared &s, int64_t g, int64_t j0, range keys, float *score) {
    const int t = threadIdx.x, row = t / LANES, lane = t % LANES;
    for (int n = 0; n < KEYS / LANES; n++) score[n] = 0.0f;
    for (int64_t d0 = 0; d0 < c.p.dim_qk; d0 += DIMS) {
        __syncthreads();
        for (int i = t; i < ROWS * DIMS; i += THREADS) {
            const int64_t r = w.row + i / DIMS, d = d0 + i % DIMS;
            s.q[i / DIMS][i % DIMS] = r < c.p.len_q && d < c.p.dim_qk ? element(c.a.q, place(c.p.q, w.b, w.h, r) + d, c.p.type_q) : 0.0f;
        }
        for (int i = t; i < KEYS * DIMS; i += THREADS) {
            const int64_t j = j0 + i / DIMS, d = d0 + i % DIMS;
            const bool there = j >= keys.lo && j < keys.hi && d < c.p.dim_qk;
            s.k[i / DIMS][i % DIMS] = there ? element(c.a.k, place(c.p.k, w.b, g, j) + d, c.p.type_k) : 0.0f;
        }
        __syncthreads();
        for (int d = 0; d < DIMS; d += CHAIN)
            for (int n = 0; n < KEYS / LANES; n++) {
                float chain = 0.0f;
                for (int i = 0; i < CHAIN; i++) chain = fmaf(s.q[row][d + i], s.k[lane + n * LANES][d + i], chain);
                score[n] += chain;
            }
    }
}

/* false where a mask hides the key. */
__device__ bool masked_score(const attn_cuda_call &c, const job &w, int64_t r, int64_t j, const sequence &seq, float &score) {
    score *= c.p.scale;
    if (c.p.softcap > 0.0f) score = c.p.softcap * tanhf(score / c.p.softcap);
    if (c.p.type_mask != ATTN_NONE) {
        const int64_t at = w.b * c.p.mask.batch + w.h * c.p.mask.head + r * c.p.mask.row + j * c.p.mask.key;
        if (c.p.type_mask == ATTN_BOOL) {
            if (((const uint8_t *)c.a.mask)[at] == 0) return false;
        } else {
            const float bias = element(c.a.mask, at, c.p.type_mask);
            if (bias == -INFINITY) return false;
            score += bias;
        }
    }
    if (c.a.slopes != nullptr) score -= c.a.slopes[w.h] * fabsf((float)(r + seq.diagonal - j));
    return true;
}

/* Eight lanes a row: their largest, their sum. */
__device__ float row_max(float x) {
    for (int i = 1; i < LANES; i *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, i));
    return x;
}
__device__ float row_sum(float x) {
    for (int i = 1; i < LANES; i *= 2) x += __shfl_xor_sync(~0u, x, i);
    return x;
}

/* Weights of the block's keys for a thread's row, with -1 for what it does not see, and the row's state brought up to date. */
__device__ void weigh(const attn_cuda_call &c, const job &w, shared &s, const sequence &seq, range mine, int64_t j0, float *score) {
    const int row = threadIdx.x / LANES, lane = threadIdx.x % LANES;
    const bool plain = c.p.softcap == 0.0f && (c.p.type_mask == ATTN_NONE || c.p.type_mask == ATTN_BOOL) && c.a.slopes == nullptr;
    bool seen[KEYS / LANES];
    float top = -INFINITY, product[KEYS / LANES];
    for (int n = 0; n < KEYS / LANES; n++) {
        const int64_t j = j0 + lane + n * LANES;
        product[n] = score[n];
        seen[n] = j >= mine.lo && j < mine.hi && masked_score(c, w, w.row + row, j, seq, score[n]);
        if (seen[n]) top = fmaxf(top, score[n]); /* NaN is no candidate: it comes back in the sum */
    }
    const float before = s.m[row];
    top = fmaxf(row_max(top), before);
    const float shift = top == -INFINITY ? 0.0f : top;
    float sum = 0.0f;
    for (int n = 0; n < KEYS / LANES; n++) {
        const float p = expf(plain ? fmaf(product[n], c.p.scale, -shift) : score[n] - shift); /* one rounding less */
        s.weight[row][lane + n * LANES] = seen[n] ? p : -1.0f;
        if (seen[n]) sum += p;
    }
    sum = row_sum(sum);
    __syncwarp();
    if (lane == 0) {
        const float scale = before == top ? 1.0f : expf(before - shift);
        s.scale[row] = scale;
        s.l[row] = s.l[row] * scale + sum;
        s.m[row] = top;
    }
}

/* o += weights * values, a thread's element of all rows, in chains. */
__device__ void values(const attn_cuda_call &c, const job &w, const shared &s, int64_t g, int64_t j0, range keys, float *o) {
    const int64_t d = w.slice + threadIdx.x;
    if (d >= c.p.dim_v) return;
    for (int r = 0; r < ROWS; r++) o[r] *= s.scale[r];
    for (int from = 0; from < KEYS; from += CHAIN) {
        float chain[ROWS];
        for (int r = 0; r < ROWS; r++) chain[r] = 0.0f;
        for (int n = from; n < from + CHAIN; n++) {
            if (j0 + n < keys.lo || j0 + n >= keys.hi) continue;
            const float v = element(c.a.v, place(c.p.v, w.b, g, j0 + n) + d, c.p.type_v);
            for (int r = 0; r < ROWS; r++) {
                const float p = s.weight[r][n];
                if (!(p < 0.0f)) chain[r] = fmaf(p, v, chain[r]);
            }
        }
        for (int r = 0; r < ROWS; r++) o[r] += chain[r];
    }
}

/* One chunk from its beginning: its states come to s.m, s.l and o. */
__device__ void chunk_state(const attn_cuda_call &c, const job &w, shared &s, const sequence &seq, int64_t first, int64_t end, range all,
                            range mine, float *o) {
    const int64_t g = w.h / (c.p.heads_q / c.p.heads_kv);
    const range keys = { all.lo > first ? all.lo : first, all.hi < end ? all.hi : end };
    mine = { mine.lo > first ? mine.lo : first, mine.hi < end ? mine.hi : end };
    __syncthreads();
    if (threadIdx.x < ROWS) s.m[threadIdx.x] = -INFINITY, s.l[threadIdx.x] = 0.0f;
    for (int r = 0; r < ROWS; r++) o[r] = 0.0f;
    for (int64_t j0 = first + (keys.lo > first ? (keys.lo - first) / KEYS * KEYS : 0); j0 < keys.hi; j0 += KEYS) {
        float score[KEYS / LANES];
        products(c, w, s, g, j0, keys, score);
        weigh(c, w, s, seq, mine, j0, score);
        __syncthreads();
        values(c, w, s, g, j0, keys, o);
    }
    __syncthreads();
}

__device__ void store_rows(const attn_cuda_call &c, const job &w, const sequence &seq, const state *run, const float *o) {
    const int64_t d = w.slice + threadIdx.x;
    for (int r = 0; r < ROWS; r++) {
        if (w.row + r >= seq.len_q) return;
        float factor, divisor, lse;
        finish(c.a.sinks, w.h, run[r], factor, divisor, lse);
        if (d < c.p.dim_v) store_element(c.a.out, place(c.p.out, w.b, w.h, w.row + r) + d, c.p.type_out, finished(o[r], factor, divisor));
        if (threadIdx.x == 0 && w.slice == 0 && c.a.lse != nullptr) c.a.lse[place(c.p.lse, w.b, w.h, w.row + r)] = lse;
    }
}

__device__ void store_states(const attn_cuda_call &c, const job &w, const shared &s, const attn_cuda_states &to, const float *o) {
    const int64_t d = w.slice + threadIdx.x;
    for (int r = 0; r < ROWS && w.row + r < c.p.len_q; r++) {
        const int64_t at = ((w.b * c.p.heads_q + w.h) * to.chunks + w.chunk) * c.p.len_q + w.row + r;
        if (d < c.p.dim_v) to.o[at * c.p.dim_v + d] = o[r];
        if (threadIdx.x == 0 && w.slice == 0) to.m[at] = s.m[r], to.l[at] = s.l[r];
    }
}

__device__ void attend(const attn_cuda_call &c, const job &w, shared &s, const attn_cuda_states &states) {
    const sequence seq = sequence_of(c, w.b);
    if (w.row >= seq.len_q) return;
    range all = { INT64_MAX, 0 }; /* keys that any of the rows sees */
    for (int r = 0; r < ROWS; r++) {
        const range x = visible(c.p, seq, w.row + r);
        if (x.lo < x.hi) all.lo = x.lo < all.lo ? x.lo : all.lo, all.hi = x.hi > all.hi ? x.hi : all.hi;
    }
    const range mine = visible(c.p, seq, w.row + threadIdx.x / LANES);
    float o[ROWS];
    if (w.chunk >= 0) {
        const int64_t first = w.chunk * states.chunk;
        chunk_state(c, w, s, seq, first, first + states.chunk, all, mine, o);
        store_states(c, w, s, states, o);
        return;
    }
    state run[ROWS];
    float sum[ROWS];
    for (int r = 0; r < ROWS; r++) run[r] = { -INFINITY, 0.0f }, sum[r] = 0.0f;
    for (int64_t n = all.lo < all.hi ? all.lo / states.chunk : 0; n * states.chunk < all.hi; n++) {
        chunk_state(c, w, s, seq, n * states.chunk, (n + 1) * states.chunk, all, mine, o);
        for (int r = 0; r < ROWS; r++) {
            const state one = { s.m[r], s.l[r] };
            float f, g;
            fold(run[r], one, f, g);
            sum[r] = folded(sum[r], f, o[r], g);
        }
    }
    store_rows(c, w, seq, run, sum);
}

__global__ void __launch_bounds__(THREADS)
    forward(const __grid_constant__ attn_cuda_call c, const __grid_constant__ attn_cuda_states states, int64_t jobs, bool split) {
    __shared__ shared s;
    for (int64_t n = blockIdx.x; n < jobs; n += gridDim.x) {
        const job w = job_of(c, n, split ? states.chunks : 0);
        attend(c, w, s, states);
        __syncthreads();
    }
}

/* A block for each row: its chunks' states, folded in order. */
__global__ void __launch_bounds__(THREADS)
    gather(const __grid_constant__ attn_cuda_call c, const __grid_constant__ attn_cuda_states from, int64_t rows) {
    for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
        const int64_t row = n % c.p.len_q, h = n / c.p.len_q % c.p.heads_q, b = n / c.p.len_q / c.p.heads_q;
        if (row >= length(c.a.len_q, b, c.p.len_q)) continue;
        for (int64_t d = threadIdx.x; d < c.p.dim_v || d == threadIdx.x; d += THREADS) {
            state run = { -INFINITY, 0.0f };
            float sum = 0.0f, factor, divisor, lse;
            for (int64_t i = 0; i < from.chunks; i++) {
                const int64_t at = ((b * c.p.heads_q + h) * from.chunks + i) * c.p.len_q + row;
                const state one = { from.m[at], from.l[at] };
                float f, g;
                fold(run, one, f, g);
                if (d < c.p.dim_v && g != IGNORED) sum = folded(sum, f, from.o[at * c.p.dim_v + d], g);
            }
            finish(c.a.sinks, h, run, factor, divisor, lse);
            if (d < c.p.dim_v) store_element(c.a.out, place(c.p.out, b, h, row) + d, c.p.type_out, finished(sum, factor, divisor));
            if (d == 0 && c.a.lse != nullptr) c.a.lse[place(c.p.lse, b, h, row)] = lse;
        }
    }
}

/* ---- merge: states with an out that has been divided, and an lse ---- */
constexpr int64_t HANDED = 200; /* states that fit a kernel's parameters; more of them lie in a table */

struct some_states {
    attn_state states[HANDED];
};

__global__ void write_table(const __grid_constant__ some_states from, attn_state *to, int count) {
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = from.states[i];
}

__global__ void __launch_bounds__(THREADS) merge(const __grid_constant__ attn_cuda_call c, const __grid_constant__ some_states few,
                                                 const attn_state *table, int64_t count, int64_t rows) {
    const attn_state *states = table != nullptr ? table : few.states;
    for (int64_t n = blockIdx.x; n < rows; n += gridDim.x) {
        const int64_t row = n % c.p.len_q, h = n / c.p.len_q % c.p.heads_q, b = n / c.p.len_q / c.p.heads_q;
        if (row >= length(c.a.len_q, b, c.p.len_q)) continue;
        const int64_t out = place(c.p.out, b, h, row), lse_at = place(c.p.lse, b, h, row);
        for (int64_t d = threadIdx.x; d < c.p.dim_v || d == threadIdx.x; d += THREADS) {
            state run = { -INFINITY, 0.0f };
            float sum = 0.0f, factor, divisor, lse;
            for (int64_t i = 0; i < count; i++) {
                const float of = states[i].lse[lse_at];
                const state one = { of, of == -INFINITY ? 0.0f : 1.0f };
                float f, g;
                fold(run, one, f, g);
                if (d < c.p.dim_v && g != IGNORED) sum = folded(sum, f, states[i].out[out + d], g);
            }
            finish(nullptr, h, run, factor, divisor, lse);
            if (d < c.p.dim_v) store_element(c.a.out, out + d, c.p.type_out, finished(sum, factor, divisor));
            if (d == 0 && c.a.lse != nullptr) c.a.lse[lse_at] = lse;
        }
    }
}

unsigned grid_of(int64_t jobs) { return (unsigned)(jobs < INT32_MAX ? jobs : INT32_MAX); }

} // namespace

cudaError_t attn_cuda_general(const attn_cuda_plan *plan, const attn_cuda_call *call) {
    const cudaStream_t stream = (cudaStream_t)call->a.stream;
    const attn_cuda_states states = attn_cuda_states_of(plan, &call->p, call->a.workspace);
    if (plan->jobs == 0) return cudaSuccess;
    forward<<<grid_of(plan->jobs), THREADS, 0, stream>>>(*call, states, plan->jobs, plan->passes == 2);
    if (plan->passes == 2) {
        const int64_t rows = call->p.batch * call->p.heads_q * call->p.len_q;
        gather<<<grid_of(rows), THREADS, 0, stream>>>(*call, states, rows);
    }
    return cudaGetLastError();
}

static some_states some_of(const attn_state *states, int64_t count) {
    some_states some = {};
    for (int64_t i = 0; i < count && i < HANDED; i++) some.states[i] = states[i];
    return some;
}

cudaError_t attn_cuda_merge(const attn_cuda_call *call, const attn_state *states, int64_t count) {
    const int64_t rows = call->p.batch * call->p.heads_q * call->p.len_q;
    const cudaStream_t stream = (cudaStream_t)call->a.stream;
    attn_state *table = nullptr;
    if (rows == 0) return cudaSuccess;
    if (count > HANDED) { /* in the stream's order, so that nothing waits and a graph can hold it */
        const cudaError_t error = cudaMallocAsync((void **)&table, (size_t)count * sizeof *table, stream);
        if (error != cudaSuccess) return error;
        for (int64_t i = 0; i < count; i += HANDED) {
            const int64_t left = count - i;
            write_table<<<1, HANDED, 0, stream>>>(some_of(states + i, left), table + i, (int)(left < HANDED ? left : HANDED));
        }
    }
    merge<<<grid_of(rows), THREADS, 0, stream>>>(*call, some_of(states, count), table, count, rows);
    const cudaError_t error = cudaGetLastError();
    return table == nullptr || error != cudaSuccess ? error : cudaFreeAsync(table, stream);
}
