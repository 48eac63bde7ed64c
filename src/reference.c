/* reference.c: the semantics as a device, in double: every score, exponential and sum of one row after the other, rounded once at the end.
 * It is what other devices are judged by, so it is never made fast, and never built with unsafe math. */
#include "cpu/pool.h"
#include "device.h"
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef __FAST_MATH__
#error "the reference needs IEEE arithmetic: build it without -ffast-math"
#endif

enum { kept_scores = 4096 }; /* of a row, from the first sum to the second; those beyond are computed again */

typedef struct reference {
    attn_pool *pool;
    int threads;
} reference;

/* One slot's part of the workspace. */
typedef struct scratch {
    double *q, *key_row, *sums, *scores;
} scratch;

typedef struct place {
    int64_t batch, head, row;
} place;

/* One call: its rows are taken one by one by whichever slot is free. */
typedef struct call call;
struct call {
    const attn_problem *problem;
    const attn_args *args;
    const attn_state *states;
    int64_t count; /* of states */
    void (*do_row)(const call *work, const scratch *scratch, place at);
    _Atomic int64_t next;
};

/* ---- elements ---- */
static int64_t offset_of(const attn_strides *strides, int64_t batch, int64_t head, int64_t row) {
    return batch * strides->batch + head * strides->head + row * strides->row;
}

static double element(const void *base, int64_t index, attn_type type) {
    switch (type) {
    case ATTN_F16:
        return attn_f16_to_f32(((const uint16_t *)base)[index]);
    case ATTN_BF16:
        return attn_bf16_to_f32(((const uint16_t *)base)[index]);
    default:
        return ((const float *)base)[index];
    }
}

static void load_row(double *to, const void *base, int64_t offset, attn_type type, int64_t dim) {
    for (int64_t d = 0; d < dim; ++d) to[d] = element(base, offset + d, type);
}

/* To nearest even, with so many significant bits, in whole multiples of 2^least at the small end. Exact in float where bits <= 24. */
static double rounded(double value, int bits, int least) {
    if (value == 0.0 || !isfinite(value)) return value;
    int exponent;
    (void)frexp(value, &exponent);
    int unit = exponent - bits > least ? exponent - bits : least;
    return ldexp(rint(ldexp(value, -unit)), unit);
}

static void store_element(void *base, int64_t index, attn_type type, double value) {
    switch (type) {
    case ATTN_F16:
        ((uint16_t *)base)[index] = attn_f32_to_f16((float)rounded(value, 11, -24));
        break;
    case ATTN_BF16:
        ((uint16_t *)base)[index] = attn_f32_to_bf16((float)rounded(value, 8, -133));
        break;
    default:
        ((float *)base)[index] = (float)value;
        break;
    }
}

static void store_result(const call *work, place at, const double *row, double lse) {
    const attn_problem *p = work->problem;
    int64_t offset = offset_of(&p->out, at.batch, at.head, at.row);
    for (int64_t d = 0; d < p->dim_v; ++d) store_element(work->args->out, offset + d, p->type_out, row[d]);
    if (work->args->lse != NULL) work->args->lse[offset_of(&p->lse, at.batch, at.head, at.row)] = (float)lse;
}

/* ---- one row of a forward call ---- */
/* Whether the mask lets the row see key j; *bias is what an additive mask adds. */
static bool unmasked(const call *work, place at, int64_t j, double *bias) {
    const attn_problem *p = work->problem;
    *bias = 0.0;
    if (p->type_mask == ATTN_NONE) return true;
    int64_t index = at.batch * p->mask.batch + at.head * p->mask.head + at.row * p->mask.row + j * p->mask.key;
    if (p->type_mask == ATTN_BOOL) return ((const uint8_t *)work->args->mask)[index] != 0;
    *bias = element(work->args->mask, index, p->type_mask);
    return *bias != -INFINITY;
}

static double score(const call *work, const scratch *s, place at, int64_t diagonal, int64_t j, double bias) {
    const attn_problem *p = work->problem;
    int64_t key_head = at.head / (p->heads_q / p->heads_kv);
    load_row(s->key_row, work->args->k, offset_of(&p->k, at.batch, key_head, j), p->type_k, p->dim_qk);
    double dot = 0.0;
    for (int64_t d = 0; d < p->dim_qk; ++d) dot += s->q[d] * s->key_row[d];
    double result = (double)p->scale * dot;
    if (p->softcap > 0.0f) result = (double)p->softcap * tanh(result / (double)p->softcap);
    result += bias;
    if (work->args->slopes != NULL) result -= (double)work->args->slopes[at.head] * fabs((double)at.row + (double)diagonal - (double)j);
    return result;
}

