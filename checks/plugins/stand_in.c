/* stand_in.c: a libattn_cuda.so for check_plugin: a device whose memory is the host's, that counts what it is asked for and fails when told
 * to. WRONG_ABI, WRONG_SIZE, WRONG_NAME, NO_ENTRY: plugins of another library. */
#include "device.h"
#include "stand_in.h"
#include <stdlib.h>
#include <string.h>

#ifndef NO_ENTRY
#define EXPORT __attribute__((visibility("default")))

EXPORT stand_in_counts stand_in;
static attn_fail *tell;

static attn_status result(void) {
    if (stand_in.fails != ATTN_OK) tell("the stand-in was told to fail");
    return stand_in.fails;
}

static attn_status open_context(attn_context *context, const attn_options *options) {
    if (options->index > 1) return ATTN_ERROR_INDEX;
    if (options->isa != NULL) return ATTN_ERROR_ISA;
    context->state = &stand_in;
    stand_in.index = options->index;
    return result();
}

static void close_context(attn_context *context) {
    (void)context;
    stand_in.closed++;
}

static void describe(const attn_context *context, attn_description *description) {
    (void)context;
    description->threads = 1;
    description->isa = description->isas = "none";
    description->pool = "none";
}

static size_t workspace(const attn_context *context, const attn_problem *problem) {
    (void)context;
    return (size_t)problem->len_kv;
}

static attn_status forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    (void)context;
    stand_in.args = *args;
    stand_in.problem = *problem;
    stand_in.forwards++;
    return result();
}

static attn_status merge(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count,
                         const attn_args *args) {
    (void)states;
    stand_in.states = count;
    return forward(context, problem, args);
}

static void explain(const attn_context *context, const attn_problem *problem, attn_explanation *explanation) {
    (void)context, (void)problem;
    explanation->kernel = "stand-in";
}

static attn_status measure(attn_context *context, attn_ceiling ceiling, double *per_second) {
    (void)context, (void)ceiling;
    *per_second = 1.0;
    return result();
}

static attn_status take(attn_context *context, size_t bytes, void **memory) {
    (void)context;
    attn_status status = result();
    if (status == ATTN_OK && (*memory = aligned_alloc(256, (bytes + 255) / 256 * 256)) != NULL) stand_in.held++;
    return status;
}

static void give(attn_context *context, void *memory) {
    (void)context;
    if (memory != NULL) stand_in.held--;
    free(memory);
}

static attn_status copy(attn_context *context, void *to, const void *from, size_t bytes) {
    (void)context;
    memcpy(to, from, bytes);
    return result();
}

static attn_status wait(attn_context *context) {
    (void)context;
    return result();
}

static const attn_device_table table = {
#ifdef WRONG_ABI
    .abi = ATTN_DEVICE_ABI + 1,
#else
    .abi = ATTN_DEVICE_ABI,
#endif
#ifdef WRONG_NAME
    .name = "other",
#else
    .name = "cuda",
#endif
    .remote = true,
    .open = open_context,
    .close = close_context,
    .describe = describe,
    .workspace = workspace,
    .forward = forward,
    .merge = merge,
    .explain = explain,
    .measure = measure,
    .alloc = take,
    .release = give,
    .copy = copy,
    .wait = wait,
};

EXPORT attn_plugin_entry attn_plugin;
const attn_device_table *attn_plugin(uint32_t abi, size_t context_size, attn_fail *fail) {
    tell = fail;
#ifdef WRONG_SIZE
    context_size++;
#endif
    return abi == ATTN_DEVICE_ABI && context_size == sizeof(attn_context) ? &table : NULL;
}
#else
int stand_in_has_no_entry;
#endif
