/* plan.cu: which kernels a problem gets, how it is cut, and what lies where in the workspace: arithmetic only, no GPU is asked. */
#include "maps.h"

enum { ROWS = 16, SLICE = 128, JOBS_PER_PROCESSOR = 4 }; /* as in general.cu */

static int64_t ceil_div(int64_t x, int64_t by) { return (x + by - 1) / by; }

static size_t lay(const attn_cuda_plan *plan, const attn_problem *p, void *workspace, attn_cuda_states *states) {
    const int64_t rows = plan->passes == 2 ? p->batch * p->heads_q * p->len_q * plan->chunks : 0;
    *states = { (float *)workspace, nullptr, nullptr, plan->chunk, plan->chunks };
    states->l = states->m + rows;
    states->o = states->l + rows;
    return (size_t)(rows * (p->dim_v + 2)) * sizeof(float);
}

attn_cuda_states attn_cuda_states_of(const attn_cuda_plan *plan, const attn_problem *problem, void *workspace) {
    attn_cuda_states states;
    lay(plan, problem, workspace, &states);
    return states;
}

/* Whether few rows leave processors idle, so that keys are cut as well. Chunks are the same either way, and so are the bits. */
static void choose_passes(const attn_cuda_unit *unit, const attn_problem *p, attn_cuda_plan *plan) {
    const int64_t jobs = p->batch * p->heads_q * ceil_div(p->len_q, ROWS) * ceil_div(p->dim_v, SLICE);
    const double states =
        (double)(p->batch * p->heads_q) * (double)p->len_q * (double)plan->chunks * (double)(p->dim_v + 2) * sizeof(float);
    plan->passes = 1;
    if (plan->chunks < 2)
        plan->reason = "one pass: the keys fit one chunk";
    else if (unit->forced_passes == 1)
        plan->reason = "one pass: forced";
    else if (states > 1e15)
        plan->reason = "one pass: the states of two would not fit any memory";
    else if (unit->forced_passes == 2)
        plan->passes = 2, plan->reason = "two passes: forced";
    else if (jobs >= (int64_t)unit->processors * JOBS_PER_PROCESSOR)
        plan->reason = "one pass: enough rows for the processors";
    else
        plan->passes = 2, plan->reason = "two passes: too few rows for the processors, so keys are cut as well";
    plan->jobs = plan->passes == 2 ? jobs * plan->chunks : jobs;
}

static attn_cuda_plan plan_general(const attn_cuda_unit *unit, const attn_problem *p) {
    attn_cuda_plan plan = {};
    attn_cuda_states states;
    plan.way = ATTN_CUDA_GENERAL;
    plan.kernel = "general";
    plan.rows = ROWS;
    plan.chunk = unit->forced_chunk > 0 ? unit->forced_chunk : ATTN_CUDA_CHUNK;
    if (plan.chunk > p->len_kv && unit->forced_chunk > 0) plan.chunk = p->len_kv > 0 ? p->len_kv : 1;
    plan.chunks = ceil_div(p->len_kv, plan.chunk);
    choose_passes(unit, p, &plan);
    plan.workspace = lay(&plan, p, nullptr, &states);
    return plan;
}

/* ---- Hopper's kernels ---- */
static bool plain_scores(const attn_problem *p) {
    return p->softcap == 0.0f && p->type_mask == ATTN_NONE && p->scale > 0.0f && p->scale <= 0x1p30f;
}

/* What both kernels of Hopper want; or why not. */
static const char *no_hopper(const attn_cuda_unit *unit, const attn_problem *p) {
    const bool sixteen = (p->type_q == ATTN_F16 || p->type_q == ATTN_BF16) && p->type_k == p->type_q && p->type_v == p->type_q;
    if (unit->general) return "no kernel of Hopper's";
    if (!sixteen) return "q, k and v are not of one 16-bit type";
    if (!plain_scores(p)) return "a mask, a softcap, or a scale that is not positive";
    if (p->batch == 0 || p->len_q == 0 || p->len_kv == 0) return "nothing to do";
    if (p->batch > 65535 || p->heads_kv > 65535 || p->batch * p->heads_q > 1 << 24 || p->len_q > 1 << 28 || p->len_kv > 1 << 28 ||
        (double)(p->batch * p->heads_q) * (double)p->len_q > 0x1p36)
        return "sizes beyond 32 bits";
    if (p->dim_qk > 256 || p->dim_v > 256) return "a dim over 256";
    if (!attn_cuda_mappable(&p->k, p->batch, p->heads_kv, p->len_kv, p->dim_qk) ||
        !attn_cuda_mappable(&p->v, p->batch, p->heads_kv, p->len_kv, p->dim_v))
        return "strides of k or v that are not positive multiples of 8";
    return nullptr;
}