/* The largest score. NaN is not among the candidates: it comes back in the sums. *any: whether a key is visible and weighs something. */
static double largest_score(const call *work, const scratch *s, place at, int64_t diagonal, attn_range range, bool *any) {
    double largest = -INFINITY, bias;
    *any = false;
    for (int64_t j = range.lo; j < range.hi; ++j) {
        if (!unmasked(work, at, j, &bias)) continue;
        double value = score(work, s, at, diagonal, j, bias);
        if (j - range.lo < kept_scores) s->scores[j - range.lo] = value;
        if (value > largest) largest = value;
        if (value != -INFINITY) *any = true;
    }
    return largest;
}

/* Adds exp(score - shift) times the key's values to s->sums; returns the sum of exp(score - shift). */
static double weigh_values(const call *work, const scratch *s, place at, int64_t diagonal, attn_range range, double shift) {
    const attn_problem *p = work->problem;
    int64_t key_head = at.head / (p->heads_q / p->heads_kv);
    double sum = 0.0, bias;
    for (int64_t j = range.lo; j < range.hi; ++j) {
        if (!unmasked(work, at, j, &bias)) continue;
        double value = j - range.lo < kept_scores ? s->scores[j - range.lo] : score(work, s, at, diagonal, j, bias);
        double weight = exp(value - shift);
        sum += weight;
        load_row(s->key_row, work->args->v, offset_of(&p->v, at.batch, key_head, j), p->type_v, p->dim_v);
        for (int64_t d = 0; d < p->dim_v; ++d) s->sums[d] += weight * s->key_row[d];
    }
    return sum;
}

static void forward_row(const call *work, const scratch *s, place at) {
    const attn_problem *p = work->problem;
    attn_sequence sequence = attn_sequence_of(p, work->args, at.batch);
    if (at.row >= sequence.len_q) return;
    attn_range range = attn_visible(p, &sequence, at.row);
    double sink = work->args->sinks != NULL ? (double)work->args->sinks[at.head] : -INFINITY;
    bool any;
    load_row(s->q, work->args->q, offset_of(&p->q, at.batch, at.head, at.row), p->type_q, p->dim_qk);
    double largest = largest_score(work, s, at, sequence.diagonal, range, &any);
    for (int64_t d = 0; d < p->dim_v; ++d) s->sums[d] = 0.0;
    if (!any) {
        store_result(work, at, s->sums, sink);
        return;
    }
    double shift = sink > largest ? sink : largest;
    double sum = weigh_values(work, s, at, sequence.diagonal, range, shift) + (sink == shift ? 1.0 : exp(sink - shift));
    for (int64_t d = 0; d < p->dim_v; ++d) s->sums[d] /= sum;
    store_result(work, at, s->sums, shift + log(sum));
}

/* ---- one row of a merge ---- */
static void merge_row(const call *work, const scratch *s, place at) {
    const attn_problem *p = work->problem;
    if (at.row >= attn_sequence_of(p, work->args, at.batch).len_q) return;
    int64_t lse_at = offset_of(&p->lse, at.batch, at.head, at.row), out_at = offset_of(&p->out, at.batch, at.head, at.row);
    double largest = -INFINITY, sum = 0.0;
    for (int64_t n = 0; n < work->count; ++n)
        if (work->states[n].lse[lse_at] > largest) largest = work->states[n].lse[lse_at];
    for (int64_t d = 0; d < p->dim_v; ++d) s->sums[d] = 0.0;
    for (int64_t n = 0; n < work->count; ++n) {
        double lse = work->states[n].lse[lse_at];
        if (lse == -INFINITY) continue;
        double weight = lse == largest ? 1.0 : exp(lse - largest); /* a sink may be infinite */
        sum += weight;
        for (int64_t d = 0; d < p->dim_v; ++d) s->sums[d] += weight * (double)work->states[n].out[out_at + d];
    }
    if (sum != 0.0)
        for (int64_t d = 0; d < p->dim_v; ++d) s->sums[d] /= sum;
    store_result(work, at, s->sums, sum != 0.0 ? largest + log(sum) : -INFINITY);
}

/* ---- all rows ---- */
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

static int64_t rows_of(const attn_problem *p) { return p->batch * p->heads_q * p->len_q; }

