/* measure.h: the machine's ceilings, on a context's threads. */
#ifndef ATTN_MEASURE_H
#define ATTN_MEASURE_H
#include "kernels.h"
#include "pool.h"

attn_status attn_cpu_measure(const attn_kernels *kernels, attn_pool *pool, attn_ceiling ceiling, double *per_second);
#endif
