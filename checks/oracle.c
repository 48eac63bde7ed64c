/* oracle.c: attention a second time, in double and straight from the definition, with the error that float32 may make. */
#include "harness.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

__extension__ typedef __int128 wide; /* band sums of any offset fit */

int64_t check_len_q(const check_case *c, int64_t b) { return c->args.len_q ? c->args.len_q[b] : c->problem.len_q; }
int64_t check_len_kv(const check_case *c, int64_t b) { return c->args.len_kv ? c->args.len_kv[b] : c->problem.len_kv; }

static wide diagonal(const check_case *c, int64_t b) {
    wide d = c->problem.offset;
    return c->problem.align == ATTN_BOTTOM_RIGHT ? d + check_len_kv(c, b) - check_len_q(c, b) : d;
}

bool check_in_band(const check_case *c, int64_t b, int64_t i, int64_t j) {
    wide distance = (wide)j - i - diagonal(c, b);
    if (i >= check_len_q(c, b) || j >= check_len_kv(c, b)) return false;
    if (c->problem.left != ATTN_UNBOUNDED && distance < -(wide)c->problem.left) return false;
    return c->problem.right == ATTN_UNBOUNDED || distance <= (wide)c->problem.right;
}

bool check_visible(const check_case *c, int64_t b, int64_t h, int64_t i, int64_t j) {
    if (!check_in_band(c, b, i, j)) return false;
    if (c->problem.type_mask == ATTN_NONE) return true;
    double mask = check_get(&c->mask, b, h, i, j);
    return c->problem.type_mask == ATTN_BOOL ? mask != 0 : !(mask == -INFINITY);
}

/* Of folding s keys, in units of 2^-24: one for two folds of 512 keys, or of a chunk where that is less. */
static double folding(const check_case *c, int64_t s) {
    int64_t chunk = c->chunk > 0 && c->chunk < 512 ? c->chunk : 512;
    return (double)s / (double)(2 * chunk);
}

/* |out - ref| <= ulp_out(ref)/2 + 2^-24 * a * (8 + 2 l + folding) + weight_error * a (+ s * 2^-149: sums of float32 subnormals). */
static double bound_of(const check_case *c, const check_row *row, int64_t e) {
    double a = row->a[e], s = (double)row->s;
    return 0.5 * check_ulp(c->problem.type_out, row->out[e]) + 0x1p-24 * a * (8 + 2 * row->l + folding(c, row->s)) + c->weight_error * a +
           s * 0x1p-149;
}

/* One key head's K and V in double, and room for one row's work. */
typedef struct work {
    const check_case *c;
    double *k, *v, *q, *score, *size;
    int64_t b, g; /* of what k and v hold */
} work;

static void read_row(const check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t count, double *to) {
    for (int64_t e = 0; e < count; e++) to[e] = check_get(tensor, b, h, i, e);
}

static void *need(size_t count) {
    void *memory = calloc(count ? count : 1, sizeof(double));
    if (!memory) abort();
    return memory;
}

static void load_head(work *w, int64_t b, int64_t g) {
    const attn_problem *p = &w->c->problem;
    if (w->b == b && w->g == g) return;
    w->b = b;
    w->g = g;
    for (int64_t j = 0; j < check_len_kv(w->c, b); j++) {
        read_row(&w->c->k, b, g, j, p->dim_qk, w->k + j * p->dim_qk);
        read_row(&w->c->v, b, g, j, p->dim_v, w->v + j * p->dim_v);
    }
}

static double bias_of(const check_case *c, int64_t b, int64_t h, int64_t i, int64_t j, double *size) {
    double bias = 0, slope = c->args.slopes ? (double)c->args.slopes[h] : 0;
    *size = 0;
    if (c->problem.type_mask != ATTN_NONE && c->problem.type_mask != ATTN_BOOL) {
        bias = check_get(&c->mask, b, h, i, j);
        *size = fabs(bias);
    }
    if (c->args.slopes) {
        double pull = slope * fabs((double)((wide)i + diagonal(c, b) - j));
        bias -= pull;
        *size += fabs(pull);
    }
    return bias;
}

