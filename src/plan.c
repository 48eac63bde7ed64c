/* plan.c: how a problem is cut, and where everything lies in the workspace. */
#include "plan.h"
#include "cpu/tile.h"

enum {
    JOBS_PER_SLOT = 8,          /* fewer row blocks than this to a thread balance badly: keys are cut as well */
    SPAN_MOST = 8,              /* chunks to a job: enough to stream, few enough to balance */
    STATES_MOST = 32 << 20,     /* bytes of states beyond which two passes cost more than they gain */
    WORK_PER_SLOT = 1000 * 1000 /* operations (or their worth in bytes) that pay for waking one more thread */
};
#define STATES_UNTHINKABLE 1e15

static int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }
static int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }
static int64_t times(int64_t a, int64_t b) { /* saturates */
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX / 64 : product;
}
static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* Threads that the work pays for. Reading a byte takes a core about as long as six operations. */
static int slots_for(const attn_machine *machine, const attn_plan *plan, int64_t jobs) {
    double slots = 1.0 + (plan->operations + 6.0 * plan->bytes) / WORK_PER_SLOT;
    int64_t most = least(machine->threads, jobs < 1 ? 1 : jobs);
    return slots < (double)most ? (int)slots : (int)most;
}

static void choose_passes(const attn_machine *machine, const attn_problem *problem, attn_plan *plan, int64_t row_jobs) {
    double states = (double)(problem->batch * problem->heads_kv) * (double)plan->chunks * (double)plan->state_rows *
                    (double)(plan->o_stride + 2) * sizeof(float);
    int slots = slots_for(machine, plan, times(row_jobs, plan->chunks));
    plan->passes = 1;
    if (plan->chunks < 1)
        plan->reason = "one pass: no keys";
    else if (states > STATES_UNTHINKABLE)
        plan->reason = "one pass: the states of two would not fit any memory";
    else if (machine->passes == 1)
        plan->reason = "one pass: forced";
    else if (machine->passes == 2) {
        plan->passes = 2;
        plan->reason = "two passes: forced";
    } else if (plan->chunks < 2)
        plan->reason = "one pass: the keys fit one chunk";
    else if (slots < 2)
        plan->reason = machine->threads < 2 ? "one pass: one thread" : "one pass: too little work to wake a second thread";
    else if (row_jobs >= (int64_t)JOBS_PER_SLOT * slots)
        plan->reason = "one pass: enough row blocks for the threads";
    else if (states > STATES_MOST)
        plan->reason = "one pass: the states of two would take more memory than they are worth";
    else {
        plan->passes = 2;
        plan->reason = "two passes: too few row blocks for the threads, so keys are cut as well";
    }
}

/* The layout, written once: with a base it gives pointers, and always the size. Every region begins on a cache line. */
static void *take(void *base, size_t *at, int64_t count, size_t size) {
    void *here = base ? (char *)base + *at : NULL;
    size_t bytes;
    if (__builtin_mul_overflow((size_t)count, size, &bytes) || bytes > SIZE_MAX / 64) bytes = SIZE_MAX / 64; /* more than there can be */
    *at += (bytes + 63) / 64 * 64;
    return here;
}

static attn_states take_states(void *base, size_t *at, int64_t rows, int64_t o_rows, int64_t o_stride) {
    attn_states states;
    states.m = take(base, at, rows, sizeof *states.m);
    states.l = take(base, at, rows, sizeof *states.l);
    states.o = take(base, at, o_rows * o_stride, sizeof *states.o);
    return states;
}

static size_t lay_regions(const attn_plan *plan, const attn_problem *problem, void *base, attn_regions *regions) {
    size_t at = 0;
    int64_t heads = plan->passes == 2 ? problem->batch * problem->heads_kv : 0, rows = heads * plan->chunks * plan->state_rows;
    regions->left = take(base, &at, heads * plan->blocks, sizeof *regions->left);
    regions->states = take_states(base, &at, rows, rows, plan->o_stride);
    return at;
}

