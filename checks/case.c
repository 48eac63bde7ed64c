/* case.c: makes cases for the check programs: a problem, its tensors in any arrangement, and arguments; runs them and looks at what the
 * call wrote. */
#include "harness.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void check_case_init(check_case *c, attn_type type, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t len_q, int64_t len_kv,
                     int64_t dim) {
    memset(c, 0, sizeof *c);
    attn_problem_init(&c->problem, ATTN_BHLD, type, batch, heads_q, heads_kv, len_q, len_kv, dim);
    c->args = (attn_args)ATTN_ARGS_INIT;
    c->with_lse = true;
    c->hidden = 0.3;
}

/* ---- strides ---- */
static int64_t magnitude(int64_t value) { return value < 0 ? -value : value; }

/* Strides for [n0, n1, n2, run] with the axes in any order, gaps between them, and any signs. */
static attn_strides scatter(check_random *random, int64_t n0, int64_t n1, int64_t n2, int64_t run) {
    int64_t size[3] = { n0, n1, n2 }, stride[3], step = run + (check_chance(random, 0.5) ? check_below(random, 9) : 0);
    int order[3] = { 0, 1, 2 };
    for (int n = 2; n > 0; n--) {
        int other = (int)check_below(random, n + 1), kept = order[n];
        order[n] = order[other];
        order[other] = kept;
    }
    for (int n = 0; n < 3; n++) {
        int axis = order[n];
        stride[axis] = check_chance(random, 0.2) ? -step : step;
        step = magnitude(step) * (size[axis] > 0 ? size[axis] : 1) + (check_chance(random, 0.3) ? check_below(random, 20) : 0);
    }
    return (attn_strides){ stride[0], stride[1], stride[2] };
}

static void maybe_broadcast(attn_strides *strides, check_random *random) {
    if (check_chance(random, 0.15)) strides->batch = 0;
    if (check_chance(random, 0.1)) strides->head = 0;
    if (check_chance(random, 0.03)) strides->row = 0;
}

void check_case_arrange(check_case *c, check_random *random, check_arrangement arrangement) {
    attn_problem *p = &c->problem;
    if (arrangement != CHECK_STRIDED) {
        CHECK_OK(attn_problem_dense(p, arrangement == CHECK_DENSE_BHLD ? ATTN_BHLD : ATTN_BLHD), "dense");
        return;
    }
    p->q = scatter(random, p->batch, p->heads_q, p->len_q, p->dim_qk);
    p->k = scatter(random, p->batch, p->heads_kv, p->len_kv, p->dim_qk);
    p->v = scatter(random, p->batch, p->heads_kv, p->len_kv, p->dim_v);
    p->out = scatter(random, p->batch, p->heads_q, p->len_q, p->dim_v);
    p->lse = scatter(random, p->batch, p->heads_q, p->len_q, 1);
    maybe_broadcast(&p->q, random);
    maybe_broadcast(&p->k, random);
    maybe_broadcast(&p->v, random);
}

void check_case_arrange_mask(check_case *c, check_random *random) {
    attn_problem *p = &c->problem;
    attn_strides outer;
    bool transposed = check_chance(random, 0.2);
    int64_t inner = transposed ? p->len_q : p->len_kv, step = check_chance(random, 0.2) ? 2 : 1;
    outer = scatter(random, p->batch, p->heads_q, transposed ? p->len_kv : p->len_q, inner * step);
    if (check_chance(random, 0.15)) step = -step;
    p->mask = (attn_mask_strides){ outer.batch, outer.head, transposed ? step : outer.row, transposed ? outer.row : step };
    if (check_chance(random, 0.4)) p->mask.batch = 0;
    if (check_chance(random, 0.5)) p->mask.head = 0;
    if (check_chance(random, 0.2)) p->mask.row = 0;
    if (check_chance(random, 0.05)) p->mask.key = 0;
}

/* ---- building ---- */
static check_tensor tensor_of(attn_type type, int64_t batch, int64_t heads, int64_t rows, int64_t last, attn_strides strides,
                              check_side side) {
    check_tensor tensor = { type, { batch, heads, rows, last }, { strides.batch, strides.head, strides.row, 1 }, NULL, { 0 } };
    check_tensor_place(&tensor, side);
    return tensor;
}

