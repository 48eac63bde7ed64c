/* measure.cu: a GPU's ceilings: how fast it reads its memory, multiplies and adds float32, and multiplies matrices of bf16. */
#include "cuda.h"
#include <cstdio>

namespace {

enum { THREADS = 256, CHAINS = 8, ROUNDS = 4096, READ = 1 << 30, TRIES = 5 };

__global__ void __launch_bounds__(THREADS) read_all(const uint4 *from, size_t count, unsigned *to) {
    unsigned sum = 0;
    const size_t step = (size_t)gridDim.x * THREADS;
    size_t i = (size_t)blockIdx.x * THREADS + threadIdx.x;
    for (; i + 3 * step < count; i += 4 * step) {
        const uint4 a = __ldcs(from + i), b = __ldcs(from + i + step), c = __ldcs(from + i + 2 * step), d = __ldcs(from + i + 3 * step);
        sum += (a.x ^ a.y ^ a.z ^ a.w) + (b.x ^ b.y ^ b.z ^ b.w) + (c.x ^ c.y ^ c.z ^ c.w) + (d.x ^ d.y ^ d.z ^ d.w);
    }
    if (sum == 0x12345678u) *to = sum; /* so that the loads are not left out */
}

__global__ void __launch_bounds__(THREADS) multiply_add(float a, float b, float *to) {
    float x[CHAINS];
#pragma unroll
    for (int i = 0; i < CHAINS; i++) x[i] = (float)(threadIdx.x + i);
    for (int n = 0; n < ROUNDS; n++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++) x[i] = fmaf(x[i], a, b);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += x[i];
    if (sum == 12345.0f) *to = sum;
}

/* Numbers other than zero: products of zeros take less power, and the clock rises. */
__global__ void __launch_bounds__(THREADS) multiply_matrices(uint32_t seed, float *to) {
    float x[CHAINS][4];
    uint32_t a[4], b[2];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = (seed * (threadIdx.x + i + 1) & 0x807f807fu) | 0x3f003f00u;
#pragma unroll
    for (int i = 0; i < 2; i++) b[i] = (seed * (threadIdx.x + i + 9) & 0x807f807fu) | 0x3f003f00u;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) x[i][0] = x[i][1] = x[i][2] = x[i][3] = (float)threadIdx.x;
    for (int n = 0; n < ROUNDS; n++)
#pragma unroll
        for (int i = 0; i < CHAINS; i++)
            asm volatile(
                "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                : "+f"(x[i][0]), "+f"(x[i][1]), "+f"(x[i][2]), "+f"(x[i][3])
                : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < CHAINS; i++) sum += x[i][0] + x[i][1] + x[i][2] + x[i][3];
    if (sum == 12345.0f) *to = sum;
}

void start(attn_ceiling ceiling, int blocks, void *memory, float *result) {
    if (ceiling == ATTN_DRAM_READ)
        read_all<<<blocks, THREADS>>>((const uint4 *)memory, READ / sizeof(uint4), (unsigned *)result);
    else if (ceiling == ATTN_FMA_F32)
        multiply_add<<<blocks, THREADS>>>(0.999f, 0.001f, result);
    else
        multiply_matrices<<<blocks, THREADS>>>(2654435761u, result);
}

double work_of(attn_ceiling ceiling, int blocks) {
    if (ceiling == ATTN_DRAM_READ) return READ;
    const double threads = (double)blocks * THREADS;
    return ceiling == ATTN_FMA_F32 ? threads * ROUNDS * CHAINS * 2 : threads / 32 * ROUNDS * CHAINS * (2.0 * 16 * 8 * 16);
}

cudaError_t best_of(attn_ceiling ceiling, int blocks, void *memory, float *result, double *per_second) {
    cudaEvent_t begin, end;
    cudaError_t error = cudaEventCreate(&begin);
    if (error != cudaSuccess) return error;
    if ((error = cudaEventCreate(&end)) != cudaSuccess) return cudaEventDestroy(begin), error;
    for (int i = 0; i <= TRIES && error == cudaSuccess; i++) { /* the first warms up */
        float ms = 0.0f;
        cudaEventRecord(begin);
        start(ceiling, blocks, memory, result);
        cudaEventRecord(end);
        error = cudaEventSynchronize(end);
        if (error == cudaSuccess) error = cudaEventElapsedTime(&ms, begin, end);
        const double rate = work_of(ceiling, blocks) / (ms * 1e-3);
        if (i > 0 && rate > *per_second) *per_second = rate;
    }
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return error;
}

} // namespace

cudaError_t attn_cuda_measure(const attn_cuda_unit *unit, attn_ceiling ceiling, double *per_second) {
    void *memory = nullptr;
    const size_t size = ceiling == ATTN_DRAM_READ ? (size_t)READ + 256 : 256;
    cudaError_t error = cudaMalloc(&memory, size);
    if (error != cudaSuccess) return error;
    *per_second = 0.0;
    error = cudaMemset(memory, 1, size);
    if (error == cudaSuccess) error = best_of(ceiling, unit->processors * 8, memory, (float *)((char *)memory + size - 256), per_second);
    const cudaError_t freed = cudaFree(memory);
    return error != cudaSuccess ? error : freed;
}
