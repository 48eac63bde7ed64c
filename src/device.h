/* device.h: the table that every device fills in, and the context that api.c hands to it. Problems and arguments that reach a device have
 * passed every check; its functions report only what they alone can find out (no memory, no such ISA). */
#ifndef ATTN_DEVICE_H
#define ATTN_DEVICE_H
#include "problem.h"
#include "system.h"

enum { ATTN_DEVICE_ABI = 1 };

typedef struct attn_device_table {
    uint32_t abi; /* ATTN_DEVICE_ABI */
    const char *name;
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
} attn_device_table;

struct attn_context {
    const attn_device_table *device;
    void *state;     /* the device's own */
    attn_lock lock;  /* guards the workspace below; not taken by calls that bring their own */
    void *workspace; /* 64-byte aligned; grown when a larger problem comes */
    size_t workspace_size;
};

extern const attn_device_table attn_cpu_device, attn_reference_device;
#endif