static double draw(check_random *random, check_values values, attn_type type, bool is_v) {
    switch (values) {
    case CHECK_LARGE:
        return is_v ? check_normal(random) : 100 * check_normal(random);
    case CHECK_POSITIVE:
        return is_v ? check_uniform(random, 1, 2) : check_uniform(random, 0, 0.5);
    case CHECK_WIDE:
        return check_normal(random) * exp2(check_uniform(random, is_v ? -12 : -8, is_v ? 12 : 1));
    case CHECK_TINY:
        return is_v ? check_normal(random) * check_ulp(type, 0) * 64 : check_normal(random);
    case CHECK_LEVEL:
        return 0;
    default:
        return check_normal(random);
    }
}

static void fill_tensor(check_tensor *tensor, check_random *random, check_values values, bool is_v) {
    double level = check_uniform(random, 0, 1);
    for (int64_t b = 0; b < tensor->size[0]; b++) {
        for (int64_t h = 0; h < tensor->size[1]; h++) {
            for (int64_t i = 0; i < tensor->size[2]; i++) {
                for (int64_t e = 0; e < tensor->size[3]; e++) {
                    double value = draw(random, values, tensor->type, is_v);
                    if (is_v && values == CHECK_LEVEL) value = 1 + fmod(level + 0.618 * (double)e, 1);
                    check_set(tensor, b, h, i, e, value);
                }
            }
        }
    }
}

static double draw_mask(check_random *random, attn_type type, double hidden) {
    if (check_chance(random, hidden)) return -INFINITY;
    if (check_chance(random, 0.02)) return check_lowest(type);
    return check_chance(random, 0.3) ? 0 : 2 * check_normal(random);
}

static void fill_mask(check_case *c, check_random *random) {
    static const unsigned char truths[] = { 1, 1, 1, 2, 0x80, 0xff };
    check_tensor *mask = &c->mask;
    for (int64_t b = 0; b < mask->size[0]; b++) {
        for (int64_t h = 0; h < mask->size[1]; h++) {
            for (int64_t i = 0; i < mask->size[2]; i++) {
                double hidden = check_chance(random, 0.1) ? (check_chance(random, 0.5) ? 1 : 0) : c->hidden; /* whole rows, too */
                for (int64_t j = 0; j < mask->size[3]; j++) {
                    if (mask->type == ATTN_BOOL)
                        *check_at(mask, b, h, i, j) = check_chance(random, hidden) ? 0 : CHECK_PICK(random, truths);
                    else
                        check_set(mask, b, h, i, j, draw_mask(random, mask->type, hidden));
                }
            }
        }
    }
}

static void build_mask(check_case *c, check_random *random, check_side side) {
    const attn_problem *p = &c->problem;
    if (p->type_mask == ATTN_NONE) return;
    c->mask = (check_tensor){
        p->type_mask, { p->batch, p->heads_q, p->len_q, p->len_kv }, { p->mask.batch, p->mask.head, p->mask.row, p->mask.key }, NULL, { 0 }
    };
    check_tensor_place(&c->mask, side);
    fill_mask(c, random);
    c->args.mask = c->mask.base;
}

static const int32_t *build_lengths(check_buffer *buffer, check_random *random, int64_t batch, int64_t most, check_side side) {
    *buffer = check_buffer_make((size_t)batch * sizeof(int32_t), side);
    int32_t *lengths = (int32_t *)(void *)buffer->data;
    for (int64_t b = 0; b < batch; b++) {
        int64_t length = check_below(random, most + 1);
        lengths[b] = (int32_t)(check_chance(random, 0.2) ? most : check_chance(random, 0.1) ? 0 : length);
    }
    return lengths;
}

static const float *build_heads(check_buffer *buffer, check_random *random, int64_t heads, bool slopes, check_side side) {
    *buffer = check_buffer_make((size_t)heads * sizeof(float), side);
    float *values = (float *)(void *)buffer->data;
    for (int64_t h = 0; h < heads; h++) values[h] = (float)(slopes ? exp2(-check_uniform(random, 0, 8)) : 2 * check_normal(random));
    return values;
}