static int slots_of(const reference *state, const attn_problem *p) {
    int64_t rows = rows_of(p);
    return rows < state->threads ? (int)rows : state->threads;
}

static int64_t kept_of(const attn_problem *p) { return p->len_kv < kept_scores ? p->len_kv : kept_scores; }

/* Bytes of one slot's scratch: whole cache lines. */
static size_t scratch_size(const attn_problem *p) {
    int64_t count = p->dim_qk + larger(p->dim_qk, p->dim_v) + p->dim_v + kept_of(p);
    return (size_t)((count * (int64_t)sizeof(double) + 63) / 64 * 64);
}

static void take_rows(void *state, size_t slot) {
    call *work = state;
    const attn_problem *p = work->problem;
    scratch s;
    s.q = (double *)((char *)work->args->workspace + slot * scratch_size(p));
    s.key_row = s.q + p->dim_qk;
    s.sums = s.key_row + larger(p->dim_qk, p->dim_v);
    s.scores = s.sums + p->dim_v;
    for (int64_t rows = rows_of(p), n; (n = atomic_fetch_add_explicit(&work->next, 1, memory_order_relaxed)) < rows;) {
        place at = { .batch = n / p->len_q / p->heads_q, .head = n / p->len_q % p->heads_q, .row = n % p->len_q };
        work->do_row(work, &s, at);
    }
}

/* ---- the table ---- */
static size_t reference_workspace(const attn_context *context, const attn_problem *problem) {
    return (size_t)slots_of(context->state, problem) * scratch_size(problem);
}

static attn_status reference_forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    const reference *state = context->state;
    call work = { .problem = problem, .args = args, .do_row = forward_row };
    attn_pool_run(state->pool, take_rows, &work, slots_of(state, problem));
    return ATTN_OK;
}

static attn_status reference_merge(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count,
                                   const attn_args *args) {
    const reference *state = context->state;
    call work = { .problem = problem, .args = args, .states = states, .count = count, .do_row = merge_row };
    attn_pool_run(state->pool, take_rows, &work, slots_of(state, problem));
    return ATTN_OK;
}

static attn_status reference_open(attn_context *context, const attn_options *options) {
    if (options->isa != NULL && strcmp(options->isa, "double") != 0) return ATTN_ERROR_ISA;
    reference *state = calloc(1, sizeof *state);
    if (state == NULL) return ATTN_ERROR_OUT_OF_MEMORY;
    attn_status status = attn_pool_open(&state->pool, options);
    if (status != ATTN_OK) {
        free(state);
        return status;
    }
    state->threads = attn_pool_threads(state->pool);
    context->state = state;
    return ATTN_OK;
}

static void reference_close(attn_context *context) {
    reference *state = context->state;
    if (state == NULL) return;
    attn_pool_close(state->pool);
    free(state);
    context->state = NULL;
}

static void reference_describe(const attn_context *context, attn_description *description) {
    const reference *state = context->state;
    description->threads = state->threads;
    description->isa = "double";
    description->isas = "double";
    description->pool = attn_pool_name(state->pool);
}

static void reference_explain(const attn_context *context, const attn_problem *p, attn_explanation *explanation) {
    int slots = slots_of(context->state, p);
    explanation->passes = 1;
    explanation->threads = slots > 1 ? slots : 1;
    explanation->chunk = p->len_kv;
    explanation->chunks = p->len_kv > 0;
    explanation->rows = 1;
    explanation->jobs = rows_of(p);
    explanation->workspace = reference_workspace(context, p);
    attn_problem_work(p, &explanation->bytes, &explanation->operations);
    explanation->isa = "double";
    explanation->kernel = "reference";
    snprintf(explanation->reason, sizeof explanation->reason,
             "one pass: the reference takes each row by itself, in double; passes and chunk do not apply to it, the cpu device is the "
             "faster one");
}

static attn_status reference_measure(attn_context *context, attn_ceiling ceiling, double *per_second) {
    (void)context, (void)ceiling, (void)per_second;
    return ATTN_ERROR_CEILING; /* it has none worth knowing */
}

const attn_device_table attn_reference_device = {
    .abi = ATTN_DEVICE_ABI,
    .name = "reference",
    .open = reference_open,
    .close = reference_close,
    .describe = reference_describe,
    .workspace = reference_workspace,
    .forward = reference_forward,
    .merge = reference_merge,
    .explain = reference_explain,
    .measure = reference_measure,
    .alloc = attn_host_alloc,
    .release = attn_host_release,
    .copy = attn_host_copy,
    .wait = attn_host_wait,
};
