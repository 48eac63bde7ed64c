/* memory.c: the memory of a device that is the host itself. */
#include "device.h"
#include <string.h>

enum { memory_alignment = 256 };

attn_status attn_host_alloc(attn_context *context, size_t bytes, void **memory) {
    (void)context;
    *memory = attn_memory_take(memory_alignment, bytes);
    return *memory != NULL ? ATTN_OK : ATTN_ERROR_OUT_OF_MEMORY;
}

void attn_host_release(attn_context *context, void *memory) {
    (void)context;
    attn_memory_give(memory);
}

attn_status attn_host_copy(attn_context *context, void *to, const void *from, size_t bytes) {
    (void)context;
    memmove(to, from, bytes);
    return ATTN_OK;
}

attn_status attn_host_wait(attn_context *context) {
    (void)context;
    return ATTN_OK;
}
