/* mirror.h: the arguments of a call in the memory of a context's device, where that is not the host's. */
#ifndef ATTN_CLI_MIRROR_H
#define ATTN_CLI_MIRROR_H
#include "cli.h"

enum { MIRROR_TENSORS = 11 };
typedef struct mirror {
    attn_context *context;
    attn_args args; /* for calls on the device */
    struct {
        const void *host;      /* the lowest byte */
        void *device, *memory; /* its place on the device, in what was taken there */
        size_t size;
    } tensors[MIRROR_TENSORS];
    int count;
} mirror;

bool attn_cli_remote(attn_context *context);

/* Everything that the arguments point to, copied; the workspace uncopied. On the host the arguments themselves. */
bool attn_cli_mirror_make(mirror *m, attn_context *context, const attn_problem *problem, const attn_args *args);
attn_status attn_cli_mirror_bring(mirror *m); /* waits for the device, and copies out and lse back */
void attn_cli_mirror_free(mirror *m);

/* attn_forward wherever the device is. */
attn_status attn_cli_forward(attn_context *context, const attn_problem *problem, const attn_args *args);
#endif
