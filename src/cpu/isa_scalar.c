/* isa_scalar.c: the kernels in plain C, for any machine. */
#include "vec_scalar.h"

#include "kernels.tmpl.h"
