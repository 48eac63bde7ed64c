/* device.h: the table that every device fills in, and the context that api.c hands to it. Problems and arguments that reach a device have
 * passed every check; its functions report only what they alone can find out (no memory, no such ISA). */
#ifndef ATTN_DEVICE_H
#define ATTN_DEVICE_H
#include "problem.h"
#include "system.h"

enum { ATTN_DEVICE_ABI = 2 };

typedef struct attn_device_table {
    uint32_t abi; /* ATTN_DEVICE_ABI */
    const char *name;
    bool remote; /* its memory is not the host's: nothing behind a pointer is read before a call */
    attn_status (*open)(attn_context *context, const attn_options *options); /* sets context->state; options are checked and complete */
    void (*close)(attn_context *context);
    void (*describe)(const attn_context *context, attn_description *description); /* all but stamp and device */
    size_t (*workspace)(const attn_context *context, const attn_problem *problem);
    /* args->workspace is never NULL unless workspace() said 0 */
    attn_status (*forward)(attn_context *context, const attn_problem *problem, const attn_args *args);
    attn_status (*merge)(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count,
                         const attn_args *args);
    void (*explain)(const attn_context *context, const attn_problem *problem, attn_explanation *explanation); /* all but stamp and device */
    attn_status (*measure)(attn_context *context, attn_ceiling ceiling, double *per_second);
    attn_status (*alloc)(attn_context *context, size_t bytes, void **memory);
    void (*release)(attn_context *context, void *memory);
    attn_status (*copy)(attn_context *context, void *to, const void *from, size_t bytes);
    attn_status (*wait)(attn_context *context);
} attn_device_table;

/* What a plugin exports: its table, where `abi` and `context_size` are its own. `fail` is how it tells what attn_failure says. */
typedef void attn_fail(const char *text);
typedef const attn_device_table *attn_plugin_entry(uint32_t abi, size_t context_size, attn_fail *fail);

struct attn_context {
    const attn_device_table *device;
    void *state;     /* the device's own */
    attn_lock lock;  /* guards the workspace below; not taken by calls that bring their own */
    void *workspace; /* 64-byte aligned; grown when a larger problem comes */
    size_t workspace_size;
};

extern const attn_device_table attn_cpu_device, attn_reference_device;

/* The plugin's table (src/plugin.c), loaded when it is first asked for; NULL where that fails, and attn_failure says why. */
const attn_device_table *attn_plugin_device(const char *name);

/* A host's alloc, release, copy and wait. */
attn_status attn_host_alloc(attn_context *context, size_t bytes, void **memory);
void attn_host_release(attn_context *context, void *memory);
attn_status attn_host_copy(attn_context *context, void *to, const void *from, size_t bytes);
attn_status attn_host_wait(attn_context *context);
#endif
