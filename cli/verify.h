/* verify.h: compares what a device computed with the reference, element by element, against the bound that attn(1) states. */
#ifndef ATTN_CLI_VERIFY_H
#define ATTN_CLI_VERIFY_H
#include "cli.h"

typedef struct worst { /* the element whose error is the largest part of its bound */
    bool any;
    int64_t index[4];                      /* batch, head, row, and of dim_v; the last is -1 for lse */
    double got, want, error, bound, ratio; /* a wrong kind (NaN, infinity) has an infinite ratio */
} worst;

typedef struct verdict {
    int64_t rows, rows_checked;   /* rows below their len_q, over batch and heads */
    int64_t elements, mismatches; /* of out, compared and wrong */
    int64_t lse_mismatches;
    int64_t rounded;               /* elements of out that are the correctly rounded ones */
    double largest, largest_error; /* of the elements compared: |want|, |got - want|; what is not finite left out */
    worst out, lse;                /* lse only where args have it */
} verdict;

typedef struct verify_options {
    double limit;  /* multiply-adds up to which every row is compared; above, some are */
    double budget; /* multiply-adds to spend on those */
    uint64_t seed; /* of the choice of rows */
    bool quiet;    /* no progress bar */
} verify_options;
#define VERIFY_OPTIONS_INIT                                                                                                                \
    { 2e9, 2e8, 1, false }

/* Reads args->out and args->lse as attn_forward left them. The bounds are those of what attn_explain said would run: its weight_error and
 * chunk are in them. False after a complaint (no memory, say). */
bool attn_cli_verify(const attn_problem *problem, const attn_args *args, const attn_explanation *explanation, const verify_options *options,
                     verdict *verdict);
static inline bool attn_cli_passed(const verdict *v) { return v->mismatches == 0 && v->lse_mismatches == 0; }

/* ---- one row, for verify.c: what the bound is made of, in double, by code of the command's own (bound.c) ---- */
typedef struct sequence {
    int64_t len_q, len_kv, diagonal;
} sequence; /* one of the batch; key i + diagonal is on row i's diagonal */
sequence attn_cli_band(const attn_problem *problem, const attn_args *args, int64_t b);
/* Keys low <= j < high are in row i's band and length. */
void attn_cli_visible(const attn_problem *problem, const sequence *band, int64_t i, int64_t *low, int64_t *high);
/* Whether the mask hides a key from a row: batch, head, row, key. */
bool attn_cli_hidden(const attn_problem *problem, const attn_args *args, const int64_t at[4]);
double attn_cli_pairs(const attn_problem *problem, const attn_args *args); /* visible pairs of one head, by lengths and band */

typedef struct bound {  /* room for a row, reused from row to row */
    int64_t b, head_kv; /* whose keys and values `k` and `v` hold, as float; -1: none yet */
    float *k, *v;
    double *q, *s, *size; /* of a key: its score, and |scale| sum |q k| + |mask| + |slope distance| */
    double *a, *lost;     /* [dim_v]: sum of p |v|; the part of it in weights below the normal float32, which may be lost */
    bool *faint;    /* [dim_v]: an infinite or NaN value has a weight so small that float32 may lose it: NaN or infinity, either will do */
    double l, keys; /* the largest size that weighs anything, or |sink|; visible keys */
} bound;
bool attn_cli_bound_open(bound *bound, const attn_problem *problem);
void attn_cli_bound_close(bound *bound);
void attn_cli_bound_row(bound *bound, const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);
#endif
