/* mend.cuh: one row by plain arithmetic. The kernels of Hopper multiply what a row does not see by a weight of 0, which is 0 unless it is
 * NaN or infinite, and their float32 sums may leave the range where the result does not. Either way the row is not finite then: it is done
 * again here, where nothing that is not seen is touched. */
#ifndef ATTN_MEND_CUH
#define ATTN_MEND_CUH
#include "elements.cuh"

static __device__ __forceinline__ bool finite(float x) { return fabsf(x) < INFINITY; }

static __device__ inline float plain_score(const attn_cuda_call &c, int64_t b, int64_t h, int64_t row, int64_t j) {
    const int64_t q = place(c.p.q, b, h, row), k = place(c.p.k, b, h / (c.p.heads_q / c.p.heads_kv), j);
    float sum = 0.0f;
    for (int64_t d0 = 0; d0 < c.p.dim_qk; d0 += 16) {
        float chain = 0.0f;
        for (int64_t d = d0; d < d0 + 16 && d < c.p.dim_qk; d++)
            chain = fmaf(element(c.a.q, q + d, c.p.type_q), element(c.a.k, k + d, c.p.type_k), chain);
        sum += chain;
    }
    return sum * c.p.scale;
}

/* By all THREADS threads of a block. o: dim_v floats in shared memory, weight: THREADS. */
template <int THREADS>
static __device__ void mend_row(const attn_cuda_call &c, int64_t b, int64_t h, int64_t row, float *o, float *weight) {
    const sequence seq = sequence_of(c, b);
    const range keys = visible(c.p, seq, row);
    const int64_t g = h / (c.p.heads_q / c.p.heads_kv);
    float top = -INFINITY;
    __syncthreads();
    for (int64_t j = keys.lo + threadIdx.x; j < keys.hi; j += THREADS)
        top = fmaxf(top, plain_score(c, b, h, row, j)); /* NaN comes back below */
    weight[threadIdx.x] = top;
    for (int64_t d = threadIdx.x; d < c.p.dim_v; d += THREADS) o[d] = 0.0f;
    __syncthreads();
    for (int i = 0; i < THREADS; i++) top = fmaxf(top, weight[i]);
    const float shift = top == -INFINITY ? 0.0f : top;
    state all = { top, 0.0f };
    for (int64_t j0 = keys.lo; j0 < keys.hi; j0 += THREADS) {
        const int count = (int)(keys.hi - j0 < THREADS ? keys.hi - j0 : THREADS);
        __syncthreads();
        if (threadIdx.x < count) weight[threadIdx.x] = expf(plain_score(c, b, h, row, j0 + threadIdx.x) - shift);
        __syncthreads();
        float sum = 0.0f;
        for (int n = 0; n < count; n++) sum += weight[n];
        all.l += sum;
        for (int64_t d = threadIdx.x; d < c.p.dim_v; d += THREADS) {
            float chain = 0.0f;
            for (int n = 0; n < count; n++) chain = fmaf(weight[n], element(c.a.v, place(c.p.v, b, g, j0 + n) + d, c.p.type_v), chain);
            o[d] += chain;
        }
    }
    float factor, divisor, lse;
    finish(c.a.sinks, h, all, factor, divisor, lse);
    for (int64_t d = threadIdx.x; d < c.p.dim_v; d += THREADS)
        store_element(c.a.out, place(c.p.out, b, h, row) + d, c.p.type_out, finished(o[d], factor, divisor));
    if (threadIdx.x == 0 && c.a.lse != nullptr) c.a.lse[place(c.p.lse, b, h, row)] = lse;
    __syncthreads();
}

/* ---- a row's limits in 32 bits, for lengths up to 2^28: what is farther off than FAR is as good as unbounded ---- */
enum { FAR = 1 << 30 };
struct band { /* row i sees keys from i + lo to i + hi - 1, of those there are; both moved by len_kv - len_q where it ends bottom right */
    int lo, hi;
    bool ends;
};
static inline int within(exact x) { return x < -FAR ? -FAR : x > FAR ? FAR : (int)x; }
static inline band band_of(const attn_problem *p) {
    return { p->left >= 0 ? within((exact)p->offset - p->left) : -FAR, p->right >= 0 ? within((exact)p->offset + p->right + 1) : FAR,
             p->align == ATTN_BOTTOM_RIGHT };
}
struct limits {
    int len_q, len_kv, lo, hi;
};
static __device__ __forceinline__ limits limits_of(const attn_cuda_call &c, const band &all, int b) {
    limits r = { (int)length(c.a.len_q, b, c.p.len_q), (int)length(c.a.len_kv, b, c.p.len_kv), all.lo, all.hi };
    if (all.ends) r.lo += r.len_kv - r.len_q, r.hi += r.len_kv - r.len_q;
    return r;
}
static __device__ __forceinline__ int lo_of(const limits &r, int i) { return max(0, min(r.len_kv, i + r.lo)); }
static __device__ __forceinline__ int hi_of(const limits &r, int i) { return max(0, min(r.len_kv, i + r.hi)); }
#endif
