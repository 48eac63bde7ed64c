/* isa_avx2.c: the kernels in AVX2, FMA and F16C (compiled with their flags). */
#include "vec_avx2.h"

#include "kernels.tmpl.h"
