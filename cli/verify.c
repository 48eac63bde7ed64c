/* verify.c: asks the reference device for rows of a problem, all of them or a sample, and holds the given output against them. A piece of
 * the problem goes to the reference as a problem of its own: one head, or one row of it. */
#include "verify.h"
#include "convert.h"
#include "options.h"
#include "progress.h"
#include "random.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { ROWS_LEAST = 16, THREADED_FROM = 50 * 1000 * 1000 };

typedef struct work {
    const attn_problem *problem;
    const attn_args *args;
    attn_context *reference;
    bound bound;
    double weight_error, keys_of_fold;
    float *out, *lse; /* the reference's, for a piece; also room for a converted row */
    float *row;
    verdict *result;
    progress bar;
} work;

static const void *move(const void *base, attn_type type, int64_t elements) {
    return base ? (const char *)base + elements * (int64_t)attn_cli_size(type) : NULL;
}

/* Head h of sequence b: all its rows where i < 0, otherwise row i, whose diagonal becomes the offset. */
static bool ask_reference(work *w, int64_t b, int64_t h, int64_t i) {
    const attn_problem *p = w->problem;
    attn_problem piece = *p;
    attn_args args = *w->args;
    int64_t g = h / (p->heads_q / p->heads_kv), row = i < 0 ? 0 : i;
    piece.batch = piece.heads_q = piece.heads_kv = 1;
    piece.type_out = ATTN_F32;
    args.q = move(args.q, p->type_q, b * p->q.batch + h * p->q.head + row * p->q.row);
    args.k = move(args.k, p->type_k, b * p->k.batch + g * p->k.head);
    args.v = move(args.v, p->type_v, b * p->v.batch + g * p->v.head);
    args.mask = move(args.mask, p->type_mask, b * p->mask.batch + h * p->mask.head + row * p->mask.row);
    if (args.sinks) args.sinks += h;
    if (args.slopes) args.slopes += h;
    if (args.len_kv) args.len_kv += b;
    if (args.len_q) args.len_q += b;
    if (i >= 0) {
        sequence band = attn_cli_band(p, w->args, b);
        if (__builtin_add_overflow(band.diagonal, i, &piece.offset)) piece.offset = INT64_MAX;
        piece.align = ATTN_TOP_LEFT;
        piece.len_q = 1;
        args.len_q = NULL;
    }
    piece.out = (attn_strides){ piece.len_q * p->dim_v, piece.len_q * p->dim_v, p->dim_v };
    piece.lse = (attn_strides){ piece.len_q, piece.len_q, 1 };
    args.out = w->out;
    args.lse = w->lse;
    args.workspace = NULL;
    args.workspace_size = 0;
    return attn_cli_ok(attn_forward(w->reference, &piece, &args));
}

/* Part of the bound that the error takes up; a wrong kind takes all there is. */
static double ratio_of(double got, double want, double error_bound) {
    if (isnan(got) && isnan(want)) return 0;
    if (got == want) return 0;
    if (!isfinite(got) || !isfinite(want)) return INFINITY;
    return fabs(got - want) / error_bound;
}

static void note(worst *w, const int64_t index[4], double got, double want, double error_bound, double ratio) {
    if (w->any && !(ratio > w->ratio)) return;
    w->any = true;
    memcpy(w->index, index, sizeof w->index);
    w->got = got;
    w->want = want;
    w->error = got == want || (isnan(got) && isnan(want)) ? 0 : fabs(got - want);
    w->bound = error_bound;
    w->ratio = ratio;
}

static bool same_rounded(attn_type type, float got, float want) {
    char a[4] = { 0 }, b[4] = { 0 };
    if (isnan(got) || isnan(want)) return isnan(got) && isnan(want);
    attn_cli_store(type, &got, 1, a);
    attn_cli_store(type, &want, 1, b);
    return memcmp(a, b, sizeof a) == 0 || got == want;
}

/* Of folding the keys of the row, in units of 2^-24: one for two folds. */
static double folding(const work *w) { return w->bound.keys / (2 * w->keys_of_fold); }

static void compare_element(work *w, const int64_t index[4], float got, float want) {
    const bound *r = &w->bound;
    attn_type type = w->problem->type_out;
    double a = r->a[index[3]], error_bound, ratio;
    if (isfinite(a)) { /* what overflows in the output's type is an infinity that stands for the next power of two */
        double near = attn_cli_clamp(type, want), mine = attn_cli_clamp(type, got);
        error_bound = 0.5 * attn_cli_ulp(type, near) + 0.5 * attn_cli_ulp(ATTN_F32, near) + 0x1p-24 * a * (8 + 2 * r->l + folding(w)) +
                      w->weight_error * a + r->lost[index[3]] + 0x1p-149 * r->keys;
        ratio = ratio_of(mine, near, error_bound);
    } else {
        error_bound = 0;
        ratio = r->faint[index[3]] && !isfinite(got) ? 0 : ratio_of(got, want, error_bound);
    }
    w->result->elements++;
    w->result->mismatches += ratio > 1;
    w->result->rounded += same_rounded(type, got, want);
    if (isfinite(want)) w->result->largest = fmax(w->result->largest, fabs((double)want));
    if (isfinite(want) && isfinite(got)) w->result->largest_error = fmax(w->result->largest_error, fabs((double)got - (double)want));
    note(&w->result->out, index, got, want, error_bound, ratio);
}

