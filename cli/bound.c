/* bound.c: which keys a row sees, and the sums of one row that its error bound is made of. Written from the definition, in double, and from
 * the public header alone: nothing here is shared with what it judges. */
#include "convert.h"
#include "verify.h"
#include <math.h>
#include <stdlib.h>

static int64_t add(int64_t a, int64_t b) { /* saturates */
    int64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? (a < 0 ? INT64_MIN : INT64_MAX) : sum;
}

static int64_t subtract(int64_t a, int64_t b) {
    int64_t difference;
    return __builtin_sub_overflow(a, b, &difference) ? (a < 0 ? INT64_MIN : INT64_MAX) : difference;
}

sequence attn_cli_band(const attn_problem *p, const attn_args *args, int64_t b) {
    sequence band = { p->len_q, p->len_kv, p->offset };
    if (args && args->len_q) band.len_q = args->len_q[b];
    if (args && args->len_kv) band.len_kv = args->len_kv[b];
    if (p->align == ATTN_BOTTOM_RIGHT) band.diagonal = add(p->offset, band.len_kv - band.len_q);
    return band;
}

void attn_cli_visible(const attn_problem *p, const sequence *band, int64_t i, int64_t *low, int64_t *high) {
    int64_t diagonal = add(i, band->diagonal);
    *low = p->left == ATTN_UNBOUNDED ? 0 : subtract(diagonal, p->left);
    *high = p->right == ATTN_UNBOUNDED ? band->len_kv : add(add(diagonal, p->right), 1);
    if (*low < 0) *low = 0;
    if (*high > band->len_kv) *high = band->len_kv;
    if (*high < 0) *high = 0;
    if (*low > *high) *low = *high;
}

double attn_cli_pairs(const attn_problem *p, const attn_args *args) {
    double pairs = 0;
    for (int64_t b = 0; b < p->batch; b++) {
        sequence band = attn_cli_band(p, args, b);
        int64_t low, high;
        for (int64_t i = 0; i < band.len_q; i++) {
            attn_cli_visible(p, &band, i, &low, &high);
            pairs += (double)(high - low);
        }
        if (!(args && (args->len_q || args->len_kv))) return pairs * (double)p->batch; /* all sequences are alike */
    }
    return pairs;
}

static size_t product(int64_t a, int64_t b) { return (size_t)(a * b); } /* sizes of a problem that the library took: no overflow */

bool attn_cli_bound_open(bound *r, const attn_problem *p) {
    *r = (bound){ .b = -1, .head_kv = -1 };
    r->k = attn_cli_memory(product(p->len_kv, p->dim_qk) * sizeof *r->k);
    r->v = attn_cli_memory(product(p->len_kv, p->dim_v) * sizeof *r->v);
    r->q = attn_cli_memory((size_t)p->dim_qk * sizeof *r->q);
    r->s = attn_cli_memory((size_t)p->len_kv * sizeof *r->s);
    r->size = attn_cli_memory((size_t)p->len_kv * sizeof *r->size);
    r->a = attn_cli_memory((size_t)p->dim_v * sizeof *r->a);
    r->lost = attn_cli_memory((size_t)p->dim_v * sizeof *r->lost);
    r->faint = attn_cli_memory((size_t)p->dim_v * sizeof *r->faint);
    if (r->k && r->v && r->q && r->s && r->size && r->a && r->lost && r->faint) return true;
    attn_cli_bound_close(r);
    return false;
}

void attn_cli_bound_close(bound *r) {
    free(r->k);
    free(r->v);
    free(r->q);
    free(r->s);
    free(r->size);
    free(r->a);
    free(r->lost);
    free(r->faint);
}

static const char *row_at(const void *base, attn_type type, const attn_strides *stride, int64_t b, int64_t h, int64_t i) {
    return (const char *)base + (b * stride->batch + h * stride->head + i * stride->row) * (int64_t)attn_cli_size(type);
}

static void load_keys(bound *r, const attn_problem *p, const attn_args *args, const sequence *band, int64_t b, int64_t g) {
    if (r->b == b && r->head_kv == g) return;
    for (int64_t j = 0; j < band->len_kv; j++) {
        attn_cli_load(p->type_k, row_at(args->k, p->type_k, &p->k, b, g, j), p->dim_qk, r->k + j * p->dim_qk);
        attn_cli_load(p->type_v, row_at(args->v, p->type_v, &p->v, b, g, j), p->dim_v, r->v + j * p->dim_v);
    }
    r->b = b;
    r->head_kv = g;
}