void check_case_build(check_case *c, check_random *random, check_values values, check_side side) {
    const attn_problem *p = &c->problem;
    c->q = tensor_of(p->type_q, p->batch, p->heads_q, p->len_q, p->dim_qk, p->q, side);
    c->k = tensor_of(p->type_k, p->batch, p->heads_kv, p->len_kv, p->dim_qk, p->k, side);
    c->v = tensor_of(p->type_v, p->batch, p->heads_kv, p->len_kv, p->dim_v, p->v, side);
    c->out = tensor_of(p->type_out, p->batch, p->heads_q, p->len_q, p->dim_v, p->out, side);
    fill_tensor(&c->q, random, values, false);
    fill_tensor(&c->k, random, values, false);
    fill_tensor(&c->v, random, values, true);
    c->args.q = c->q.base;
    c->args.k = c->k.base;
    c->args.v = c->v.base;
    c->args.out = c->out.base;
    if (c->with_lse) {
        c->lse = tensor_of(ATTN_F32, p->batch, p->heads_q, p->len_q, 1, p->lse, side);
        c->args.lse = (float *)(void *)c->lse.base;
    }
    build_mask(c, random, side);
    if (c->with_sinks) c->args.sinks = build_heads(&c->sinks, random, p->heads_q, false, side);
    if (c->with_slopes) c->args.slopes = build_heads(&c->slopes, random, p->heads_q, true, side);
    if (c->with_len_q) c->args.len_q = build_lengths(&c->len_q, random, p->batch, p->len_q, side);
    if (c->with_len_kv) c->args.len_kv = build_lengths(&c->len_kv, random, p->batch, p->len_kv, side);
}

void check_case_free(check_case *c) {
    check_buffer *buffers[] = { &c->q.buffer, &c->k.buffer, &c->v.buffer, &c->out.buffer, &c->lse.buffer, &c->mask.buffer,
                                &c->sinks,    &c->slopes,   &c->len_q,    &c->len_kv,     &c->workspace };
    for (size_t n = 0; n < sizeof buffers / sizeof *buffers; n++) check_buffer_free(buffers[n]);
}

void check_case_readonly(check_case *c, bool readonly) {
    const check_buffer *buffers[] = { &c->q.buffer, &c->k.buffer, &c->v.buffer, &c->mask.buffer,
                                      &c->sinks,    &c->slopes,   &c->len_q,    &c->len_kv };
    for (size_t n = 0; n < sizeof buffers / sizeof *buffers; n++) {
        if (readonly)
            check_buffer_readonly(buffers[n]);
        else
            check_buffer_writable(buffers[n]);
    }
}

void check_case_workspace(check_case *c, attn_context *context, check_side side) {
    size_t bytes = 0;
    CHECK_OK(attn_workspace(context, &c->problem, &bytes), "workspace");
    check_buffer_free(&c->workspace);
    c->args.workspace = NULL;
    c->args.workspace_size = 0;
    if (bytes == 0) return;
    /* 64-byte alignment leaves up to 63 bytes before the page when the size is no multiple of 64 */
    c->workspace = check_buffer_make(bytes, side);
    c->args.workspace = c->workspace.data - (uintptr_t)c->workspace.data % 64;
    c->args.workspace_size = bytes;
}

/* ---- running ---- */
void check_case_clear(check_case *c) {
    memset(c->out.buffer.data, CHECK_FILL, c->out.buffer.size);
    if (c->lse.buffer.data) memset(c->lse.buffer.data, CHECK_FILL, c->lse.buffer.size);
}

static void check_gaps_of(const check_case *c, const check_tensor *tensor, const char *name) {
    size_t size = tensor->buffer.size, element = check_size(tensor->type);
    unsigned char *written = calloc(size + 1, 1);
    if (!written) abort();
    for (int64_t b = 0; b < tensor->size[0]; b++)
        for (int64_t h = 0; h < tensor->size[1]; h++)
            for (int64_t i = 0; i < check_len_q(c, b); i++)
                memset(written + (check_at(tensor, b, h, i, 0) - tensor->buffer.data), 1, (size_t)tensor->size[3] * element);
    for (size_t n = 0; n < size; n++) {
        if (!written[n] && tensor->buffer.data[n] != CHECK_FILL) {
            CHECK(0, "%s: byte %zu of %zu is no result's, but was written", name, n, size);
            break;
        }
    }
    free(written);
}

