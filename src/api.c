/* api.c: the entry points of attn.h: check what the caller gave, lend a workspace, call the device. No arithmetic of its own. */
#include "attn/attn.h"
#include "device.h"
#include "version.h"
#include <errno.h>
#include <string.h>

enum { most_threads = 1024, entry_alignment = 128 };

/* The structs as they first came out; what is added later lies behind. */
enum {
    first_options = offsetof(attn_options, executor) + sizeof(const attn_executor *),
    first_explanation = offsetof(attn_explanation, reason) + sizeof(((attn_explanation *)0)->reason),
    first_description = offsetof(attn_description, pool) + sizeof(const char *)
};

static size_t stamped_size(uint32_t stamp) { return stamp & 0xffff; }

static attn_status stamp_check(uint32_t stamp, size_t first, size_t known) {
    size_t size = stamped_size(stamp);
    if (stamp - size != 0x41540000u || size < first) return ATTN_ERROR_UNINITIALISED;
    return size > known ? ATTN_ERROR_NEWER : ATTN_OK;
}

/* ---- what a call leaves as it found it: errno, and the floating-point environment, on which no answer depends either ---- */
typedef struct caller {
    int error;
    attn_environment environment;
} caller;

static void enter(caller *c) {
    c->error = errno;
    attn_environment_enter(&c->environment);
}

static attn_status leave(const caller *c, attn_status status) {
    attn_environment_leave(&c->environment);
    errno = c->error;
    return status;
}

/* ---- contexts across fork ----
 * Of the threads of the parent the child has only one. A context that another was using at that moment would stay locked, and its workspace
 * might be half exchanged: the child forgets that workspace and starts with an open lock. */
typedef struct entry {
    attn_context context; /* first: an attn_context * from outside is an entry * */
    struct entry *next, **link;
} entry;
_Static_assert(sizeof(entry) <= entry_alignment, "an entry lies in one page, so that fork copies lock and workspace as of one moment");

static attn_lock entries_lock = ATTN_LOCK_INIT;
static entry *entries;

static void before_fork(void) { attn_lock_take(&entries_lock); }

static void after_fork_in_parent(void) { attn_lock_give(&entries_lock); }

static void after_fork_in_child(void) {
    for (entry *e = entries; e != NULL; e = e->next) {
        if (attn_lock_try(&e->context.lock)) {
            attn_lock_give(&e->context.lock);
            continue;
        }
        attn_lock_make(&e->context.lock);
        e->context.workspace = NULL;
        e->context.workspace_size = 0;
    }
    attn_lock_give(&entries_lock);
}

static attn_status enlist(entry *e) {
    static int watching;
    attn_lock_take(&entries_lock);
    if (!watching) watching = attn_watch_forks(before_fork, after_fork_in_parent, after_fork_in_child);
    if (watching) {
        e->next = entries;
        e->link = &entries;
        if (entries != NULL) entries->link = &e->next;
        entries = e;
    }
    attn_lock_give(&entries_lock);
    return watching ? ATTN_OK : ATTN_ERROR_OUT_OF_MEMORY;
}

static void delist(entry *e) {
    attn_lock_take(&entries_lock);
    *e->link = e->next;
    if (e->next != NULL) e->next->link = e->link;
    attn_lock_give(&entries_lock);
}

/* ---- open and close ---- */
static attn_status device_of(attn_device device, const attn_device_table **table) {
    switch (device) {
    case ATTN_CPU:
        *table = &attn_cpu_device;
        return ATTN_OK;
    case ATTN_REFERENCE:
        *table = &attn_reference_device;
        return ATTN_OK;
    case ATTN_CUDA:
        *table = attn_plugin_device("cuda");
        return *table != NULL ? ATTN_OK : ATTN_ERROR_PLUGIN;
    }
    return ATTN_ERROR_DEVICE;
}

static attn_status options_check(const attn_options *given, attn_options *options, const attn_device_table **table) {
    *options = (attn_options)ATTN_OPTIONS_INIT;
    if (given != NULL) {
        attn_status status = stamp_check(given->stamp, first_options, sizeof *options);
        if (status != ATTN_OK) return status;
        memcpy(options, given, stamped_size(given->stamp));
        options->stamp = ATTN_STAMP(attn_options);
    }
    const attn_executor *executor = options->executor;
    if ((int)options->device < ATTN_CPU || options->device > ATTN_CUDA) return ATTN_ERROR_DEVICE;
    if (options->threads < 0 || options->threads > most_threads) return ATTN_ERROR_THREADS;
    if (executor != NULL && (executor->run == NULL || executor->threads < 1 || executor->threads > most_threads))
        return ATTN_ERROR_EXECUTOR;
    if (options->passes < 0 || options->passes > 2) return ATTN_ERROR_PASSES;
    if (options->chunk < 0) return ATTN_ERROR_CHUNK;
    if (options->precision != ATTN_EXACT && options->precision != ATTN_FAST) return ATTN_ERROR_PRECISION;
    if (options->index < 0 || (options->index > 0 && options->device != ATTN_CUDA)) return ATTN_ERROR_INDEX;
    return device_of(options->device, table);
}

