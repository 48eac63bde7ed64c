/* plan.h: problem + machine -> kernel, row blocks, chunks, passes, jobs and the layout of the workspace. Pure arithmetic: no pointers are
 * followed, nothing is allocated. What decides bits (blocks, chunks) comes from the problem and the ISA; threads decide only who does it.
 */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H
#include "cpu/kernels.h"
#include "problem.h"
#include <stdatomic.h>

typedef struct attn_machine { /* what a context offers */
    const attn_kernels *kernels;
    int threads, passes; /* passes 0: the plan decides */
    int64_t chunk;       /* keys; 0: ATTN_BLOCK */
    bool fast;           /* options.precision */
} attn_machine;

typedef struct attn_plan {
    int64_t group, rows;        /* query heads of a key head; rows that share one (group * len_q, at full length) */
    int64_t block_rows, blocks; /* rows of a row block, at most; row blocks of a key head */
    int64_t chunk, chunks;      /* keys of a chunk; chunks of len_kv */
    int64_t span, spans;        /* consecutive chunks that one job takes; jobs along the keys (1 in one pass) */
    int64_t jobs;
    int passes, slots;          /* slots: threads that take part, each with its own scratch */
    int64_t q_stride, o_stride; /* floats */
    int64_t state_rows;         /* rows of a key head in the states region, padded */
    attn_way way;               /* at full length */
    bool tiles, masked;         /* rows beyond the thin way's go the tile way; a mask is given */
    double bytes, operations;
    double weight_error;                          /* what a probability may lose, relative to it */
    size_t regions_size, scratch_size, workspace; /* bytes */
    const char *reason;
} attn_plan;

void attn_plan_make(const attn_machine *machine, const attn_problem *problem, attn_plan *plan);

/* The way of a sequence with so many rows to a key head: of its own, so that a row's bits do not depend on the sequences around it. */
static inline attn_way attn_plan_way(const attn_plan *plan, const attn_kernels *kernels, int64_t rows) {
    return rows <= kernels->thin_rows ? ATTN_THIN : plan->tiles ? ATTN_TILE : ATTN_WIDE;
}

/* The workspace, typed. Pass 1 writes float32 states here, one for each (batch * key head, chunk, row); `left` counts the jobs of a row
 * block that are still to come: who brings it to 0 does pass 2. NULL in one pass. */
typedef struct attn_regions {
    atomic_int *left;
    attn_states states;
} attn_regions;
attn_regions attn_plan_regions(const attn_plan *plan, const attn_problem *problem, void *workspace);

/* One slot's scratch; rows are of a row block. */
typedef struct attn_scratch {
    float *q, *scores, *convert, *bias, *slopes, *diagonal;
    void *packed, *tile;
    int32_t *lo, *hi;
    const float **bias_rows;
    const void **mask_rows;
    unsigned char *seen;               /* [ATTN_BLOCK] */
    float *zero;                       /* [ATTN_BLOCK]: the values of a mask that hides nothing */
    attn_states running, chunk, block; /* chunk is block where a chunk is one block */
} attn_scratch;
attn_scratch attn_plan_scratch(const attn_plan *plan, const attn_problem *problem, void *workspace, int slot);
#endif
