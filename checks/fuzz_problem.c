/* fuzz_problem.c: any bytes as a problem and its arguments. The checks must stand whatever they get; what they let through must touch its
 * own tensors only, and where the call fails it must have written nothing. All tensors lie in one block of memory of just the size given.
 */
#include "problem.h"
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

__extension__ typedef __int128 wide;
#define MUST(condition) ((condition) ? (void)0 : abort())

/* ---- the bytes ---- */
typedef struct source {
    const uint8_t *at, *end;
} source;
static uint8_t next_byte(source *s) { return s->at < s->end ? *s->at++ : 0; }
static int64_t next_raw(source *s) {
    uint64_t value = 0;
    for (int n = 0; n < 8; n++) value = value << 8 | next_byte(s);
    return (int64_t)value;
}
/* Mostly small, at times anything. */
static int64_t next_number(source *s, int64_t below) {
    uint8_t byte = next_byte(s);
    if (byte < 0xf0) return byte % below;
    return byte < 0xf8 ? -(int64_t)(byte & 7) : next_raw(s);
}
static float next_float(source *s) {
    static const float usual[] = { 0.125f, 1.0f, -1.0f, 0.0f, 5.0f, 50.0f, 1e30f, 1e-30f };
    uint8_t byte = next_byte(s);
    if (byte < 0xf0) return usual[byte % 8];
    uint32_t bits = (uint32_t)next_raw(s);
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}
static attn_type next_type(source *s) {
    uint8_t byte = next_byte(s);
    return byte < 0xf8 ? (attn_type)(1 + byte % 3) : (attn_type)(int8_t)next_byte(s);
}

static void next_strides(source *s, attn_strides *strides) {
    uint8_t which = next_byte(s);
    if (which & 1) strides->batch = next_number(s, 64);
    if (which & 2) strides->head = next_number(s, 64);
    if (which & 4) strides->row = next_number(s, 64);
    if (which & 8) strides->row = -(strides->row % 4096);
    if (which & 16) strides->head = -(strides->head % 4096);
}

static void next_problem(source *s, attn_problem *p) {
    attn_layout layout = (attn_layout)(next_byte(s) % 2);
    int64_t heads_kv = next_number(s, 4), group = next_number(s, 6), heads_q;
    attn_problem_init(p, layout, ATTN_F32, next_number(s, 4), 1, 1, next_number(s, 12), next_number(s, 40), next_number(s, 20));
    if (__builtin_mul_overflow(heads_kv, group, &heads_q)) heads_q = group;
    p->heads_kv = heads_kv;
    p->heads_q = heads_q;
    if (next_byte(s) % 4 == 0) p->dim_v = next_number(s, 20);
    (void)attn_problem_dense(p, layout);
    p->type_q = next_type(s);
    p->type_k = next_type(s);
    p->type_v = next_type(s);
    p->type_out = next_type(s);
    p->scale = next_float(s);
    p->softcap = next_byte(s) % 2 ? next_float(s) : 0;
    p->align = (attn_align)(next_byte(s) % 32 ? next_byte(s) % 2 : next_byte(s));
    if (next_byte(s) % 2) p->left = next_number(s, 40);
    if (next_byte(s) % 2) p->right = next_number(s, 40);
    if (next_byte(s) % 2) p->offset = (int64_t)((uint64_t)next_number(s, 40) - 20);
    if (next_byte(s) % 2) {
        p->type_mask = next_byte(s) % 8 ? (attn_type)(1 + next_byte(s) % 4) : (attn_type)(int8_t)next_byte(s);
        p->mask = (attn_mask_strides){ next_number(s, 64), next_number(s, 64), next_number(s, 64), next_number(s, 4) };
    }
    if (next_byte(s) % 2) {
        next_strides(s, &p->q);
        next_strides(s, &p->k);
        next_strides(s, &p->v);
        next_strides(s, &p->out);
        next_strides(s, &p->lse);
    }
    uint8_t stamp = next_byte(s);
    if (stamp >= 0xfc)
        p->stamp = (uint32_t)next_raw(s);
    else if (stamp >= 0xf8)
        p->stamp += (uint32_t)(stamp & 7) - 4;
}

/* ---- the tensors in memory ---- */
typedef struct tensor {
    uintptr_t base;
    int64_t size[4], stride[4], element;
} tensor;
typedef struct block {
    unsigned char *data, *inputs, *outputs;
    size_t size;
} block; /* the last two: which bytes are read, written */

static tensor rows_of(const void *base, const attn_problem *p, int64_t heads, int64_t rows, int64_t dim, attn_strides s, attn_type type) {
    return (tensor){ (uintptr_t)base, { p->batch, heads, rows, dim }, { s.batch, s.head, s.row, 1 }, (int64_t)attn_type_size(type) };
}

