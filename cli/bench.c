/* bench.c: attn bench: verifies a case, then times it, and tells what share of the machine's ceiling it reaches. */
#include "bench.h"
#include "convert.h"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "tensor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CASES_MOST = 64, KEY_CASE = 300, KEY_SHAPE, KEY_TYPE, KEY_SECONDS, KEY_MASK, KEY_LAYOUT, KEY_JSON };

typedef struct bench_options {
    attn_options device;
    spec cases[CASES_MOST];
    int count;
    bool types[ATTN_BF16 + 1], has_type;
    double seconds;
    bool masked;
    attn_layout layout;
    const char *json;
} bench_options;

static const struct argp_option options[] = {
    { "case", KEY_CASE, "NAME", 0,
      "origin, D2 to D5, M1, P1 to P4, or any other that attn check has; may be repeated (without: all of these)", 1 },
    { "shape", KEY_SHAPE, "SHAPE", 0, "B,Hq/Hkv,Lq,Lk,D[/Dv][,causal[=ALIGN]]; may be repeated", 1 },
    { "type", KEY_TYPE, "TYPE", 0, "f32, f16 or bf16, or several with commas (all three)", 1 },
    { "seconds", KEY_SECONDS, "S", 0, "How long to time a case (1)", 1 },
    { "mask", KEY_MASK, "MASK", 0, "none (the default), or all-true: with a bool mask that hides nothing", 1 },
    { "layout", KEY_LAYOUT, "LAYOUT", 0, "bhld (the default) or blhd", 1 },
    { "json", KEY_JSON, "FILE", 0, "Write one JSON object a case to FILE, one a line; -: to standard output, in place of the table", 20 },
    { 0 },
};

static void add_case(bench_options *o, bool found, const char *option, const char *arg, struct argp_state *state) {
    if (!found)
        argp_error(state, "--%s %s: %s", option, arg,
                   *option == 'c' ? "no such case (attn check --list names them)" : "must be B,Hq/Hkv,Lq,Lk,D[/Dv][,causal[=ALIGN]]");
    if (++o->count == CASES_MOST) argp_error(state, "--%s %s: too many cases", option, arg);
}

