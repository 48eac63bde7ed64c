/* device.c: the CPU as a device: opens kernels and threads, and answers the device table's questions from the plan. */
#include "device.h"
#include "features.h"
#include "forward.h"
#include "measure.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct cpu_state {
    attn_machine machine;
    attn_pool *pool;
    char isas[ATTN_ISAS_MOST * 16];
} cpu_state;

static attn_status choose_kernels(cpu_state *state, const char *isa) {
    const attn_kernels *usable[ATTN_ISAS_MOST];
    if (!attn_usable_kernels(usable)) return ATTN_ERROR_ISA;
    for (int i = 0; usable[i]; i++) {
        if (!isa || strcmp(isa, usable[i]->name) == 0) state->machine.kernels = usable[i];
        if (i) strcat(state->isas, " ");
        strcat(state->isas, usable[i]->name);
    }
    return state->machine.kernels ? ATTN_OK : ATTN_ERROR_ISA;
}

static void cpu_close(attn_context *context) {
    cpu_state *state = context->state;
    if (!state) return;
    attn_pool_close(state->pool);
    free(state);
    context->state = NULL;
}

static attn_status cpu_open(attn_context *context, const attn_options *options) {
    cpu_state *state = calloc(1, sizeof *state);
    if (!state) return ATTN_ERROR_OUT_OF_MEMORY;
    attn_status status = choose_kernels(state, options->isa);
    if (status == ATTN_OK) status = attn_pool_open(&state->pool, options);
    if (status != ATTN_OK) {
        free(state);
        return status;
    }
    state->machine.threads = attn_pool_threads(state->pool);
    state->machine.passes = options->passes;
    state->machine.chunk = options->chunk;
    state->machine.fast = options->precision == ATTN_FAST;
    context->state = state;
    return ATTN_OK;
}

static void cpu_describe(const attn_context *context, attn_description *description) {
    const cpu_state *state = context->state;
    description->threads = state->machine.threads;
    description->isa = state->machine.kernels->name;
    description->isas = state->isas;
    description->pool = attn_pool_name(state->pool);
}

static size_t cpu_workspace(const attn_context *context, const attn_problem *problem) {
    const cpu_state *state = context->state;
    attn_plan plan;
    attn_plan_make(&state->machine, problem, &plan);
    return plan.workspace;
}

static attn_status cpu_forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    const cpu_state *state = context->state;
    attn_cpu_run_forward(&state->machine, state->pool, problem, args);
    return ATTN_OK;
}

static attn_status cpu_merge(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count,
                             const attn_args *args) {
    const cpu_state *state = context->state;
    attn_cpu_run_merge(&state->machine, state->pool, problem, states, count, args);
    return ATTN_OK;
}

static const struct {
    const char *name, *reason;
} ways[] = {
    [ATTN_THIN] = { "thin", "thin: too few rows share a key head to fill vector lanes, so the head dim does" },
    [ATTN_WIDE] = { "wide", "wide: rows fill vector lanes" },
    [ATTN_TILE] = { "tile", "tile: rows and types suit products of 16-bit matrices" },
};

static void cpu_explain(const attn_context *context, const attn_problem *problem, attn_explanation *explanation) {
    const cpu_state *state = context->state;
    attn_plan plan;
    attn_plan_make(&state->machine, problem, &plan);
    explanation->passes = plan.passes;
    explanation->threads = plan.slots;
    explanation->chunk = plan.chunk;
    explanation->chunks = plan.chunks;
    explanation->rows = plan.rows < plan.block_rows ? plan.rows : plan.block_rows;
    explanation->jobs = plan.jobs;
    explanation->workspace = plan.workspace;
    explanation->bytes = plan.bytes;
    explanation->operations = plan.operations;
    explanation->weight_error = plan.weight_error;
    explanation->isa = state->machine.kernels->name;
    explanation->kernel = ways[plan.way].name;
    snprintf(explanation->reason, sizeof explanation->reason, "%s; %s", plan.reason, ways[plan.way].reason);
}

static attn_status cpu_measure(attn_context *context, attn_ceiling ceiling, double *per_second) {
    const cpu_state *state = context->state;
    return attn_cpu_measure(state->machine.kernels, state->pool, ceiling, per_second);
}

const attn_device_table attn_cpu_device = {
    .abi = ATTN_DEVICE_ABI,
    .name = "cpu",
    .open = cpu_open,
    .close = cpu_close,
    .describe = cpu_describe,
    .workspace = cpu_workspace,
    .forward = cpu_forward,
    .merge = cpu_merge,
    .explain = cpu_explain,
    .measure = cpu_measure,
    .alloc = attn_host_alloc,
    .release = attn_host_release,
    .copy = attn_host_copy,
    .wait = attn_host_wait,
};