/* Scores of the visible keys (-inf for the others, whose size is -1); the largest. */
static double scores_of(work *w, int64_t b, int64_t h, int64_t i, int64_t *count) {
    const attn_problem *p = &w->c->problem;
    double most = w->c->args.sinks ? (double)w->c->args.sinks[h] : -INFINITY;
    read_row(&w->c->q, b, h, i, p->dim_qk, w->q);
    *count = 0;
    for (int64_t j = 0; j < check_len_kv(w->c, b); j++) {
        w->size[j] = -1;
        if (!check_visible(w->c, b, h, i, j)) continue;
        const double *k = w->k + j * p->dim_qk;
        double dot[4] = { 0, 0, 0, 0 }, size[4] = { 0, 0, 0, 0 }, bias_size;
        for (int64_t e = 0; e < p->dim_qk; e++) {
            double product = w->q[e] * k[e];
            dot[e & 3] += product;
            size[e & 3] += fabs(product);
        }
        double score = (double)p->scale * ((dot[0] + dot[1]) + (dot[2] + dot[3])), cap = (double)p->softcap;
        if (cap > 0) score = cap * tanh(score / cap);
        w->score[j] = score + bias_of(w->c, b, h, i, j, &bias_size);
        w->size[j] = fabs((double)p->scale) * ((size[0] + size[1]) + (size[2] + size[3])) + bias_size;
        if (w->score[j] > most || isnan(w->score[j])) most = w->score[j];
        ++*count;
    }
    return most;
}

static void expect_row(work *w, check_row *row) {
    const attn_problem *p = &w->c->problem;
    load_head(w, row->b, row->h / (p->heads_q / p->heads_kv));
    double most = scores_of(w, row->b, row->h, row->i, &row->s), sum = 0;
    row->l = 0;
    if (w->c->args.sinks) {
        double sink = (double)w->c->args.sinks[row->h];
        sum = exp(sink - most);
        if (sink - most > -104) row->l = fabs(sink);
    }
    for (int64_t j = 0; j < check_len_kv(w->c, row->b); j++) {
        if (w->size[j] < 0) continue;
        double share = exp(w->score[j] - most);
        const double *v = w->v + j * p->dim_v;
        sum += share;
        /* exp(-104) is below every float32: a key that cannot reach it, errors and all, adds nothing and so adds no error */
        if (!(w->score[j] - most + 0x1p-22 * w->size[j] < -104) && w->size[j] > row->l) row->l = w->size[j];
        for (int64_t e = 0; e < p->dim_v; e++) {
            row->out[e] += share * v[e];
            row->a[e] += share * fabs(v[e]);
        }
    }
    row->l_lse = row->l;
    row->lse = row->s == 0 && !w->c->args.sinks ? -INFINITY : most + log(sum);
    for (int64_t e = 0; e < p->dim_v && row->s > 0; e++) {
        row->out[e] /= sum;
        row->a[e] /= sum;
    }
}

static int64_t choose_rows(const check_case *c, int64_t limit, check_random *random, check_row *rows) {
    const attn_problem *p = &c->problem;
    int64_t all = 0, count = 0;
    for (int64_t b = 0; b < p->batch; b++) all += check_len_q(c, b) * p->heads_q;
    double keep = all > limit ? (double)limit / (double)all : 2;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < check_len_q(c, b); i++) {
                bool edge = (h == 0 || h == p->heads_q - 1) && (i == 0 || i == check_len_q(c, b) - 1) && count < 4 * limit;
                if (!edge && keep < 1 && !check_chance(random, keep)) continue;
                if (rows) rows[count] = (check_row){ .b = b, .h = h, .i = i };
                count++;
            }
        }
    }
    return count;
}

check_expected check_expect(const check_case *c, int64_t limit, check_random *random) {
    const attn_problem *p = &c->problem;
    check_random again = *random; /* the same choice twice: once to count, once to fill in */
    check_expected expected = { NULL, choose_rows(c, limit, &again, NULL), NULL };
    expected.rows = calloc((size_t)expected.count + 1, sizeof *expected.rows);
    if (!expected.rows) abort();
    choose_rows(c, limit, random, expected.rows);
    expected.storage = need((size_t)(expected.count * 2 * p->dim_v));
    work w = { .c = c, .b = -1 };
    w.k = need((size_t)(p->len_kv * p->dim_qk));
    w.v = need((size_t)(p->len_kv * p->dim_v));
    w.q = need((size_t)p->dim_qk);
    w.score = need((size_t)p->len_kv);
    w.size = need((size_t)p->len_kv);
    for (int64_t n = 0; n < expected.count; n++) {
        expected.rows[n].out = expected.storage + n * 2 * p->dim_v;
        expected.rows[n].a = expected.rows[n].out + p->dim_v;
        expect_row(&w, &expected.rows[n]);
    }
    free(w.k);
    free(w.v);
    free(w.q);
    free(w.score);
    free(w.size);
    return expected;
}

