/* measure.c: reads a buffer far larger than the caches, or multiplies and adds in registers, on all threads at once. The best of several
 * rounds: a ceiling is what the machine can do, not what it did while something else ran. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* madvise */
#endif
#include "measure.h"
#include "system.h"
#include <string.h>
#if defined __linux__
#include <sys/mman.h>
#endif

enum { ROUNDS = 7 };
static const size_t buffer_bytes = (size_t)512 << 20, page_bytes = (size_t)2 << 20;
static const int64_t arithmetic_rounds = 1 << 20;

typedef struct measurement {
    const attn_kernels *kernels;
    const char *buffer;
    int slots;
    double (*rate)(int64_t rounds);
    double operations; /* of one slot */
} measurement;

static void read_slot(void *state, size_t slot) {
    measurement *m = state;
    const size_t pages = buffer_bytes / page_bytes, from = pages * slot / (size_t)m->slots, to = pages * (slot + 1) / (size_t)m->slots;
    m->kernels->read(m->buffer + from * page_bytes, (to - from) * page_bytes);
}

static void arithmetic_slot(void *state, size_t slot) {
    measurement *m = state;
    double operations = m->rate(arithmetic_rounds);
    if (slot == 0) m->operations = operations;
}

static double best_seconds(attn_pool *pool, measurement *m, attn_job job) {
    double best = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        double start = attn_seconds();
        attn_pool_run(pool, job, m, m->slots);
        double took = attn_seconds() - start;
        if (took < best) best = took;
    }
    return best > 0.0 ? best : 1e-9;
}

attn_status attn_cpu_measure(const attn_kernels *kernels, attn_pool *pool, attn_ceiling ceiling, double *per_second) {
    measurement m = { .kernels = kernels, .slots = attn_pool_threads(pool) };
    if (ceiling == ATTN_FMA_F32 || ceiling == ATTN_DOT_BF16) {
        m.rate = ceiling == ATTN_FMA_F32 ? kernels->fma_rate : kernels->dot_rate;
        if (!m.rate) return ATTN_ERROR_CEILING;
        double took = best_seconds(pool, &m, arithmetic_slot);
        *per_second = m.operations * (double)m.slots / took;
        return ATTN_OK;
    }
    if (ceiling != ATTN_DRAM_READ) return ATTN_ERROR_CEILING;
    void *buffer = attn_memory_take(page_bytes, buffer_bytes);
    if (buffer == NULL) return ATTN_ERROR_OUT_OF_MEMORY;
#if defined __linux__ && defined MADV_HUGEPAGE
    madvise(buffer, buffer_bytes, MADV_HUGEPAGE); /* where refused, small pages: the figure is lower, as it is for everyone's tensors */
#endif
    memset(buffer, 1, buffer_bytes);
    m.buffer = buffer;
    *per_second = (double)buffer_bytes / best_seconds(pool, &m, read_slot);
    attn_memory_give(buffer);
    return ATTN_OK;
}
