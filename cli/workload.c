/* workload.c: puts memory behind a case: tensors of random numbers, masks, lengths, and margins that show stray writes. */
#include "workload.h"
#include "convert.h"
#include "random.h"
#include "verify.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MARGIN = 64, UNTOUCHED = 0xa5, NOT_A_NUMBER = 0xff /* every byte of a NaN in all three types */ };

static int64_t times(int64_t a, int64_t b) { /* saturates: the library refuses what does not fit */
    int64_t product;
    return __builtin_mul_overflow(a, b, &product) ? INT64_MAX : product;
}

void attn_cli_case_problem(const spec *s, attn_problem *p) {
    attn_problem_init(p, s->layout, s->type_q, s->batch, s->heads_q, s->heads_kv, s->len_q, s->len_kv, s->dim_qk);
    if (s->dim_v) p->dim_v = s->dim_v;
    p->type_k = s->type_k;
    p->type_v = s->type_v;
    p->type_out = s->type_out;
    (void)attn_problem_dense(p, s->layout);
    p->align = s->align;
    p->offset = s->offset;
    if (s->window) p->left = s->left, p->right = s->right;
    if (s->causal) p->right = 0;
    if (s->scaled) p->scale = s->scale;
    p->softcap = s->softcap;
    p->type_mask = s->mask;
    p->mask.key = s->axes & AXIS_KEY ? 1 : 0;
    int64_t size = s->axes & AXIS_KEY ? s->len_kv : 1;
    p->mask.row = s->axes & AXIS_ROW ? size : 0;
    size = times(size, s->axes & AXIS_ROW ? s->len_q : 1);
    p->mask.head = s->axes & AXIS_HEAD ? size : 0;
    size = times(size, s->axes & AXIS_HEAD ? s->heads_q : 1);
    p->mask.batch = s->axes & AXIS_BATCH ? size : 0;
    if (s->mask == ATTN_NONE) p->mask = (attn_mask_strides){ 0 };
}

static void *block(workload *w, size_t bytes) {
    void *memory = attn_cli_memory(bytes);
    if (memory) w->blocks[w->count++] = memory;
    return memory;
}

/* Strides with gaps: 3 elements after a row, 5 after the middle axis, 7 after the outer one. */
static void pad(attn_strides *stride, attn_layout layout, int64_t heads, int64_t rows, int64_t dim) {
    int64_t *inner = layout == ATTN_BLHD ? &stride->head : &stride->row, *outer = layout == ATTN_BLHD ? &stride->row : &stride->head;
    *inner = dim + 3;
    *outer = *inner * (layout == ATTN_BLHD ? heads : rows) + 5;
    stride->batch = *outer * (layout == ATTN_BLHD ? rows : heads) + 7;
}

typedef struct axes {
    int64_t batch, heads, rows, dim;
} axes;

/* Memory for a tensor of these sizes and strides, bytes all `byte`, with a margin around outputs; the address of element (0, 0, 0). */
static char *place_tensor(workload *w, const spec *s, axes size, attn_strides *stride, size_t each, int byte, unsigned char **all,
                          size_t *bytes) {
    int64_t shift = 0, margin = byte == UNTOUCHED ? MARGIN : 0;
    if (s->strides == STRIDES_PADDED) pad(stride, s->layout, size.heads, size.rows, size.dim), shift = 1;
    int64_t elements = size.batch * size.heads * size.rows * size.dim;
    if (s->strides == STRIDES_PADDED) elements = size.batch * stride->batch + shift;
    *bytes = (size_t)elements * each + 2 * (size_t)margin;
    *all = block(w, *bytes);
    if (!*all) return NULL;
    memset(*all, byte, *bytes);
    if (s->strides == STRIDES_REVERSED && size.rows > 0) {
        shift = (size.rows - 1) * stride->row;
        stride->row = -stride->row;
    }
    return (char *)*all + margin + shift * (int64_t)each;
}

static const void *make_input(workload *w, const spec *s, axes size, attn_strides *stride, attn_type type, uint64_t stream, float factor) {
    generator g = attn_cli_generator(s->seed, stream);
    unsigned char *all;
    size_t bytes;
    char *base = place_tensor(w, s, size, stride, attn_cli_size(type), NOT_A_NUMBER, &all, &bytes);
    for (int64_t b = 0; base && b < size.batch; b++)
        for (int64_t h = 0; h < size.heads; h++)
            for (int64_t i = 0; i < size.rows; i++) {
                int64_t at = b * stride->batch + h * stride->head + i * stride->row;
                attn_cli_normal_fill(&g, type, base + at * (int64_t)attn_cli_size(type), size.dim, factor == 0 ? 1 : factor);
            }
    if (s->strides == STRIDES_SHARED && stride != &w->problem.q) stride->batch = 0;
    return base;
}

