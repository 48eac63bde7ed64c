/* isa_avx512bf16.c: the kernels in AVX-512 with bf16 dot products (compiled with their flags). */
#define ISA avx512bf16
#include "vec_avx512.h"

#include "kernels.tmpl.h"