static attn_status open_device(attn_context *context, const attn_device_table *table, const attn_options *options) {
    if (!attn_lock_make(&context->lock)) return ATTN_ERROR_OUT_OF_MEMORY;
    attn_status status = enlist((entry *)context);
    if (status == ATTN_OK) {
        context->device = table;
        status = context->device->open(context, options);
        if (status == ATTN_OK) return ATTN_OK;
        delist((entry *)context);
    }
    attn_lock_unmake(&context->lock);
    return status;
}

static attn_status open_context(attn_context **context, const attn_options *given) {
    attn_options options;
    const attn_device_table *table;
    if (context == NULL) return ATTN_ERROR_NULL_CONTEXT;
    *context = NULL;
    attn_status status = options_check(given, &options, &table);
    if (status != ATTN_OK) return status;
    void *memory = attn_memory_take(entry_alignment, sizeof(entry));
    if (memory == NULL) return ATTN_ERROR_OUT_OF_MEMORY;
    entry *made = memset(memory, 0, sizeof(entry));
    status = open_device(&made->context, table, &options);
    if (status != ATTN_OK)
        attn_memory_give(made);
    else
        *context = &made->context;
    return status;
}

attn_status attn_open(attn_context **context, const attn_options *options) {
    caller c;
    enter(&c);
    return leave(&c, open_context(context, options));
}

void attn_close(attn_context *context) {
    if (context == NULL) return;
    caller c;
    enter(&c);
    context->device->release(context, context->workspace);
    context->device->close(context);
    delist((entry *)context);
    attn_lock_unmake(&context->lock);
    attn_memory_give(context);
    leave(&c, ATTN_OK);
}

/* ---- the context's own workspace ---- */
/* With the lock held. The old one stays until there is a larger one. */
static attn_status grow_workspace(attn_context *context, size_t needed) {
    if (needed <= context->workspace_size) return ATTN_OK;
    void *larger;
    if (needed > PTRDIFF_MAX) return ATTN_ERROR_OUT_OF_MEMORY;
    attn_status status = context->device->alloc(context, needed, &larger);
    if (status != ATTN_OK) return status;
    context->device->release(context, context->workspace);
    context->workspace = larger;
    context->workspace_size = needed;
    return ATTN_OK;
}

/* One call of forward or merge. */
typedef struct work {
    const attn_problem *problem;
    bool merges;
    const attn_state *states; /* of a merge */
    int64_t count;
} work;

static attn_status run(attn_context *context, const work *w, const attn_args *args) {
    if (w->merges) return context->device->merge(context, w->problem, w->states, w->count, args);
    return context->device->forward(context, w->problem, args);
}

static attn_status run_with_workspace(attn_context *context, const work *w, attn_args *args, size_t needed) {
    if (w->problem->batch == 0 || w->problem->len_q == 0) return ATTN_OK;
    if (needed == 0 || args->workspace != NULL) return run(context, w, args);
    attn_lock_take(&context->lock);
    attn_status status = grow_workspace(context, needed);
    if (status == ATTN_OK) {
        args->workspace = context->workspace;
        args->workspace_size = context->workspace_size;
        status = run(context, w, args);
    }
    attn_lock_give(&context->lock);
    return status;
}

/* ---- the work ---- */
static attn_status problem_check(const attn_context *context, const attn_problem *given, attn_problem *problem) {
    return context == NULL ? ATTN_ERROR_NULL_CONTEXT : attn_problem_check(given, problem);
}

static attn_status workspace(attn_context *context, const attn_problem *given, size_t *bytes) {
    attn_problem problem;
    attn_status status = problem_check(context, given, &problem);
    if (status != ATTN_OK) return status;
    if (bytes == NULL) return ATTN_ERROR_NULL_RESULT;
    *bytes = context->device->workspace(context, &problem);
    return ATTN_OK;
}

static attn_status reserve(attn_context *context, const attn_problem *given) {
    attn_problem problem;
    attn_status status = problem_check(context, given, &problem);
    if (status != ATTN_OK) return status;
    attn_lock_take(&context->lock);
    status = grow_workspace(context, context->device->workspace(context, &problem));
    attn_lock_give(&context->lock);
    return status;
}

static attn_status forward(attn_context *context, const attn_problem *given, const attn_args *given_args) {
    attn_problem problem;
    attn_args args;
    attn_status status = problem_check(context, given, &problem);
    if (status != ATTN_OK) return status;
    size_t needed = context->device->workspace(context, &problem);
    if ((status = attn_args_check(&problem, given_args, needed, context->device->remote, &args)) != ATTN_OK) return status;
    return run_with_workspace(context, &(work){ .problem = &problem }, &args, needed);
}

