/* forward.c: the jobs of a forward call and of a merge, and the order in which states are folded: by index, whoever made them. */
#include "forward.h"
#include "rows.h"
#include <math.h>
#include <string.h>

static void begin_states(attn_states states, int rows, int64_t o_stride) {
    int padded = (rows + ATTN_LANES_MAX - 1) / ATTN_LANES_MAX * ATTN_LANES_MAX;
    for (int r = 0; r < padded; r++) {
        states.m[r] = -INFINITY;
        states.l[r] = 0.0f;
    }
    memset(states.o, 0, (size_t)(rows * o_stride) * sizeof(float));
}

/* The chunks that hold any key of the block: lo <= c < hi. */
static attn_range chunks_of(const attn_call *call, const attn_row_block *rows) {
    int64_t chunk = call->plan->chunk;
    if (rows->keys.lo >= rows->keys.hi) return (attn_range){ 0, 0 };
    return (attn_range){ rows->keys.lo / chunk, (rows->keys.hi - 1) / chunk + 1 };
}

/* Scores of -inf weigh 0, and 0 times a NaN or an infinity is NaN: rows that saw no other are the identity, as folding takes them. */
static void forget_unseen(attn_states states, int rows, int64_t o_stride) {
    for (int r = 0; r < rows; r++)
        if (states.l[r] == 0.0f) memset(states.o + r * o_stride, 0, (size_t)o_stride * sizeof(float));
}

/* The state of one chunk into `state`: its one block's, or its blocks' folded in order. */
static void chunk_state(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, attn_work *work, int64_t c,
                        attn_states state) {
    const attn_kernels *kernels = call->machine->kernels;
    const int64_t stride = call->plan->o_stride, chunk = call->plan->chunk, len = rows->sequence.len_kv;
    const int64_t end = len - c * chunk < chunk ? len : (c + 1) * chunk;
    const bool one = chunk <= ATTN_BLOCK;
    begin_states(state, rows->count, stride);
    for (int64_t key = c * chunk; key < end; key += ATTN_BLOCK) {
        int count = (int)(end - key < ATTN_BLOCK ? end - key : ATTN_BLOCK);
        work->state = one ? state : scratch->block;
        if (!attn_rows_keys(call, rows, scratch, key, count, work)) continue;
        kernels->attend(work);
        if (one)
            forget_unseen(state, rows->count, stride);
        else
            kernels->fold(state, scratch->block, rows->count, stride);
    }
}

static void one_pass(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch) {
    attn_work work;
    attn_range chunks = chunks_of(call, rows);
    attn_rows_begin(call, rows, scratch, &work);
    if (chunks.lo >= chunks.hi) begin_states(scratch->running, rows->count, call->plan->o_stride);
    for (int64_t c = chunks.lo; c < chunks.hi; c++) { /* the first is where it belongs: folding into the identity changes no bit */
        chunk_state(call, rows, scratch, &work, c, c == chunks.lo ? scratch->running : scratch->chunk);
        if (c > chunks.lo) call->machine->kernels->fold(scratch->running, scratch->chunk, rows->count, call->plan->o_stride);
    }
    attn_rows_end(call, &work);
    attn_rows_finish(call, rows, scratch->running);
}

static attn_states stored(const attn_call *call, const attn_row_block *rows, int64_t c) {
    const attn_plan *plan = call->plan;
    int64_t row = ((rows->b * call->problem->heads_kv + rows->head_kv) * plan->chunks + c) * plan->state_rows + rows->first;
    attn_states all = call->regions.states;
    return (attn_states){ all.m + row, all.l + row, all.o + row * plan->o_stride };
}

/* Pass 1 for the chunks of one span; whoever finishes a row block's last span does pass 2 for it. */
static void two_pass(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, int64_t span) {
    attn_range chunks = chunks_of(call, rows);
    int64_t lo = span * call->plan->span, hi = lo + call->plan->span;
    if (lo < chunks.lo) lo = chunks.lo;
    if (hi > chunks.hi) hi = chunks.hi;
    if (lo < hi) {
        attn_work work;
        attn_rows_begin(call, rows, scratch, &work);
        for (int64_t c = lo; c < hi; c++) chunk_state(call, rows, scratch, &work, c, stored(call, rows, c));
        attn_rows_end(call, &work);
    }
    atomic_int *left = call->regions.left + (rows->b * call->problem->heads_kv + rows->head_kv) * call->plan->blocks + rows->block;
    if (atomic_fetch_sub_explicit(left, 1, memory_order_acq_rel) != 1) return;
    begin_states(scratch->running, rows->count, call->plan->o_stride);
    for (int64_t c = chunks.lo; c < chunks.hi; c++)
        call->machine->kernels->fold(scratch->running, stored(call, rows, c), rows->count, call->plan->o_stride);
    attn_rows_finish(call, rows, scratch->running);
}

/* Key head by key head, whose keys and values then stay in the second cache where they fit; of each, from the back of its row blocks: with
 * a causal band those are the longest, so that the last jobs of all are the shortest. */
