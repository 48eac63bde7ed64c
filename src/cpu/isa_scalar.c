/* isa_scalar.c: the kernels in plain C, for any machine. */
#include "kernels.tmpl.h"
#include "vec_scalar.h"