static void set_types(bench_options *o, const char *arg, struct argp_state *state) {
    char word[8];
    for (const char *at = arg;; at++) {
        size_t length = strcspn(at, ",");
        attn_type type;
        snprintf(word, sizeof word, "%.*s", length < sizeof word ? (int)length : 0, at);
        if (!attn_cli_type_parse(word, &type)) argp_error(state, "--type %s: must be f32, f16 or bf16, or several with commas", arg);
        o->types[type] = o->has_type = true;
        at += length;
        if (*at == 0) return;
    }
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    bench_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->device;
        return 0;
    case KEY_CASE:
        add_case(o, attn_cli_case(arg, &o->cases[o->count]), "case", arg, state);
        return 0;
    case KEY_SHAPE:
        add_case(o, attn_cli_shape_spec(arg, &o->cases[o->count]), "shape", arg, state);
        return 0;
    case KEY_TYPE:
        set_types(o, arg, state);
        return 0;
    case KEY_SECONDS:
        if (!attn_cli_real_parse(arg, &o->seconds) || !(o->seconds >= 0 && o->seconds <= 1e6))
            argp_error(state, "--seconds %s: must be a number that is not negative", arg);
        return 0;
    case KEY_MASK:
        o->masked = strcmp(arg, "all-true") == 0;
        if (!o->masked && strcmp(arg, "none") != 0) argp_error(state, "--mask %s: must be all-true or none", arg);
        return 0;
    case KEY_LAYOUT:
        o->layout = strcmp(arg, "blhd") == 0 ? ATTN_BLHD : ATTN_BHLD;
        if (o->layout == ATTN_BHLD && strcmp(arg, "bhld") != 0) argp_error(state, "--layout %s: must be bhld or blhd", arg);
        return 0;
    case KEY_JSON:
        o->json = arg;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = { { &attn_cli_device_argp, 0, "The device:", 10 }, { 0 } };
static const struct argp argp = {
    options,
    parse,
    NULL,
    "Verifies, then times.\v"
    "The share is the larger of bytes / DRAM read rate and visible operations / arithmetic peak, both measured in this process on the same "
    "threads, divided by the median time. Decode cases go through copies of k and v that are larger than the last cache. "
    "Exit status 1 where the verification fails.",
    children,
    NULL,
    NULL
};

/* ---- the report ---- */
typedef struct measured {
    const spec *spec;
    verdict verdict;
    attn_explanation explanation;
    timing timing;
    bool timed;
    int threads; /* of the context; the plan tells how many take part */
} measured;

static const char *ceiling_name(attn_ceiling ceiling) { return ceiling == ATTN_DRAM_READ ? "dram_read" : "fma_f32"; }

static json_t *json_row(const measured *m, const char *type) {
    char plan[160];
    const timing *t = &m->timing;
    const worst *w = &m->verdict.out;
    attn_cli_plan_text(&m->explanation, plan, sizeof plan);
    return json_pack(
        "{s:s,s:s?,s:s?,s:s,s:i,s:o,s:f,s:f,s:o,s:o,s:o,s:o,s:o,s:s}", "case", m->spec->name, "device", m->explanation.device, "isa",
        m->explanation.isa, "type", type, "threads", m->threads, "seconds_median", m->timed ? json_real(t->median) : json_null(), "bytes",
        t->bytes, "operations", t->operations, "ceiling", m->timed ? json_string(ceiling_name(t->ceiling)) : json_null(), "ceiling_value",
        m->timed ? json_real(t->ceiling_value) : json_null(), "share", m->timed ? json_real(t->share) : json_null(), "error",
        w->any ? attn_cli_json_real(w->error) : json_null(), "bound", w->any ? attn_cli_json_real(w->bound) : json_null(), "plan", plan);
}

static void print_row(const measured *m, const char *type) {
    char plan[160], time[32] = "MISMATCH", rate[48] = "-", ceiling[48] = "-", share[16] = "-";
    const timing *t = &m->timing;
    double part = m->verdict.out.any ? m->verdict.out.ratio : 0;
    attn_cli_plan_text(&m->explanation, plan, sizeof plan);
    if (m->timed) {
        bool dram = t->ceiling == ATTN_DRAM_READ;
        const char *unit = dram ? "GB/s" : "GFLOP/s";
        attn_cli_time_text(t->median, time, sizeof time);
        snprintf(rate, sizeof rate, "%.1f %s", (dram ? t->bytes : t->operations) / t->median * 1e-9, unit);
        snprintf(ceiling, sizeof ceiling, "%.1f %s", t->ceiling_value * 1e-9, ceiling_name(t->ceiling));
        snprintf(share, sizeof share, "%.3f", t->share);
    }
    printf("%-12s %-4s %10s %15s %18s %6s %6.2f  %s\n", m->spec->name, type, time, rate, ceiling, share, part, plan);
    fflush(stdout);
}

static void print_head(attn_context *context) {
    attn_description d = ATTN_DESCRIPTION_INIT;
    if (attn_describe(context, &d) != ATTN_OK) return;
    printf("attn %s, device %s, isa %s, threads %d\n", attn_version(), d.device, d.isa ? d.isa : "none", d.threads);
    printf("%-12s %-4s %10s %15s %18s %6s %6s  %s\n", "case", "type", "median", "rate", "ceiling", "share", "error", "plan");
    fflush(stdout);
}

/* ---- the work ---- */
typedef struct session {
    const bench_options *options;
    attn_context *context;
    ceilings known;
    progress bar;
    int done, total;
    bool mismatch;
    char *lines; /* of JSON */
    size_t size;
    FILE *stream; /* onto them */
} session;

static bool bench(session *all, workload *w, const spec *s) {
    const verify_options verify = { 5e7, 3e7, 1, true };
    measured m = { .spec = s, .explanation = ATTN_EXPLANATION_INIT };
    attn_description d = ATTN_DESCRIPTION_INIT;
    bool lines_only = all->options->json && strcmp(all->options->json, "-") == 0;
    if (!attn_cli_ok(attn_describe(all->context, &d)) || !attn_cli_ok(attn_explain(all->context, &w->problem, &m.explanation)))
        return false;
    m.threads = d.threads;
    if (!attn_cli_ok(attn_forward(all->context, &w->problem, &w->args))) return false;
    if (!attn_cli_verify(&w->problem, &w->args, &verify, &m.verdict)) return false;
    m.timed = attn_cli_passed(&m.verdict);
    if (m.timed && !attn_cli_time(all->context, w, &all->known, all->options->seconds, &m.timing)) return false;
    attn_cli_progress_end(&all->bar);
    if (!lines_only) print_row(&m, attn_cli_type(s->type_q));
    if (!m.timed) {
        all->mismatch = true;
        if (!lines_only) attn_cli_print_verdict(&w->problem, &w->args, &m.verdict);
    }
    json_t *row = json_row(&m, attn_cli_type(s->type_q));
    bool good = row && json_dumpf(row, all->stream, JSON_COMPACT) == 0 && fputc('\n', all->stream) != EOF;
    json_decref(row);
    return good || attn_cli_error("JSON: could not be made");
}

static spec complete(const bench_options *o, const spec *plain, attn_type type) {
    spec s = *plain;
    s.seed = 1;
    s.layout = o->layout;
    attn_cli_case_type(&s, type, false);
    if (o->masked) s.mask = ATTN_BOOL, s.axes = AXIS_ROW | AXIS_KEY, s.fill = FILL_KEEP;
    return s;
}

/* A shape that breaks a rule is told before anything is timed. */
static bool check_cases(attn_context *context, const bench_options *o, const spec *cases, int count) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_problem problem;
    for (int i = 0; i < count; i++) {
        spec s = complete(o, &cases[i], ATTN_F32);
        attn_cli_case_problem(&s, &problem);
        attn_status status = attn_explain(context, &problem, &explanation);
        if (status != ATTN_OK) return attn_cli_error("%s: %s", s.name, attn_status_text(status));
    }
    return true;
}