static bool inside(const tensor *t, const block *b) {
    wide low = t->base, high = t->base;
    bool empty = false;
    high += t->element;
    for (int axis = 0; axis < 4; axis++) {
        if (t->size[axis] < 0 || t->size[axis] > 1 << 16) return false;
        empty |= t->size[axis] == 0;
        wide reach = (wide)(t->size[axis] - 1) * t->stride[axis] * t->element;
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    return empty || (low >= (wide)(uintptr_t)b->data && high <= (wide)(uintptr_t)b->data + (wide)b->size);
}

/* Marks the tensor's bytes; whether any was marked before. */
static bool mark(const tensor *t, const block *b, unsigned char *map, int64_t rows) {
    bool twice = false;
    if (t->element == 0) return false; /* a mask without a type */
    for (int64_t n = 0; n < t->size[0]; n++)
        for (int64_t h = 0; h < t->size[1]; h++)
            for (int64_t i = 0; i < t->size[2] && i < rows; i++)
                for (int64_t e = 0; e < t->size[3]; e++) {
                    uintptr_t at =
                        t->base + (uintptr_t)((n * t->stride[0] + h * t->stride[1] + i * t->stride[2] + e * t->stride[3]) * t->element);
                    for (int64_t k = 0; k < t->element; k++) twice |= map[at - (uintptr_t)b->data + (uintptr_t)k]++ > 0;
                }
    return twice;
}

enum { Q, K, V, MASK, SINKS, SLOPES, LEN_Q, LEN_KV, OUT, LSE, TENSORS };
static void all_tensors(const attn_problem *p, const attn_args *a, tensor *t) {
    attn_strides none = { 0, 0, 1 };
    attn_problem one = *p;
    one.batch = 1;
    t[Q] = rows_of(a->q, p, p->heads_q, p->len_q, p->dim_qk, p->q, p->type_q);
    t[K] = rows_of(a->k, p, p->heads_kv, p->len_kv, p->dim_qk, p->k, p->type_k);
    t[V] = rows_of(a->v, p, p->heads_kv, p->len_kv, p->dim_v, p->v, p->type_v);
    t[OUT] = rows_of(a->out, p, p->heads_q, p->len_q, p->dim_v, p->out, p->type_out);
    t[LSE] = rows_of(a->lse, p, p->heads_q, p->len_q, a->lse ? 1 : 0, p->lse, ATTN_F32);
    t[MASK] = (tensor){ (uintptr_t)a->mask,
                        { p->batch, p->heads_q, p->len_q, a->mask ? p->len_kv : 0 },
                        { p->mask.batch, p->mask.head, p->mask.row, p->mask.key },
                        (int64_t)attn_type_size(p->type_mask) };
    t[SINKS] = rows_of(a->sinks, &one, 1, a->sinks ? p->heads_q : 0, 1, none, ATTN_F32);
    t[SLOPES] = rows_of(a->slopes, &one, 1, a->slopes ? p->heads_q : 0, 1, none, ATTN_F32);
    t[LEN_Q] = rows_of(a->len_q, &one, 1, a->len_q ? p->batch : 0, 1, none, ATTN_F32);
    t[LEN_KV] = rows_of(a->len_kv, &one, 1, a->len_kv ? p->batch : 0, 1, none, ATTN_F32);
}

/* ---- the call ---- */
enum { CONTEXTS = 9 };
static attn_context *context_of(int number) {
    static attn_context *contexts[CONTEXTS];
#if defined __AARCH64EL__
    static const char *const isas[] = { "scalar", "neon", "neonbf16" };
#else
    static const char *const isas[] = { "scalar", "avx2", "avx512" };
#endif
    if (!contexts[number]) {
        attn_options options = ATTN_OPTIONS_INIT;
        options.threads = 1;
        options.passes = number / 3;
        options.chunk = number / 3 == 2 ? 3 : 0;
        options.isa = isas[number % 3];
        if (attn_open(&contexts[number], &options) == ATTN_ERROR_ISA) {
            options.isa = NULL;
            MUST(attn_open(&contexts[number], &options) == ATTN_OK);
        }
    }
    return contexts[number];
}

/* The block: its bytes are what is left of the input, again and again; lengths that would fit the problem are put at len_q and len_kv. */
static block make_block(source *s) {
    block b = { NULL, NULL, NULL, 256 + (size_t)next_byte(s) * 64 + next_byte(s) };
    b.data = malloc(b.size);
    b.inputs = calloc(b.size, 1);
    b.outputs = calloc(b.size, 1);
    MUST(b.data && b.inputs && b.outputs);
    size_t left = (size_t)(s->end - s->at);
    for (size_t n = 0; n < b.size; n++) b.data[n] = left ? s->at[n % left] : (uint8_t)(n * 37);
    return b;
}

static void *next_pointer(source *s, const block *b) {
    uint8_t high = next_byte(s), low = next_byte(s);
    return b->data + ((size_t)high << 6 | (low & 60) | (low >= 0xf8 ? 1 : 0)) % b->size;
}

static void next_args(source *s, const block *b, attn_args *a) {
    uint8_t given = next_byte(s), more = next_byte(s);
    *a = (attn_args)ATTN_ARGS_INIT;
    a->q = next_pointer(s, b);
    a->k = next_pointer(s, b);
    a->v = next_pointer(s, b);
    a->out = next_pointer(s, b);
    if (given & 1) a->lse = next_pointer(s, b);
    if (given & 2) a->mask = next_pointer(s, b);
    if (given & 4) a->sinks = next_pointer(s, b);
    if (given & 8) a->slopes = next_pointer(s, b);
    if (given & 16) a->len_q = next_pointer(s, b);
    if (given & 32) a->len_kv = next_pointer(s, b);
    if (more >= 0xfc) a->stamp = (uint32_t)next_raw(s);
    if (more == 0xfb) a->k = NULL;
    if (more == 0xfa) a->out = NULL;
}

static void fit_lengths(const attn_problem *p, const block *b, const tensor *t, int which) {
    int64_t most = which == LEN_Q ? p->len_q : p->len_kv;
    if (!inside(&t[which], b) || most < 0 || most > 1 << 16) return;
    for (int64_t n = 0; n < t[which].size[2]; n++) {
        unsigned char *at = (unsigned char *)t[which].base + n * 4;
        int32_t length = (int32_t)(*at % (most + 1));
        memcpy(at, &length, sizeof length);
    }
}

static void forward(const attn_problem *p, const attn_args *args, block *b, const tensor *t, int number, bool own) {
    attn_context *context = context_of(number);
    attn_args a = *args;
    unsigned char *before = malloc(b->size);
    void *room = NULL;
    size_t needed = 0;
    bool written_twice = mark(&t[OUT], b, b->outputs, INT64_MAX), clash = false;
    written_twice |= mark(&t[LSE], b, b->outputs, INT64_MAX);
    for (int n = Q; n <= LEN_KV; n++) mark(&t[n], b, b->inputs, INT64_MAX);
    for (size_t n = 0; n < b->size; n++) clash |= b->inputs[n] && b->outputs[n];
    MUST(before);
    memcpy(before, b->data, b->size);
    if (own && attn_workspace(context, p, &needed) == ATTN_OK && needed > 0) {
        MUST(posix_memalign(&room, 64, needed) == 0);
        memset(room, 0xff, needed);
        a.workspace = room;
        a.workspace_size = needed;
    }
    attn_status status = attn_forward(context, p, &a);
    if (status == ATTN_OK) MUST(a.len_q || a.len_kv || !(written_twice || clash)); /* shorter lengths may part what full ones join */
    for (size_t n = 0; n < b->size; n++)
        MUST(b->data[n] == before[n] || (status == ATTN_OK && b->outputs[n] && !(clash && b->inputs[n] && !a.len_q && !a.len_kv)));
    free(room);
    free(before);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    source s = { data, data + size };
    attn_problem p, checked;
    attn_args a, complete;
    tensor t[TENSORS];
    int number = next_byte(&s) % CONTEXTS;
    bool own = next_byte(&s) % 2;
    next_problem(&s, &p);
    block b = make_block(&s);
    next_args(&s, &b, &a);
    all_tensors(&p, &a, t);
    bool fits = true;
    for (int n = 0; n < TENSORS; n++) fits &= inside(&t[n], &b);
    fit_lengths(&p, &b, t, LEN_Q);
    fit_lengths(&p, &b, t, LEN_KV);
    bool sound = attn_problem_check(&p, &checked) == ATTN_OK;
    /* the lengths are the one thing that checking reads */
    if (sound && inside(&t[LEN_Q], &b) && inside(&t[LEN_KV], &b)) (void)attn_args_check(&checked, &a, 0, false, &complete);
    if (!sound) fits = true; /* refused before anything is looked at */
    if (fits && sound)
        forward(&p, &a, &b, t, number, own);
    else if (fits)
        MUST(attn_forward(context_of(number), &p, &a) != ATTN_OK);
    free(b.data);
    free(b.inputs);
    free(b.outputs);
    return 0;
}