/* Keys to a chunk by the number of keys alone, so that a sequence's bits do not depend on how many others there are. */
static int64_t decode_chunk(const attn_cuda_unit *unit, const attn_problem *p) {
    if (unit->forced_chunk > 0) return ceil_div(unit->forced_chunk < p->len_kv ? unit->forced_chunk : p->len_kv, 64) * 64;
    return p->len_kv <= 2048 ? 128 : p->len_kv <= 8192 ? 512 : 1024;
}

static bool plan_decode(const attn_cuda_unit *unit, const attn_problem *p, attn_cuda_plan *plan) {
    const int64_t rows = p->heads_q / p->heads_kv * p->len_q, dim = p->dim_qk > p->dim_v ? p->dim_qk : p->dim_v;
    if (rows > 16 || dim > 128) return false;
    plan->chunk = decode_chunk(unit, p);
    plan->chunks = ceil_div(p->len_kv, plan->chunk);
    if ((double)(p->batch * p->heads_kv) * (double)plan->chunks > 1e9) return false;
    plan->way = ATTN_CUDA_DECODE, plan->kernel = "decode";
    plan->passes = 2;
    plan->rows = rows;
    plan->jobs = p->batch * p->heads_kv * plan->chunks;
    plan->reason = "two passes: few rows share each key, so keys are cut; weights in two parts";
    plan->workspace = attn_cuda_decode_workspace(plan, p);
    return true;
}

static bool plan_prefill(const attn_cuda_unit *unit, const attn_problem *p, attn_cuda_plan *plan) {
    if (!attn_cuda_mappable(&p->q, p->batch, p->heads_q, p->len_q, p->dim_qk)) return false;
    plan->way = ATTN_CUDA_PREFILL, plan->kernel = "prefill";
    plan->passes = 1;
    plan->chunk = p->len_kv, plan->chunks = 1;
    plan->rows = 64;
    plan->jobs = p->batch * p->heads_q * ceil_div(p->len_q, 64);
    plan->reason = unit->fast ? "one pass: many rows; weights in 16 bits" : "one pass: many rows; weights in two parts";
    plan->workspace = attn_cuda_prefill_workspace(p);
    return true;
}

/* What a weight may lose, relative to it: its rounding, and the sums of the tensor cores, which cut off instead of rounding. */
static double weight_error_of(const attn_cuda_unit *unit, const attn_problem *p, const attn_cuda_plan *plan) {
    const double sums = 0x1p-23 * (double)(16 + (plan->way == ATTN_CUDA_DECODE ? plan->chunk : p->len_kv) / 16);
    if (plan->way == ATTN_CUDA_PREFILL && unit->fast) return (p->type_q == ATTN_BF16 ? 0x1p-8 : 0x1p-11) + sums;
    return (p->type_q == ATTN_BF16 ? 0x1p-16 : 0x1p-22) + sums;
}

attn_cuda_plan attn_cuda_plan_of(const attn_cuda_unit *unit, const attn_problem *p) {
    attn_cuda_plan plan = {};
    const char *why = no_hopper(unit, p);
    if (why == nullptr && (plan_decode(unit, p, &plan) || plan_prefill(unit, p, &plan))) {
        plan.weight_error = weight_error_of(unit, p, &plan);
        return plan;
    }
    plan = plan_general(unit, p);
    plan.slow = why != nullptr ? why : "strides of q that are not positive multiples of 8";
    return plan;
}

attn_cuda_plan attn_cuda_plan_without(const attn_cuda_unit *unit, const attn_problem *p) {
    attn_cuda_unit alone = *unit;
    alone.forced_passes = 1;
    return plan_general(&alone, p);
}