static bool bench_case(session *all, const spec *plain, attn_type type) {
    workload w;
    spec s = complete(all->options, plain, type);
    attn_cli_progress(&all->bar, (double)all->done++ / all->total);
    if (!attn_cli_workload_make(&s, &w)) return false;
    bool good = bench(all, &w, &s);
    attn_cli_workload_free(&w);
    return good;
}

static bool bench_all(session *all, const spec *cases, int count) {
    const bench_options *o = all->options;
    bool good = true;
    for (int i = 0; i < count; i++)
        for (attn_type type = ATTN_F32; type <= ATTN_BF16; type++) all->total += !o->has_type || o->types[type];
    for (int i = 0; good && i < count; i++)
        for (attn_type type = ATTN_F32; good && type <= ATTN_BF16; type++)
            if (!o->has_type || o->types[type]) good = bench_case(all, &cases[i], type);
    return good;
}

static bool write_json(session *all, output *file) {
    if (!all->options->json) return true;
    if (strcmp(all->options->json, "-") == 0) return fwrite(all->lines, 1, all->size, stdout) == all->size;
    return attn_cli_output_bytes(file, all->lines, all->size, "", 0) && attn_cli_output_commit(file);
}

int attn_cli_bench(int argc, char **argv) {
    static bench_options o; /* large */
    output file;
    o = (bench_options){ .device = ATTN_OPTIONS_INIT, .seconds = 1 };
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return CLI_BAD;
    if (o.json && strcmp(o.json, "-") != 0 && !attn_cli_output_place(&file, "--json", o.json)) return CLI_BAD;
    session all = { .options = &o };
    all.context = attn_cli_open(&o.device);
    all.stream = open_memstream(&all.lines, &all.size);
    const spec *cases = o.cases;
    int count = o.count ? o.count : attn_cli_shapes(&cases);
    bool good = all.context && all.stream && check_cases(all.context, &o, cases, count);
    if (good && !(o.json && strcmp(o.json, "-") == 0)) print_head(all.context);
    attn_cli_progress_begin(&all.bar, "timing");
    good = good && bench_all(&all, cases, count);
    attn_cli_progress_end(&all.bar);
    if (all.stream && fclose(all.stream) != 0) good = attn_cli_error("JSON: no memory for it");
    good = good && write_json(&all, &file);
    free(all.lines);
    attn_close(all.context);
    return !good ? CLI_BAD : all.mismatch ? CLI_MISMATCH : CLI_GOOD;
}