static attn_status merge(attn_context *context, const attn_problem *given, const attn_state *states, int64_t count,
                         const attn_args *given_args) {
    attn_problem problem;
    attn_args args;
    attn_status status = problem_check(context, given, &problem);
    if (status != ATTN_OK) return status;
    size_t needed = context->device->workspace(context, &problem);
    if ((status = attn_merge_check(&problem, states, count, given_args, needed, context->device->remote, &args)) != ATTN_OK) return status;
    return run_with_workspace(context, &(work){ &problem, true, states, count }, &args, needed);
}

static attn_status explain(attn_context *context, const attn_problem *given, attn_explanation *explanation) {
    attn_problem problem;
    attn_status status = problem_check(context, given, &problem);
    if (status != ATTN_OK) return status;
    if (explanation == NULL) return ATTN_ERROR_NULL_RESULT;
    if ((status = stamp_check(explanation->stamp, first_explanation, sizeof *explanation)) != ATTN_OK) return status;
    attn_explanation made = { .stamp = explanation->stamp, .device = context->device->name };
    context->device->explain(context, &problem, &made);
    memcpy(explanation, &made, stamped_size(made.stamp));
    return ATTN_OK;
}

/* ---- the device's memory ---- */
static attn_status alloc_memory(attn_context *context, size_t bytes, void **memory) {
    if (context == NULL) return ATTN_ERROR_NULL_CONTEXT;
    if (memory == NULL) return ATTN_ERROR_NULL_RESULT;
    *memory = NULL;
    if (bytes == 0) return ATTN_OK;
    return bytes > PTRDIFF_MAX ? ATTN_ERROR_OUT_OF_MEMORY : context->device->alloc(context, bytes, memory);
}

static attn_status copy_memory(attn_context *context, void *to, const void *from, size_t bytes) {
    if (context == NULL) return ATTN_ERROR_NULL_CONTEXT;
    if (bytes == 0) return ATTN_OK;
    return to == NULL || from == NULL ? ATTN_ERROR_NULL_RESULT : context->device->copy(context, to, from, bytes);
}

/* ---- about the context and the machine ---- */
static attn_status describe(attn_context *context, attn_description *description) {
    if (context == NULL) return ATTN_ERROR_NULL_CONTEXT;
    if (description == NULL) return ATTN_ERROR_NULL_RESULT;
    attn_status status = stamp_check(description->stamp, first_description, sizeof *description);
    if (status != ATTN_OK) return status;
    attn_description made = { .stamp = description->stamp, .device = context->device->name };
    context->device->describe(context, &made);
    memcpy(description, &made, stamped_size(made.stamp));
    return ATTN_OK;
}

static attn_status measure(attn_context *context, attn_ceiling ceiling, double *per_second) {
    if (context == NULL) return ATTN_ERROR_NULL_CONTEXT;
    if (per_second == NULL) return ATTN_ERROR_NULL_RESULT;
    if (ceiling != ATTN_DRAM_READ && ceiling != ATTN_FMA_F32 && ceiling != ATTN_DOT_BF16) return ATTN_ERROR_CEILING;
    double measured = 0.0;
    attn_status status = context->device->measure(context, ceiling, &measured);
    if (status == ATTN_OK) *per_second = measured;
    return status;
}

/* ---- the entries themselves ---- */
attn_status attn_workspace(attn_context *context, const attn_problem *problem, size_t *bytes) {
    caller c;
    enter(&c);
    return leave(&c, workspace(context, problem, bytes));
}

attn_status attn_reserve(attn_context *context, const attn_problem *problem) {
    caller c;
    enter(&c);
    return leave(&c, reserve(context, problem));
}

attn_status attn_forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    caller c;
    enter(&c);
    return leave(&c, forward(context, problem, args));
}

attn_status attn_merge(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count, const attn_args *args) {
    caller c;
    enter(&c);
    return leave(&c, merge(context, problem, states, count, args));
}

attn_status attn_explain(attn_context *context, const attn_problem *problem, attn_explanation *explanation) {
    caller c;
    enter(&c);
    return leave(&c, explain(context, problem, explanation));
}

attn_status attn_describe(attn_context *context, attn_description *description) {
    caller c;
    enter(&c);
    return leave(&c, describe(context, description));
}

attn_status attn_measure(attn_context *context, attn_ceiling ceiling, double *per_second) {
    caller c;
    enter(&c);
    return leave(&c, measure(context, ceiling, per_second));
}

attn_status attn_alloc(attn_context *context, size_t bytes, void **memory) {
    caller c;
    enter(&c);
    return leave(&c, alloc_memory(context, bytes, memory));
}

void attn_free(attn_context *context, void *memory) {
    caller c;
    if (context == NULL || memory == NULL) return;
    enter(&c);
    context->device->release(context, memory);
    leave(&c, ATTN_OK);
}

attn_status attn_copy(attn_context *context, void *to, const void *from, size_t bytes) {
    caller c;
    enter(&c);
    return leave(&c, copy_memory(context, to, from, bytes));
}

attn_status attn_wait(attn_context *context) {
    caller c;
    if (context == NULL) return ATTN_ERROR_NULL_CONTEXT;
    enter(&c);
    return leave(&c, context->device->wait(context));
}

const char *attn_version(void) { return ATTN_VERSION_TEXT; }