static float mask_value(generator *g, const spec *s, int64_t key) {
    static const float lowest[] = { [ATTN_F32] = -FLT_MAX, [ATTN_F16] = -65504, [ATTN_BF16] = -0x1.fep127f };
    switch (s->fill) {
    case FILL_KEEP:
        return 0;
    case FILL_HIDE:
        return -INFINITY;
    case FILL_PADDING:
        return key < s->len_kv / 5 || key >= s->len_kv - s->len_kv / 7 ? -INFINITY : 0;
    case FILL_LOWEST:
        return key % 2 ? lowest[s->mask == ATTN_BOOL ? ATTN_F32 : s->mask] : attn_cli_normal(g);
    default:
        return attn_cli_chance(g, 25) ? -INFINITY : attn_cli_normal(g);
    }
}

static bool make_mask(workload *w, const spec *s) {
    if (s->mask == ATTN_NONE) return true;
    generator g = attn_cli_generator(s->seed, 10);
    int64_t keys = s->axes & AXIS_KEY ? s->len_kv : 1, count = keys;
    count *= (s->axes & AXIS_ROW ? s->len_q : 1) * (s->axes & AXIS_HEAD ? s->heads_q : 1) * (s->axes & AXIS_BATCH ? s->batch : 1);
    size_t each = attn_cli_size(s->mask);
    char *mask = block(w, (size_t)count * each);
    if (!mask) return false;
    for (int64_t n = 0; n < count; n++) {
        float value = mask_value(&g, s, keys > 1 ? n % keys : s->len_kv / 2);
        if (s->mask == ATTN_BOOL)
            mask[n] = value != -INFINITY;
        else
            attn_cli_store(s->mask, &value, 1, mask + (size_t)n * each);
    }
    w->args.mask = mask;
    return true;
}

static bool make_floats(workload *w, const spec *s, const float **to, bool wanted, uint64_t stream, bool slopes) {
    if (!wanted) return true;
    generator g = attn_cli_generator(s->seed, stream);
    float *values = block(w, (size_t)s->heads_q * sizeof *values);
    for (int64_t h = 0; values && h < s->heads_q; h++)
        values[h] = slopes ? (float)exp2(-8.0 * (double)(h + 1) / (double)s->heads_q) : s->sink + attn_cli_normal(&g);
    *to = values;
    return values != NULL;
}

static bool make_lengths(workload *w, const spec *s, const int32_t **to, bool wanted, uint64_t stream, int64_t most) {
    if (!wanted) return true;
    generator g = attn_cli_generator(s->seed, stream);
    int32_t *values = block(w, (size_t)s->batch * sizeof *values);
    for (int64_t b = 0; values && b < s->batch; b++)
        values[b] = (int32_t)(attn_cli_chance(&g, 15) ? 0 : attn_cli_chance(&g, 15) ? most : attn_cli_between(&g, 0, most));
    *to = values;
    return values != NULL;
}

static bool make_outputs(workload *w, const spec *s, const axes *size) {
    attn_problem *p = &w->problem;
    spec plain = *s;
    if (s->strides == STRIDES_SHARED) plain.strides = STRIDES_DENSE;
    w->args.out = place_tensor(w, &plain, *size, &p->out, attn_cli_size(p->type_out), UNTOUCHED, &w->out, &w->out_size);
    plain.strides = STRIDES_DENSE;
    axes lse = { size->batch, size->heads, size->rows, 1 };
    w->args.lse = (float *)(void *)place_tensor(w, &plain, lse, &p->lse, sizeof(float), UNTOUCHED, &w->lse, &w->lse_size);
    return w->args.out && w->args.lse;
}

/* Whether some row of some head that reads key head g sees key j. */
static bool is_seen(const workload *w, int64_t b, int64_t g, int64_t j) {
    const attn_problem *p = &w->problem;
    int64_t group = p->heads_q / p->heads_kv, low, high;
    sequence band = attn_cli_band(p, &w->args, b);
    for (int64_t i = 0; i < band.len_q; i++) {
        attn_cli_visible(p, &band, i, &low, &high);
        if (j < low || j >= high) continue;
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            if (!attn_cli_hidden(p, &w->args, (int64_t[4]){ b, h, i, j })) return true;
    }
    return false;
}

static char *element(const void *base, attn_type type, const attn_strides *stride, int64_t b, int64_t h, int64_t i) {
    return (char *)(uintptr_t)base + (b * stride->batch + h * stride->head + i * stride->row) * (int64_t)attn_cli_size(type);
}

static void poison_keys(workload *w, const spec *s) {
    const attn_problem *p = &w->problem;
    if (s->strides == STRIDES_SHARED) return; /* what one sequence does not see, another may */
    for (int64_t b = 0; b < p->batch; b++)
        for (int64_t g = 0; g < p->heads_kv; g++)
            for (int64_t j = 0; j < p->len_kv; j++) {
                if (is_seen(w, b, g, j)) continue;
                memset(element(w->args.k, p->type_k, &p->k, b, g, j), NOT_A_NUMBER, (size_t)p->dim_qk * attn_cli_size(p->type_k));
                memset(element(w->args.v, p->type_v, &p->v, b, g, j), NOT_A_NUMBER, (size_t)p->dim_v * attn_cli_size(p->type_v));
            }
}