/* The mask's entry: 0 where there is none or a bool one is true, -INFINITY where it hides. */
static double mask_at(const attn_problem *p, const attn_args *args, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (p->type_mask == ATTN_NONE) return 0;
    int64_t at = b * p->mask.batch + h * p->mask.head + i * p->mask.row + j * p->mask.key;
    if (p->type_mask == ATTN_BOOL) return ((const unsigned char *)args->mask)[at] ? 0 : -INFINITY;
    return attn_cli_load_one(p->type_mask, args->mask, at);
}

bool attn_cli_hidden(const attn_problem *p, const attn_args *args, const int64_t at[4]) {
    return mask_at(p, args, at[0], at[1], at[2], at[3]) == -INFINITY;
}

static void products(const double *q, const float *k, int64_t dim, double *sum, double *sum_abs) {
    double s[4] = { 0 }, a[4] = { 0 };
    int64_t d = 0;
    for (; d + 4 <= dim; d += 4) {
        for (int u = 0; u < 4; u++) {
            double x = q[d + u] * (double)k[d + u];
            s[u] += x;
            a[u] += fabs(x);
        }
    }
    for (; d < dim; d++) s[0] += q[d] * (double)k[d], a[0] += fabs(q[d] * (double)k[d]);
    *sum = s[0] + s[1] + s[2] + s[3];
    *sum_abs = a[0] + a[1] + a[2] + a[3];
}

/* Scores of the keys low to high into r->s, -INFINITY for hidden ones; the largest of them, and the bound's l over those that weigh. */
static double score(bound *r, const attn_problem *p, const attn_args *args, const int64_t at[3], int64_t low, int64_t high) {
    sequence band = attn_cli_band(p, args, at[0]);
    double slope = args->slopes ? args->slopes[at[1]] : 0, sink = args->sinks ? args->sinks[at[1]] : -INFINITY, top = sink;
    double l = isfinite(sink) ? fabs(sink) : 0;
    r->keys = 0;
    for (int64_t j = low; j < high; j++) {
        double mask = mask_at(p, args, at[0], at[1], at[2], j), sum, sum_abs;
        r->s[j] = -INFINITY;
        if (mask == -INFINITY) continue;
        products(r->q, r->k + j * p->dim_qk, p->dim_qk, &sum, &sum_abs);
        double s = p->scale * sum, bias = slope == 0 ? 0 : -slope * fabs((double)at[2] + (double)band.diagonal - (double)j);
        if (p->softcap > 0) s = p->softcap * tanh(s / p->softcap);
        r->s[j] = s + mask + bias;
        r->keys++;
        if (isnan(r->s[j]) || isnan(top))
            top = NAN;
        else if (r->s[j] > top)
            top = r->s[j];
        r->size[j] = fabs(p->scale) * sum_abs + fabs(mask) + fabs(bias);
    }
    /* A key that lies hopelessly below the top cannot matter by any rounding of its own score. */
    for (int64_t j = low; j < high; j++)
        if (r->s[j] > -INFINITY && isfinite(r->size[j]) && r->size[j] > l && r->s[j] + 0x1p-20 * r->size[j] > top - 110) l = r->size[j];
    r->l = l;
    return top;
}

void attn_cli_bound_row(bound *r, const attn_problem *p, const attn_args *args, int64_t b, int64_t h, int64_t i) {
    sequence band = attn_cli_band(p, args, b);
    int64_t low, high, at[3] = { b, h, i }, g = h / (p->heads_q / p->heads_kv);
    attn_cli_visible(p, &band, i, &low, &high);
    load_keys(r, p, args, &band, b, g);
    const char *q = row_at(args->q, p->type_q, &p->q, b, h, i);
    for (int64_t d = 0; d < p->dim_qk; d++) r->q[d] = attn_cli_load_one(p->type_q, q, d);
    double top = score(r, p, args, at, low, high), total = args->sinks ? exp(args->sinks[h] - top) : 0;
    for (int64_t d = 0; d < p->dim_v; d++) r->a[d] = r->lost[d] = 0, r->faint[d] = false;
    for (int64_t j = low; j < high; j++) {
        if (r->s[j] == -INFINITY && mask_at(p, args, b, h, i, j) == -INFINITY) continue;
        double weight = exp(r->s[j] - top);
        const float *v = r->v + j * p->dim_v;
        total += weight;
        for (int64_t d = 0; d < p->dim_v; d++) {
            if (isfinite(v[d]))
                r->a[d] += weight * fabs((double)v[d]), r->lost[d] += weight < 0x1p-125 ? weight * fabs((double)v[d]) : 0;
            else
                r->a[d] = INFINITY, r->faint[d] |= weight < 0x1p-100;
        }
    }
    for (int64_t d = 0; d < p->dim_v && total > 0; d++) r->a[d] /= total, r->lost[d] /= total;
}
