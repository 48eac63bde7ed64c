/* wgmma.cuh: the matrix products of a warpgroup (sm_90a): d[64][N] += a[64][16] * b[16][N], sums in float32. Operands in shared memory are
 * given by descriptors, a may lie in registers. ss, rs: b is [N][16] in memory; rv: b is [16][N]. */
#ifndef ATTN_WGMMA_CUH
#define ATTN_WGMMA_CUH
#include <cstdint>

/* clang-format off */
#define ACC8(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACC32(d, i) ACC8(d, i), ACC8(d, i + 8), ACC8(d, i + 16), ACC8(d, i + 24)
#define NUMA "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define NUMB "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define NUMC "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define NUMD "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define SPREAD(...) __VA_ARGS__

template <int N, bool BF16> struct wgmma;

#define WGMMA(N, BF16, TYPE, NUMS, ACCS, I0, I1, I2, I3, I4, I5)                                                                            \
    template <> struct wgmma<N, BF16> {                                                                                                     \
        static __device__ __forceinline__ void ss(float (&d)[N / 2], uint64_t a, uint64_t b, int add) {                                     \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, " I2 ", 0;"                                                                        \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NUMS "}, " I0 ", " I1 ", p, 1, 1, 0, 0; }"     \
                         : ACCS : "l"(a), "l"(b), "r"(add));                                                                                \
        }                                                                                                                                   \
        static __device__ __forceinline__ void rs(float (&d)[N / 2], const uint32_t *a, uint64_t b, int add) {                              \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, " I5 ", 0;"                                                                        \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NUMS "}, {" I0 ", " I1 ", " I2 ", " I3 "}, "    \
                         I4 ", p, 1, 1, 0; }"                                                                                               \
                         : ACCS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                            \
        }                                                                                                                                   \
        static __device__ __forceinline__ void rv(float (&d)[N / 2], const uint32_t *a, uint64_t b, int add) {                              \
            asm volatile("{ .reg .pred p; setp.ne.b32 p, " I5 ", 0;"                                                                        \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE " {" NUMS "}, {" I0 ", " I1 ", " I2 ", " I3 "}, "    \
                         I4 ", p, 1, 1, 1; }"                                                                                               \
                         : ACCS : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add));                                            \
        }                                                                                                                                   \
    };
WGMMA(64, true, "bf16", NUMA, SPREAD(ACC32(d, 0)), "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA(64, false, "f16", NUMA, SPREAD(ACC32(d, 0)), "%32", "%33", "%34", "%35", "%36", "%37")
WGMMA(80, true, "bf16", NUMA ", %32, %33, %34, %35, %36, %37, %38, %39", SPREAD(ACC32(d, 0), ACC8(d, 32)), "%40", "%41", "%42", "%43", "%44", "%45")
WGMMA(80, false, "f16", NUMA ", %32, %33, %34, %35, %36, %37, %38, %39", SPREAD(ACC32(d, 0), ACC8(d, 32)), "%40", "%41", "%42", "%43", "%44", "%45")
WGMMA(128, true, "bf16", NUMA ", " NUMB, SPREAD(ACC32(d, 0), ACC32(d, 32)), "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA(128, false, "f16", NUMA ", " NUMB, SPREAD(ACC32(d, 0), ACC32(d, 32)), "%64", "%65", "%66", "%67", "%68", "%69")
WGMMA(256, true, "bf16", NUMA ", " NUMB ", " NUMC ", " NUMD, SPREAD(ACC32(d, 0), ACC32(d, 32), ACC32(d, 64), ACC32(d, 96)), "%128", "%129", "%130", "%131", "%132", "%133")
WGMMA(256, false, "f16", NUMA ", " NUMB ", " NUMC ", " NUMD, SPREAD(ACC32(d, 0), ACC32(d, 32), ACC32(d, 64), ACC32(d, 96)), "%128", "%129", "%130", "%131", "%132", "%133")
WGMMA(160, true, "bf16", NUMA ", " NUMB ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79", SPREAD(ACC32(d, 0), ACC32(d, 32), ACC8(d, 64), ACC8(d, 72)), "%80", "%81", "%82", "%83", "%84", "%85")
WGMMA(160, false, "f16", NUMA ", " NUMB ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79", SPREAD(ACC32(d, 0), ACC32(d, 32), ACC8(d, 64), ACC8(d, 72)), "%80", "%81", "%82", "%83", "%84", "%85")

/* clang-format on */
#endif