/* Rows past len_q, and what an unbroadcast mask holds outside the lengths and the band. */
static void poison_rows(workload *w, const spec *s) {
    const attn_problem *p = &w->problem;
    size_t each = attn_cli_size(p->type_mask);
    for (int64_t b = 0; b < p->batch; b++) {
        sequence band = attn_cli_band(p, &w->args, b);
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < p->len_q; i++) {
                int64_t low = 0, high = 0;
                if (i < band.len_q)
                    attn_cli_visible(p, &band, i, &low, &high);
                else
                    memset(element(w->args.q, p->type_q, &p->q, b, h, i), NOT_A_NUMBER, (size_t)p->dim_qk * attn_cli_size(p->type_q));
                if (!w->args.mask || s->axes != 15) continue;
                char *mask = (char *)(uintptr_t)w->args.mask + (b * p->mask.batch + h * p->mask.head + i * p->mask.row) * (int64_t)each;
                memset(mask, NOT_A_NUMBER, (size_t)low * each);
                memset(mask + (size_t)high * each, NOT_A_NUMBER, (size_t)(p->len_kv - high) * each);
            }
    }
}

static void plant_in_row(workload *w, const spec *s) {
    const attn_problem *p = &w->problem;
    generator g = attn_cli_generator(s->seed, 20);
    bool q = s->plant == PLANT_NAN_Q, v = s->plant == PLANT_NAN_V || s->plant == PLANT_INF_V;
    int64_t rows = q ? p->len_q : p->len_kv, dim = v ? p->dim_v : p->dim_qk;
    if (s->plant == PLANT_NONE || p->batch == 0 || rows == 0) return;
    float value = s->plant == PLANT_INF_K || s->plant == PLANT_INF_V ? INFINITY : NAN;
    attn_type type = q ? p->type_q : v ? p->type_v : p->type_k;
    const attn_strides *stride = q ? &p->q : v ? &p->v : &p->k;
    int64_t b = attn_cli_below(&g, p->batch), h = attn_cli_below(&g, q ? p->heads_q : p->heads_kv);
    char *row = element(q ? w->args.q : v ? w->args.v : w->args.k, type, stride, b, h, attn_cli_below(&g, rows));
    attn_cli_store(type, &value, 1, row + (size_t)attn_cli_below(&g, dim) * attn_cli_size(type));
}

bool attn_cli_workload_make(const spec *s, workload *w) {
    attn_problem *p = &w->problem;
    memset(w, 0, sizeof *w);
    w->args = (attn_args)ATTN_ARGS_INIT;
    attn_cli_case_problem(s, p);
    axes rows = { p->batch, p->heads_q, p->len_q, p->dim_qk }, out = { p->batch, p->heads_q, p->len_q, p->dim_v };
    axes keys = { p->batch, p->heads_kv, p->len_kv, p->dim_qk }, values = { p->batch, p->heads_kv, p->len_kv, p->dim_v };
    w->args.q = make_input(w, s, rows, &p->q, p->type_q, 1, s->spread);
    w->args.k = w->args.q ? make_input(w, s, keys, &p->k, p->type_k, 2, 1) : NULL;
    w->args.v = w->args.k ? make_input(w, s, values, &p->v, p->type_v, 3, s->values) : NULL;
    bool good = w->args.v && make_outputs(w, s, &out) && make_mask(w, s) && make_floats(w, s, &w->args.sinks, s->sinks, 4, false) &&
                make_floats(w, s, &w->args.slopes, s->slopes, 5, true) && make_lengths(w, s, &w->args.len_q, s->lens_q, 6, p->len_q) &&
                make_lengths(w, s, &w->args.len_kv, s->lens_kv, 7, p->len_kv);
    if (!good) {
        attn_cli_workload_free(w);
        return false;
    }
    plant_in_row(w, s);
    if (s->poison) {
        poison_keys(w, s);
        poison_rows(w, s);
    }
    return true;
}

void attn_cli_workload_free(workload *w) {
    for (int i = 0; i < w->count; i++) free(w->blocks[i]);
    memset(w, 0, sizeof *w);
}

static size_t stray_bytes(const unsigned char *all, size_t bytes) {
    size_t stray = 0;
    for (size_t i = 0; i < bytes; i++) stray += all[i] != UNTOUCHED;
    return stray;
}

size_t attn_cli_workload_stray(workload *w) {
    const attn_problem *p = &w->problem;
    for (int64_t b = 0; b < p->batch; b++) {
        sequence band = attn_cli_band(p, &w->args, b);
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < band.len_q; i++) { /* these may be written: wipe them, and nothing else may differ */
                memset(element(w->args.out, p->type_out, &p->out, b, h, i), UNTOUCHED, (size_t)p->dim_v * attn_cli_size(p->type_out));
                memset(element(w->args.lse, ATTN_F32, &p->lse, b, h, i), UNTOUCHED, sizeof(float));
            }
    }
    return stray_bytes(w->out, w->out_size) + stray_bytes(w->lse, w->lse_size);
}