void check_case_gaps(const check_case *c) {
    check_gaps_of(c, &c->out, "out");
    if (c->lse.buffer.data) check_gaps_of(c, &c->lse, "lse");
}

void check_case_forward(check_case *c, attn_context *context) {
    check_case_clear(c);
    CHECK_OK(attn_forward(context, &c->problem, &c->args), "forward");
    const attn_explanation explanation = check_explain(context, &c->problem);
    c->weight_error = explanation.weight_error;
    c->chunk = explanation.chunk;
    check_case_gaps(c);
}

check_bits check_bits_take(const check_case *c) {
    check_bits bits = { NULL, c->out.buffer.size + c->lse.buffer.size };
    bits.data = malloc(bits.size + 1);
    if (!bits.data) abort();
    memcpy(bits.data, c->out.buffer.data, c->out.buffer.size);
    if (c->lse.buffer.size) memcpy(bits.data + c->out.buffer.size, c->lse.buffer.data, c->lse.buffer.size);
    return bits;
}

void check_bits_same(const check_bits *bits, const check_case *c, const char *what) {
    check_bits now = check_bits_take(c);
    size_t n = 0;
    while (n < now.size && n < bits->size && now.data[n] == bits->data[n]) n++;
    CHECK(now.size == bits->size && n == now.size, "%s: byte %zu of %s differs", what, n < c->out.buffer.size ? n : n - c->out.buffer.size,
          n < c->out.buffer.size ? "out" : "lse");
    check_bits_free(&now);
}

void check_bits_free(check_bits *bits) {
    free(bits->data);
    bits->data = NULL;
}

/* ---- any problem at all ---- */
static const int64_t dims[] = { 1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,  13,  14,  15,  16,  17,  18,  19, 20,
                                24, 31, 32, 33, 40, 63, 64, 65, 72, 80, 96, 112, 127, 128, 129, 192, 256, 320, 512 };
static const int64_t pairs[][2] = { { 576, 512 }, { 16, 96 }, { 96, 16 }, { 192, 128 }, { 1, 65 }, { 65, 1 } };
static const int64_t groups[] = { 1, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 33 };
static const int64_t lens_q[] = { 0, 1, 1, 1, 2, 3, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 129 };
static const int64_t lens_kv[] = { 0, 1, 2, 15, 16, 17, 31, 32, 33, 64, 127, 128, 129, 255, 300, 511, 512, 513, 1023, 1024, 1025, 1500 };
static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };

static double work_of(const attn_problem *p) {
    return (double)p->batch * (double)p->heads_q * (double)p->len_q * (double)p->len_kv * (double)(p->dim_qk + p->dim_v);
}

static void random_sizes(attn_problem *p, check_random *random, double work) {
    for (;;) {
        int64_t group = CHECK_PICK(random, groups);
        p->batch = check_chance(random, 0.5) ? 1 : check_below(random, 5);
        p->heads_kv = 1 + check_below(random, 3);
        p->heads_q = p->heads_kv * group;
        p->len_q = CHECK_PICK(random, lens_q);
        p->len_kv = CHECK_PICK(random, lens_kv);
        p->dim_qk = p->dim_v = CHECK_PICK(random, dims);
        if (check_chance(random, 0.15)) p->dim_v = CHECK_PICK(random, dims);
        if (check_chance(random, 0.1)) {
            const int64_t *pair = CHECK_PICK(random, pairs);
            p->dim_qk = pair[0];
            p->dim_v = pair[1];
        }
        double inputs = (double)p->batch * (double)(p->heads_kv * p->len_kv + p->heads_q * p->len_q) * (double)(p->dim_qk + p->dim_v);
        if (work_of(p) <= 2 * work && inputs <= work) return;
    }
}