void check_expected_free(check_expected *expected) {
    free(expected->rows);
    free(expected->storage);
    memset(expected, 0, sizeof *expected);
}

/* Error as a share of the bound; infinite where one is a NaN or infinity and the other is not the same. */
static double ratio_of(double got, double reference, double bound) {
    if (isnan(reference)) return isnan(got) ? 0 : INFINITY;
    if (isinf(reference) || !isfinite(got)) return got == reference ? 0 : INFINITY;
    return fabs(got - reference) / bound;
}

static void note_worst(check_worst *worst, const check_row *row, int64_t e, double ratio) {
    if (!(ratio > worst->ratio)) return;
    worst->ratio = ratio;
    worst->b = row->b;
    worst->h = row->h;
    worst->i = row->i;
    worst->e = e;
    worst->seed = check_seed;
}

/* Whether all is within the bound; one failure is reported: the rest of the tensor tends to say the same. */
static bool compare_row(const check_case *c, const check_row *row, double slack, const char *what, check_worst *worst) {
    attn_type type = c->problem.type_out;
    for (int64_t e = 0; e < c->problem.dim_v; e++) {
        double got = check_get(&c->out, row->b, row->h, row->i, e), reference = row->out[e];
        double bound = bound_of(c, row, e), ratio = ratio_of(got, reference, bound);
        bool good = ratio <= slack;
        CHECK(good, "%s: out[%d][%d][%d][%d] is %.9g, expected %.9g, error/bound %.3g (A %.3g, L %.3g, S %d, chunk %d)", what, (int)row->b,
              (int)row->h, (int)row->i, (int)e, got, reference, ratio, row->a[e], row->l, (int)row->s, (int)c->chunk);
        /* what is reported is free of the rounding to the type, which alone fills the bound of 16-bit types */
        double rounding = 0.5 * check_ulp(type, reference), error = fabs(got - reference) - rounding;
        if (error > 0) note_worst(worst, row, e, error / (bound - rounding));
        worst->elements += type != ATTN_F32;
        worst->rounded += type != ATTN_F32 && got == check_round(type, reference);
        if (!good) return false;
    }
    if (!c->args.lse) return true;
    double got = check_get(&c->lse, row->b, row->h, row->i, 0);
    /* beyond out's bound: turning a score of size L from one base of logarithms to another and back costs up to 2 L once more */
    double bound = 0.5 * check_ulp(ATTN_F32, row->lse) + 0x1p-24 * (8 + 4 * row->l_lse + folding(c, row->s));
    double ratio = ratio_of(got, row->lse, bound);
    CHECK(ratio <= slack, "%s: lse[%d][%d][%d] is %.9g, expected %.9g, error/bound %.3g (L %.3g, S %d)", what, (int)row->b, (int)row->h,
          (int)row->i, got, row->lse, ratio, row->l_lse, (int)row->s);
    if (ratio > worst->lse_ratio) worst->lse_ratio = ratio;
    return ratio <= slack;
}

static double relative_error(const check_case *c, const check_expected *expected) {
    double largest = 0, error = 0;
    for (int64_t n = 0; n < expected->count; n++) {
        const check_row *row = &expected->rows[n];
        for (int64_t e = 0; e < c->problem.dim_v; e++) {
            largest = fmax(largest, fabs(row->out[e]));
            error = fmax(error, fabs(check_get(&c->out, row->b, row->h, row->i, e) - row->out[e]));
        }
    }
    return largest > 0 ? error / largest : error;
}

void check_compare(const check_case *c, const check_expected *expected, double slack, const char *what, check_worst *worst) {
    for (int64_t n = 0; n < expected->count; n++)
        if (!compare_row(c, &expected->rows[n], slack, what, worst)) return;
    worst->relative = fmax(worst->relative, relative_error(c, expected));
}
