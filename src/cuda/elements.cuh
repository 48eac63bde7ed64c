/* elements.cuh: elements of any type, and what a row may see, on the device. */
#ifndef ATTN_ELEMENTS_CUH
#define ATTN_ELEMENTS_CUH
#include "cuda.h"
#include <cuda_bf16.h>
#include <cuda_fp16.h>

static __device__ __forceinline__ float element(const void *base, int64_t index, attn_type type) {
    if (type == ATTN_F16) return __half2float(((const __half *)base)[index]);
    if (type == ATTN_BF16) return __bfloat162float(((const __nv_bfloat16 *)base)[index]);
    return ((const float *)base)[index];
}

static __device__ __forceinline__ void store_element(void *base, int64_t index, attn_type type, float value) {
    if (type == ATTN_F16)
        ((__half *)base)[index] = __float2half_rn(value);
    else if (type == ATTN_BF16)
        ((__nv_bfloat16 *)base)[index] = __float2bfloat16_rn(value);
    else
        ((float *)base)[index] = value;
}

static __device__ __forceinline__ int64_t place(const attn_strides &s, int64_t b, int64_t h, int64_t row) {
    return b * s.batch + h * s.head + row * s.row;
}

/* ---- lengths and band: attn_sequence_of and attn_visible (src/problem.c) in device code; lengths out of range count as the nearest ----
 */
static __device__ __forceinline__ int64_t length(const int32_t *lengths, int64_t b, int64_t most) {
    if (lengths == nullptr) return most;
    int64_t n = lengths[b];
    return n < 0 ? 0 : n > most ? most : n;
}

typedef __int128 exact; /* holds every sum of offset, lengths and band */

struct sequence {
    int64_t len_q, len_kv;
    exact diagonal;
};

static __device__ __forceinline__ sequence sequence_of(const attn_cuda_call &c, int64_t b) {
    sequence s = { length(c.a.len_q, b, c.p.len_q), length(c.a.len_kv, b, c.p.len_kv), c.p.offset };
    if (c.p.align == ATTN_BOTTOM_RIGHT) s.diagonal += s.len_kv - s.len_q;
    return s;
}

struct range {
    int64_t lo, hi;
};

static __device__ __forceinline__ range visible(const attn_problem &p, const sequence &s, int64_t i) {
    const exact at = s.diagonal + i, len = s.len_kv;
    const exact lo = p.left >= 0 ? at - p.left : 0, hi = p.right >= 0 ? at + p.right + 1 : len;
    range r = { (int64_t)(lo < 0 ? 0 : lo > len ? len : lo), (int64_t)(hi < 0 ? 0 : hi > len ? len : hi) };
    if (r.hi < r.lo || i >= s.len_q) r.hi = r.lo;
    return r;
}

/* ---- states ---- */
struct state {
    float m, l;
};

/* What o of each is to be multiplied by when a state b joins a: a * f + b * g. One with l = 0 has seen nothing and does not count, whatever
 * its o holds: its factor is IGNORED. */
#define IGNORED (-1.0f)
static __device__ __forceinline__ void fold(state &a, const state &b, float &f, float &g) {
    f = g = 1.0f;
    if (b.l == 0.0f) {
        g = IGNORED;
    } else if (a.l == 0.0f) {
        f = IGNORED, a = b;
    } else {
        const float top = fmaxf(a.m, b.m);
        if (a.m != top) f = expf(a.m - top);
        if (b.m != top) g = expf(b.m - top);
        a.l = a.l * f + b.l * g;
        a.m = top;
    }
}

static __device__ __forceinline__ float folded(float a, float f, float b, float g) {
    return g == IGNORED ? a : f == IGNORED ? b : a * f + b * g;
}

/* A row's end: out = o * factor / divisor, 0 where factor is IGNORED; and lse. */
static __device__ __forceinline__ void finish(const float *sinks, int64_t h, const state &s, float &factor, float &divisor, float &lse) {
    const float sink = sinks != nullptr ? sinks[h] : -INFINITY;
    factor = divisor = 1.0f;
    if (s.l == 0.0f) {
        factor = IGNORED, lse = sink;
    } else if (sink == -INFINITY) {
        divisor = s.l, lse = s.m + logf(s.l);
    } else {
        const float top = fmaxf(s.m, sink);
        if (s.m != top) factor = expf(s.m - top);
        divisor = s.l * factor + (sink == top ? 1.0f : expf(sink - top));
        lse = top + logf(divisor);
    }
}

static __device__ __forceinline__ float finished(float o, float factor, float divisor) {
    return factor == IGNORED ? 0.0f : o * factor / divisor;
}
#endif