static void forward_slot(void *state, size_t slot) {
    attn_call *call = state;
    const attn_plan *plan = call->plan;
    attn_scratch scratch = attn_plan_scratch(plan, call->problem, call->args->workspace, (int)slot);
    if (plan->masked) memset(scratch.zero, 0, ATTN_BLOCK * sizeof *scratch.zero);
    for (;;) {
        int64_t job = atomic_fetch_add_explicit(&call->next, 1, memory_order_relaxed);
        if (job >= plan->jobs) return;
        int64_t span = job % plan->spans, block = plan->blocks - 1 - job / plan->spans % plan->blocks;
        int64_t head = job / plan->spans / plan->blocks;
        attn_row_block rows;
        if (!attn_row_block_of(call, head / call->problem->heads_kv, head % call->problem->heads_kv, block, &rows)) continue;
        if (plan->passes == 2)
            two_pass(call, &rows, &scratch, span);
        else
            one_pass(call, &rows, &scratch);
    }
}

void attn_cpu_run_forward(const attn_machine *machine, attn_pool *pool, const attn_problem *problem, const attn_args *args) {
    attn_plan plan;
    attn_plan_make(machine, problem, &plan);
    if (plan.rows == 0 || problem->batch == 0) return;
    attn_call call = { machine, problem, args, &plan, attn_plan_regions(&plan, problem, args->workspace), 0 };
    if (plan.passes == 2)
        for (int64_t i = 0; i < problem->batch * problem->heads_kv * plan.blocks; i++) atomic_init(call.regions.left + i, (int)plan.spans);
    attn_pool_run(pool, forward_slot, &call, plan.slots);
}

typedef struct merge_call {
    attn_call call;
    const attn_state *states;
    int64_t count;
} merge_call;

/* One row: states in index order. m is the state's lse and l is 1: the same state in another form. Beside a state of lse +inf (a sink may
 * be infinite) finite ones weigh nothing, and several share the weight. */
static void merge_row(const merge_call *merge, const attn_scratch *scratch, int64_t b, int64_t h, int64_t i) {
    const attn_call *call = &merge->call;
    const attn_problem *p = call->problem;
    const attn_kernels *kernels = call->machine->kernels;
    const int64_t o_at = b * p->out.batch + h * p->out.head + i * p->out.row, lse_at = b * p->lse.batch + h * p->lse.head + i * p->lse.row;
    attn_states into = scratch->running, from = scratch->block;
    bool infinite = false;
    for (int64_t s = 0; s < merge->count; s++) infinite |= merge->states[s].lse[lse_at] == INFINITY;
    begin_states(into, 1, call->plan->o_stride);
    for (int64_t s = 0; s < merge->count; s++) {
        const float lse = merge->states[s].lse[lse_at];
        if (lse == -INFINITY || (infinite && lse < INFINITY)) continue;
        from.m[0] = lse == INFINITY ? 0.0f : lse;
        from.l[0] = 1.0f;
        memset(from.o, 0, (size_t)call->plan->o_stride * sizeof(float));
        kernels->load(from.o, merge->states[s].out + o_at, ATTN_F32, p->dim_v);
        kernels->fold(into, from, 1, call->plan->o_stride);
    }
    char *out = (char *)call->args->out + o_at * (int64_t)attn_type_size(p->type_out);
    kernels->finish(out, p->type_out, into.o, into.l[0], p->dim_v);
    if (!call->args->lse) return;
    const double sum = (double)into.m[0] + log((double)into.l[0]) + (infinite ? (double)INFINITY : 0.0);
    call->args->lse[lse_at] = into.l[0] == 0.0f ? -INFINITY : (float)sum;
}

static void merge_slot(void *state, size_t slot) {
    merge_call *merge = state;
    const attn_problem *p = merge->call.problem;
    attn_scratch scratch = attn_plan_scratch(merge->call.plan, p, merge->call.args->workspace, (int)slot);
    begin_states(scratch.block, 1, merge->call.plan->o_stride);
    for (;;) {
        int64_t job = atomic_fetch_add_explicit(&merge->call.next, 1, memory_order_relaxed);
        if (job >= p->batch * p->heads_q) return;
        attn_sequence sequence = attn_sequence_of(p, merge->call.args, job / p->heads_q);
        for (int64_t i = 0; i < sequence.len_q; i++) merge_row(merge, &scratch, job / p->heads_q, job % p->heads_q, i);
    }
}

void attn_cpu_run_merge(const attn_machine *machine, attn_pool *pool, const attn_problem *problem, const attn_state *states, int64_t count,
                        const attn_args *args) {
    attn_plan plan;
    attn_plan_make(machine, problem, &plan);
    merge_call merge = { { machine, problem, args, &plan, attn_plan_regions(&plan, problem, args->workspace), 0 }, states, count };
    if (plan.rows == 0 || problem->batch == 0) return;
    int64_t jobs = problem->batch * problem->heads_q;
    attn_pool_run(pool, merge_slot, &merge, plan.slots < jobs ? plan.slots : (int)jobs);
}
