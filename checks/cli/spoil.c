/* spoil.c: preloaded, makes every forward of a device other than the reference wrong in the way that SPOIL names: "value" adds 1 to the
 * first element of an f32 out, "nan" makes it NaN, "lse" adds 1 to the first lse, "stray" writes one byte in front of out, "behind" one
 * behind the workspace, "fail" reports that there is no memory. So the checks see what the command says about a broken library. */
#define _GNU_SOURCE
#include <attn/attn.h>
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

attn_status attn_forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    attn_status (*forward)(attn_context *, const attn_problem *, const attn_args *);
    attn_description about = ATTN_DESCRIPTION_INIT;
    const char *how = getenv("SPOIL");
    *(void **)&forward = dlsym(RTLD_NEXT, "attn_forward");
    attn_status status = forward(context, problem, args);
    if (!how || status != ATTN_OK || attn_describe(context, &about) != ATTN_OK || strcmp(about.device, "reference") == 0) return status;
    float *out = args->out;
    if (strcmp(how, "value") == 0) out[0] += 1;
    if (strcmp(how, "nan") == 0) out[0] = __builtin_nanf("");
    if (strcmp(how, "lse") == 0 && args->lse) args->lse[0] += 1;
    if (strcmp(how, "stray") == 0) ((unsigned char *)args->out)[-1] ^= 1;
    if (strcmp(how, "behind") == 0 && args->workspace) ((unsigned char *)args->workspace)[args->workspace_size] ^= 1;
    return strcmp(how, "fail") == 0 ? ATTN_ERROR_OUT_OF_MEMORY : status;
}