static void random_band(attn_problem *p, check_random *random) {
    static const int64_t huge[] = { INT64_MAX, INT64_MIN, INT64_C(1) << 40, -(INT64_C(1) << 40) };
    p->align = check_chance(random, 0.5) ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
    if (check_chance(random, 0.6)) p->right = check_chance(random, 0.7) ? 0 : check_below(random, p->len_kv + 2);
    if (check_chance(random, 0.4)) p->left = check_chance(random, 0.2) ? 0 : check_below(random, p->len_kv + 2);
    if (check_chance(random, 0.3)) p->offset = check_below(random, 2 * p->len_kv + 3) - p->len_kv - 1;
    if (check_chance(random, 0.03)) p->offset = CHECK_PICK(random, huge);
    if (check_chance(random, 0.03)) p->left = INT64_MAX;
    if (check_chance(random, 0.03)) p->right = INT64_MAX;
}

static void random_scores(check_case *c, check_random *random) {
    static const float caps[] = { 0.5f, 5, 30, 50, 1000 };
    static const attn_type masks[] = { ATTN_BOOL, ATTN_BOOL, ATTN_F32, ATTN_F16, ATTN_BF16 };
    attn_problem *p = &c->problem;
    p->scale = (float)(1 / sqrt((double)p->dim_qk));
    if (check_chance(random, 0.1))
        p->scale = -p->scale;
    else if (check_chance(random, 0.05))
        p->scale = check_chance(random, 0.5) ? 0 : 1;
    if (check_chance(random, 0.2)) p->softcap = CHECK_PICK(random, caps);
    if (check_chance(random, 0.4)) p->type_mask = CHECK_PICK(random, masks);
    c->with_lse = check_chance(random, 0.8);
    c->with_sinks = check_chance(random, 0.2);
    c->with_slopes = check_chance(random, 0.2);
    c->with_len_q = check_chance(random, 0.2);
    c->with_len_kv = check_chance(random, 0.3);
}

void check_case_random(check_case *c, check_random *random, double work) {
    check_case_init(c, ATTN_F32, 1, 1, 1, 1, 1, 1);
    attn_problem *p = &c->problem;
    random_sizes(p, random, work);
    p->type_q = p->type_k = p->type_v = p->type_out = CHECK_PICK(random, types);
    if (check_chance(random, 0.3)) p->type_k = p->type_v = CHECK_PICK(random, types);
    if (check_chance(random, 0.1)) p->type_v = CHECK_PICK(random, types);
    if (check_chance(random, 0.2)) p->type_out = CHECK_PICK(random, types);
    if (check_chance(random, 0.6)) random_band(p, random);
    random_scores(c, random);
    check_case_arrange(c, random, (check_arrangement)check_below(random, CHECK_ARRANGEMENTS));
    if (p->type_mask != ATTN_NONE) check_case_arrange_mask(c, random);
}

void check_case_note(const check_case *c, const char *prefix) {
    const attn_problem *p = &c->problem;
    snprintf(check_note, sizeof check_note,
             "%s: q %s k %s v %s out %s mask %s, batch %d heads %d/%d len %d/%d dim %d/%d, scale %g cap %g, %s offset %lld left %lld right "
             "%lld,%s%s%s%s%s strides q %lld,%lld,%lld k %lld,%lld,%lld v %lld,%lld,%lld out %lld,%lld,%lld mask %lld,%lld,%lld,%lld",
             prefix, check_type_name(p->type_q), check_type_name(p->type_k), check_type_name(p->type_v), check_type_name(p->type_out),
             check_type_name(p->type_mask), (int)p->batch, (int)p->heads_q, (int)p->heads_kv, (int)p->len_q, (int)p->len_kv, (int)p->dim_qk,
             (int)p->dim_v, (double)p->scale, (double)p->softcap, p->align == ATTN_TOP_LEFT ? "top-left" : "bottom-right",
             (long long)p->offset, (long long)p->left, (long long)p->right, c->with_lse ? " lse" : "", c->with_sinks ? " sinks" : "",
             c->with_slopes ? " slopes" : "", c->with_len_q ? " len_q" : "", c->with_len_kv ? " len_kv" : "", (long long)p->q.batch,
             (long long)p->q.head, (long long)p->q.row, (long long)p->k.batch, (long long)p->k.head, (long long)p->k.row,
             (long long)p->v.batch, (long long)p->v.head, (long long)p->v.row, (long long)p->out.batch, (long long)p->out.head,
             (long long)p->out.row, (long long)p->mask.batch, (long long)p->mask.head, (long long)p->mask.row, (long long)p->mask.key);
}