static size_t lay_scratch(const attn_plan *plan, const attn_problem *problem, void *base, attn_scratch *s) {
    size_t at = 0;
    const bool thin = plan->way == ATTN_THIN, tile = plan->way == ATTN_TILE;
    int64_t rows = thin ? round_up(plan->rows, ATTN_LANES_MAX) : plan->block_rows;
    int64_t o_rows = thin ? plan->rows : rows, dim = problem->dim_qk > problem->dim_v ? problem->dim_qk : problem->dim_v;
    /* Staged keys: what a wide kernel converts, what masks hide from all, and what a band or a mask hides from one row of a NaN. */
    s->q = take(base, &at, o_rows * plan->q_stride, sizeof *s->q);
    s->packed = take(base, &at, tile ? attn_tile_packed(rows, problem->dim_qk, problem->type_q) : 0, 1);
    s->scores = take(base, &at, (tile ? ATTN_STRIP : o_rows) * ATTN_SCORES_LD, sizeof *s->scores);
    s->convert = take(base, &at, ATTN_RUN * round_up(dim, ATTN_SET_MAX), sizeof *s->convert);
    size_t tiles = tile ? attn_tile_lay(NULL, problem->dim_qk, problem->dim_v, problem->type_k, problem->type_v).size : 0;
    s->tile = take(base, &at, (int64_t)tiles, 1);
    s->bias = take(base, &at, plan->masked ? rows * ATTN_BLOCK + ATTN_LANES_MAX : 0, sizeof *s->bias);
    s->bias_rows = take(base, &at, plan->masked ? rows : 0, sizeof *s->bias_rows);
    s->mask_rows = take(base, &at, plan->masked ? rows : 0, sizeof *s->mask_rows);
    s->slopes = take(base, &at, rows, sizeof *s->slopes);
    s->diagonal = take(base, &at, rows, sizeof *s->diagonal);
    s->lo = take(base, &at, rows, sizeof *s->lo);
    s->hi = take(base, &at, rows, sizeof *s->hi);
    s->seen = take(base, &at, plan->masked ? ATTN_BLOCK : 0, sizeof *s->seen);
    s->zero = take(base, &at, plan->masked ? ATTN_BLOCK : 0, sizeof *s->zero);
    s->running = take_states(base, &at, rows, o_rows, plan->o_stride);
    s->block = take_states(base, &at, rows, o_rows, plan->o_stride);
    s->chunk = plan->chunk > ATTN_BLOCK ? take_states(base, &at, rows, o_rows, plan->o_stride) : s->block;
    return at;
}

void attn_plan_make(const attn_machine *machine, const attn_problem *problem, attn_plan *plan) {
    *plan = (attn_plan){ 0 };
    plan->group = problem->heads_q / problem->heads_kv;
    plan->rows = plan->group * problem->len_q;
    plan->tiles = machine->kernels->tiles && machine->kernels->tiles(problem);
    /* All rows at full length decide: a sequence of fewer may be exact, none is worse. */
    if (machine->fast && plan->tiles && plan->rows > machine->kernels->thin_rows)
        plan->weight_error = machine->kernels->weight_error(problem);
    plan->way = attn_plan_way(plan, machine->kernels, plan->rows);
    plan->masked = problem->type_mask != ATTN_NONE;
    const int64_t most = plan->way == ATTN_TILE ? machine->kernels->tile_block : ATTN_ROWS;
    plan->block_rows = least(round_up(plan->rows < 1 ? 1 : plan->rows, machine->kernels->tile_rows), most);
    plan->blocks = ceil_div(plan->rows, plan->block_rows);
    plan->state_rows = round_up(plan->rows, ATTN_LANES_MAX);
    plan->q_stride = round_up(problem->dim_qk, ATTN_SET_MAX);
    plan->o_stride = round_up(problem->dim_v, ATTN_SET_MAX);
    plan->chunk = machine->chunk > 0 ? machine->chunk : ATTN_BLOCK;
    if (plan->chunk > problem->len_kv && machine->chunk > 0) plan->chunk = problem->len_kv > 0 ? problem->len_kv : 1;
    plan->chunks = ceil_div(problem->len_kv, plan->chunk);
    attn_problem_work(problem, &plan->bytes, &plan->operations);
    int64_t row_jobs = times(problem->batch * problem->heads_kv, plan->blocks);
    choose_passes(machine, problem, plan, row_jobs);
    plan->span = plan->chunks;
    plan->spans = 1;
    if (plan->passes == 2) {
        int slots = slots_for(machine, plan, times(row_jobs, plan->chunks));
        plan->span = least(least(plan->chunks, SPAN_MOST), times(row_jobs, plan->chunks) / ((int64_t)JOBS_PER_SLOT * slots));
        if (plan->span < 1) plan->span = 1;
        plan->spans = ceil_div(plan->chunks, plan->span);
    }
    plan->jobs = times(row_jobs, plan->spans);
    plan->slots = slots_for(machine, plan, plan->jobs);
    attn_regions regions;
    attn_scratch scratch;
    plan->regions_size = lay_regions(plan, problem, NULL, &regions);
    plan->scratch_size = lay_scratch(plan, problem, NULL, &scratch);
    plan->workspace = plan->regions_size + (size_t)plan->slots * plan->scratch_size;
}

attn_regions attn_plan_regions(const attn_plan *plan, const attn_problem *problem, void *workspace) {
    attn_regions regions;
    lay_regions(plan, problem, workspace, &regions);
    return regions;
}

attn_scratch attn_plan_scratch(const attn_plan *plan, const attn_problem *problem, void *workspace, int slot) {
    attn_scratch scratch;
    lay_scratch(plan, problem, (char *)workspace + plan->regions_size + (size_t)slot * plan->scratch_size, &scratch);
    return scratch;
}
