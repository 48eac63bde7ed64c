/* isa_avx2.c: the kernels in AVX2, FMA and F16C (compiled with their flags). */
#include "kernels.tmpl.h"
#include "vec_avx2.h"
