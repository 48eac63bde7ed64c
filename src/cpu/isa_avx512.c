/* isa_avx512.c: the kernels in AVX-512 F, BW, DQ, VL (compiled with their flags). */
#include "vec_avx512.h"

#include "kernels.tmpl.h"
