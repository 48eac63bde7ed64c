/* mirror.c: the arguments of a call in the device's memory (mirror.h). */
#include "mirror.h"
#include "convert.h"
#include <string.h>

/* Bytes of a tensor, from its lowest to one past its highest, about its base. */
typedef struct extent {
    int64_t low, end;
} extent;

static void along(extent *e, int64_t count, int64_t stride, int64_t bytes) {
    int64_t reach = count > 0 ? (count - 1) * stride * bytes : 0;
    *(reach < 0 ? &e->low : &e->end) += reach;
}

static extent rows_extent(const attn_strides *s, int64_t batch, int64_t heads, int64_t rows, int64_t dim, attn_type type) {
    const int64_t bytes = (int64_t)attn_cli_size(type);
    extent e = { 0, dim * bytes };
    if (batch < 1 || heads < 1 || rows < 1) return (extent){ 0, 0 };
    along(&e, batch, s->batch, bytes);
    along(&e, heads, s->head, bytes);
    along(&e, rows, s->row, bytes);
    return e;
}

static extent mask_extent(const attn_problem *p) {
    const int64_t bytes = (int64_t)attn_cli_size(p->type_mask);
    extent e = { 0, bytes };
    if (p->batch < 1 || p->len_q < 1 || p->len_kv < 1) return (extent){ 0, 0 };
    along(&e, p->batch, p->mask.batch, bytes);
    along(&e, p->heads_q, p->mask.head, bytes);
    along(&e, p->len_q, p->mask.row, bytes);
    along(&e, p->len_kv, p->mask.key, bytes);
    return e;
}

static extent plain(int64_t bytes) { return (extent){ 0, bytes }; }

/* The tensor's base on the device; NULL where there is nothing to copy, or no memory for it. */
static void *copied(mirror *m, const void *base, extent e, bool *good) {
    if (base == NULL || e.end == e.low || !*good) return NULL;
    const size_t size = (size_t)(e.end - e.low), past = (uintptr_t)base % 256; /* as far past a boundary as on the host */
    const char *lowest = (const char *)base + e.low;
    void *memory = NULL;
    *good = attn_cli_ok(attn_alloc(m->context, size + 512, &memory));
    if (!*good) return NULL;
    char *device = (char *)memory + (past + 256 - (uintptr_t)(-e.low) % 256) % 256;
    m->tensors[m->count].host = lowest;
    m->tensors[m->count].memory = memory;
    m->tensors[m->count].device = device;
    m->tensors[m->count++].size = size;
    *good = attn_cli_ok(attn_copy(m->context, device, lowest, size));
    return device - e.low;
}

bool attn_cli_remote(attn_context *context) {
    attn_description description = ATTN_DESCRIPTION_INIT;
    return attn_describe(context, &description) == ATTN_OK && strcmp(description.device, "cuda") == 0;
}

bool attn_cli_mirror_make(mirror *m, attn_context *context, const attn_problem *p, const attn_args *args) {
    bool good = true;
    *m = (mirror){ .context = context, .args = *args };
    if (!attn_cli_remote(context)) return true;
    attn_args *a = &m->args;
    a->q = copied(m, args->q, rows_extent(&p->q, p->batch, p->heads_q, p->len_q, p->dim_qk, p->type_q), &good);
    a->k = copied(m, args->k, rows_extent(&p->k, p->batch, p->heads_kv, p->len_kv, p->dim_qk, p->type_k), &good);
    a->v = copied(m, args->v, rows_extent(&p->v, p->batch, p->heads_kv, p->len_kv, p->dim_v, p->type_v), &good);
    a->out = copied(m, args->out, rows_extent(&p->out, p->batch, p->heads_q, p->len_q, p->dim_v, p->type_out), &good);
    a->lse = copied(m, args->lse, rows_extent(&p->lse, p->batch, p->heads_q, p->len_q, 1, ATTN_F32), &good);
    a->mask = p->type_mask == ATTN_NONE ? NULL : copied(m, args->mask, mask_extent(p), &good);
    a->sinks = copied(m, args->sinks, plain(p->heads_q * (int64_t)sizeof *args->sinks), &good);
    a->slopes = copied(m, args->slopes, plain(p->heads_q * (int64_t)sizeof *args->slopes), &good);
    a->len_q = copied(m, args->len_q, plain(p->batch * (int64_t)sizeof *args->len_q), &good);
    a->len_kv = copied(m, args->len_kv, plain(p->batch * (int64_t)sizeof *args->len_kv), &good);
    a->workspace = copied(m, args->workspace, plain((int64_t)args->workspace_size), &good);
    if (!good) attn_cli_mirror_free(m);
    return good;
}

attn_status attn_cli_mirror_bring(mirror *m) {
    attn_status status = attn_wait(m->context);
    const void *const written[] = { m->args.out, m->args.lse };
    for (int i = 0; status == ATTN_OK && i < m->count; i++)
        for (int n = 0; n < 2; n++) {
            const char *at = written[n], *device = m->tensors[i].device;
            if (at == NULL || at < device || at >= device + m->tensors[i].size) continue;
            status = attn_copy(m->context, (void *)(uintptr_t)m->tensors[i].host, device, m->tensors[i].size);
        }
    return status;
}

void attn_cli_mirror_free(mirror *m) {
    for (int i = 0; i < m->count; i++) attn_free(m->context, m->tensors[i].memory);
    m->count = 0;
}

attn_status attn_cli_forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    mirror m;
    if (!attn_cli_remote(context)) return attn_forward(context, problem, args);
    if (!attn_cli_mirror_make(&m, context, problem, args)) return ATTN_ERROR_OUT_OF_MEMORY;
    attn_status status = attn_forward(context, problem, &m.args);
    if (status == ATTN_OK) status = attn_cli_mirror_bring(&m);
    attn_cli_mirror_free(&m);
    return status;
}
