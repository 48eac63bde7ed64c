/* report.c: results in words and as JSON. */
#include "report.h"
#include "convert.h"
#include "options.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

json_t *attn_cli_json_real(double value) {
    if (isfinite(value)) return json_real(value);
    return json_string(isnan(value) ? "nan" : value > 0 ? "inf" : "-inf");
}

static json_t *json_worst(const worst *w, int axes) {
    if (!w->any) return json_null();
    json_t *index = json_array();
    for (int i = 0; i < axes; i++) json_array_append_new(index, json_integer(w->index[i]));
    return json_pack("{s:o,s:o,s:o,s:o,s:o,s:o}", "index", index, "got", attn_cli_json_real(w->got), "want", attn_cli_json_real(w->want),
                     "error", attn_cli_json_real(w->error), "bound", attn_cli_json_real(w->bound), "ratio", attn_cli_json_real(w->ratio));
}

json_t *attn_cli_json_verdict(const attn_problem *problem, const attn_args *args, const verdict *v) {
    bool narrow = problem->type_out != ATTN_F32 && v->elements > 0;
    return json_pack("{s:b,s:I,s:I,s:I,s:I,s:o,s:o,s:I,s:o}", "passed", attn_cli_passed(v), "rows", (json_int_t)v->rows, "rows_checked",
                     (json_int_t)v->rows_checked, "elements", (json_int_t)v->elements, "mismatches", (json_int_t)v->mismatches, "worst",
                     json_worst(&v->out, 4), "correctly_rounded",
                     narrow ? json_real((double)v->rounded / (double)v->elements) : json_null(), "lse_mismatches",
                     (json_int_t)v->lse_mismatches, "lse_worst", args->lse ? json_worst(&v->lse, 3) : json_null());
}

json_t *attn_cli_json_problem(const attn_problem *p) {
    return json_pack("{s:s,s:s,s:s,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:s,s:I,s:I,s:I}", "type_q", attn_cli_type(p->type_q),
                     "type_k", attn_cli_type(p->type_k), "type_v", attn_cli_type(p->type_v), "type_out", attn_cli_type(p->type_out),
                     "type_mask", attn_cli_type(p->type_mask), "batch", (json_int_t)p->batch, "heads_q", (json_int_t)p->heads_q, "heads_kv",
                     (json_int_t)p->heads_kv, "len_q", (json_int_t)p->len_q, "len_kv", (json_int_t)p->len_kv, "dim_qk",
                     (json_int_t)p->dim_qk, "dim_v", (json_int_t)p->dim_v, "scale", attn_cli_json_real(p->scale), "softcap",
                     attn_cli_json_real(p->softcap), "align", attn_cli_align(p->align), "offset", (json_int_t)p->offset, "left",
                     (json_int_t)p->left, "right", (json_int_t)p->right);
}

json_t *attn_cli_json_explanation(const attn_explanation *e) {
    return json_pack("{s:s?,s:s?,s:s?,s:i,s:i,s:I,s:I,s:I,s:I,s:I,s:o,s:o,s:f,s:s}", "device", e->device, "isa", e->isa, "kernel",
                     e->kernel, "passes", e->passes, "threads", e->threads, "chunk", (json_int_t)e->chunk, "chunks", (json_int_t)e->chunks,
                     "rows", (json_int_t)e->rows, "jobs", (json_int_t)e->jobs, "workspace", (json_int_t)e->workspace, "bytes",
                     attn_cli_json_real(e->bytes), "operations", attn_cli_json_real(e->operations), "weight_error", e->weight_error,
                     "reason", e->reason);
}

bool attn_cli_json_print(json_t *json) {
    bool good = json && json_dumpf(json, stdout, JSON_INDENT(2)) == 0;
    json_decref(json);
    putchar('\n');
    return good || attn_cli_error("JSON: could not be made");
}

static void print_worst(const char *what, const worst *w, int axes) {
    if (!w->any) return;
    printf("worst element %s[", what);
    for (int i = 0; i < axes; i++) printf(i ? ", %lld" : "%lld", (long long)w->index[i]);
    printf("]: got %.9g, want %.9g, error %.3g, bound %.3g, error/bound %.3g\n", w->got, w->want, w->error, w->bound, w->ratio);
}

void attn_cli_print_verdict(const attn_problem *problem, const attn_args *args, const verdict *v) {
    printf("verified %lld of %lld rows against the reference: ", (long long)v->rows_checked, (long long)v->rows);
    if (attn_cli_passed(v))
        printf("all %lld elements are within the bound\n", (long long)v->elements);
    else
        printf("MISMATCH: %lld of %lld elements and %lld of lse are outside the bound\n", (long long)v->mismatches, (long long)v->elements,
               (long long)v->lse_mismatches);
    print_worst("out", &v->out, 4);
    if (args->lse) print_worst("lse", &v->lse, 3);
    if (problem->type_out != ATTN_F32 && v->elements > 0)
        printf("correctly rounded: %.3f %% of the %s elements\n", 100.0 * (double)v->rounded / (double)v->elements,
               attn_cli_type(problem->type_out));
}

static const char *word(const char *text) { return text ? text : "none"; }

void attn_cli_print_explanation(const attn_explanation *e) {
    printf("device      %s\nisa         %s\nkernel      %s\npasses      %d\nthreads     %d\n", word(e->device), word(e->isa),
           word(e->kernel), e->passes, e->threads);
    printf("chunk       %lld keys\nchunks      %lld\nrows        %lld share one reading of K and V\njobs        %lld\n",
           (long long)e->chunk, (long long)e->chunks, (long long)e->rows, (long long)e->jobs);
    printf("workspace   %zu bytes\nbytes       %.0f\noperations  %.0f\n", e->workspace, e->bytes, e->operations);
    if (e->weight_error > 0)
        printf("weights     rounded, by up to %.3g of each\n", e->weight_error);
    else
        printf("weights     float32\n");
    printf("reason      %s\n", e->reason);
}

void attn_cli_sizes_text(const attn_problem *p, char *text, size_t size) {
    int used = snprintf(text, size, "%lld,%lld/%lld,%lld,%lld,%lld", (long long)p->batch, (long long)p->heads_q, (long long)p->heads_kv,
                        (long long)p->len_q, (long long)p->len_kv, (long long)p->dim_qk);
    if (p->dim_v != p->dim_qk && used > 0 && (size_t)used < size) snprintf(text + used, size - (size_t)used, "/%lld", (long long)p->dim_v);
}

void attn_cli_plan_text(const attn_explanation *e, char *text, size_t size) {
    snprintf(text, size, "%s%s, %d pass%s, %lld chunk%s of %lld keys, %d thread%s", word(e->kernel),
             e->weight_error > 0 ? " with rounded weights" : "", e->passes, e->passes == 1 ? "" : "es", (long long)e->chunks,
             e->chunks == 1 ? "" : "s", (long long)e->chunk, e->threads, e->threads == 1 ? "" : "s");
}

void attn_cli_time_text(double seconds, char *text, size_t size) {
    static const struct {
        double unit;
        const char *name;
    } units[] = { { 1, "s" }, { 1e-3, "ms" }, { 1e-6, "us" } };
    int i = 0;
    while (i < 2 && seconds < units[i].unit) i++;
    snprintf(text, size, "%.4g %s", seconds / units[i].unit, units[i].name);
}
