/* isa_neon.c: the kernels in Advanced SIMD, which every 64-bit ARM processor has. */
#include "vec_neon.h"

#include "kernels.tmpl.h"