static void compare_lse(work *w, int64_t b, int64_t h, int64_t i, float want) {
    const attn_strides *stride = &w->problem->lse;
    const bound *r = &w->bound;
    double got = w->args->lse[b * stride->batch + h * stride->head + i * stride->row];
    /* twice the part of l that out has: errors that all scores share cancel in out, and not here */
    double error_bound = 0x1p-24 * (8 + 4 * r->l + folding(w)) + attn_cli_ulp(ATTN_F32, want), ratio = ratio_of(got, want, error_bound);
    w->result->lse_mismatches += ratio > 1;
    note(&w->result->lse, (int64_t[4]){ b, h, i, -1 }, got, want, error_bound, ratio);
}

static void compare_row(work *w, int64_t b, int64_t h, int64_t i, const float *want, float want_lse) {
    const attn_problem *p = w->problem;
    attn_cli_bound_row(&w->bound, p, w->args, b, h, i);
    attn_cli_load(p->type_out, move(w->args->out, p->type_out, b * p->out.batch + h * p->out.head + i * p->out.row), p->dim_v, w->row);
    for (int64_t d = 0; d < p->dim_v; d++) compare_element(w, (int64_t[4]){ b, h, i, d }, w->row[d], want[d]);
    if (w->args->lse) compare_lse(w, b, h, i, want_lse);
    w->result->rows_checked++;
    attn_cli_progress(&w->bar, (double)w->result->rows_checked / (double)w->result->rows);
}

static bool verify_all(work *w) {
    const attn_problem *p = w->problem;
    for (int64_t b = 0; b < p->batch; b++) {
        sequence band = attn_cli_band(p, w->args, b);
        for (int64_t h = 0; h < p->heads_q; h++) {
            if (!ask_reference(w, b, h, -1)) return false;
            for (int64_t i = 0; i < band.len_q; i++) compare_row(w, b, h, i, w->out + i * p->dim_v, w->lse[i]);
        }
    }
    return true;
}

/* One row out of each of `count` equal parts of all rows, the first and the last row always among them. */
static bool verify_some(work *w, int64_t count, uint64_t seed) {
    const attn_problem *p = w->problem;
    generator g = attn_cli_generator(seed, 0);
    int64_t b = 0, before = 0, done = 0, rows = w->result->rows; /* rows of the sequences before b */
    for (int64_t n = 0; n < count; n++) {
        int64_t low = (int64_t)((double)rows * (double)n / (double)count), high = (int64_t)((double)rows * (double)(n + 1) / (double)count);
        if (low < done) low = done;
        if (high <= low) high = low + 1;
        int64_t row = n == 0 ? 0 : n == count - 1 ? rows - 1 : attn_cli_between(&g, low, high - 1);
        sequence band = attn_cli_band(p, w->args, b);
        for (; row - before >= band.len_q * p->heads_q; band = attn_cli_band(p, w->args, ++b)) before += band.len_q * p->heads_q;
        int64_t h = (row - before) / band.len_q, i = (row - before) % band.len_q;
        if (!ask_reference(w, b, h, i)) return false;
        compare_row(w, b, h, i, w->out, w->lse[0]);
        attn_cli_progress(&w->bar, (double)(n + 1) / (double)count);
        done = row + 1;
    }
    return true;
}

static bool open_work(work *w, const attn_problem *p, int64_t rows, double cost) {
    attn_options reference = ATTN_OPTIONS_INIT;
    reference.device = ATTN_REFERENCE;
    reference.threads = cost < THREADED_FROM ? 1 : 0; /* for little work, threads spend their time waiting for more of it */
    w->reference = attn_cli_open(&reference);
    w->out = attn_cli_memory((size_t)(rows * p->dim_v) * sizeof *w->out);
    w->lse = attn_cli_memory((size_t)rows * sizeof *w->lse);
    w->row = attn_cli_memory((size_t)p->dim_v * sizeof *w->row);
    return attn_cli_bound_open(&w->bound, p) && w->reference && w->out && w->lse && w->row;
}

static void close_work(work *w) {
    attn_close(w->reference);
    attn_cli_bound_close(&w->bound);
    free(w->out);
    free(w->lse);
    free(w->row);
}

bool attn_cli_verify(const attn_problem *p, const attn_args *args, const attn_explanation *explanation, const verify_options *options,
                     verdict *result) {
    work w = { .problem = p, .args = args, .weight_error = explanation->weight_error, .result = result };
    w.keys_of_fold = explanation->chunk > 0 && explanation->chunk < 512 ? (double)explanation->chunk : 512;
    double cost = attn_cli_pairs(p, args) * (double)p->heads_q * (double)(p->dim_qk + p->dim_v);
    memset(result, 0, sizeof *result);
    for (int64_t b = 0; b < p->batch; b++) result->rows += attn_cli_band(p, args, b).len_q * p->heads_q;
    bool all = cost <= options->limit;
    int64_t count = result->rows;
    if (!all) {
        double affordable = options->budget / (cost / (double)result->rows);
        if (affordable < ROWS_LEAST) affordable = ROWS_LEAST;
        if (affordable < (double)count) count = (int64_t)affordable;
    }
    attn_cli_progress_begin(&w.bar, "verifying");
    if (options->quiet) w.bar.terminal = false;
    bool good = open_work(&w, p, all ? p->len_q : 1, cost);
    if (good) good = all ? verify_all(&w) : verify_some(&w, count, options->seed);
    attn_cli_progress_end(&w.bar);
    close_work(&w);
    return good;
}
