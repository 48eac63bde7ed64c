/* bench.c: attn bench: verifies a case, then times it, and tells what share of the machine's ceiling it reaches. */
#include "bench.h"
#include "convert.h"
#include "mirror.h"
#include "options.h"
#include "progress.h"
#include "report.h"
#include "tensor.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    CASES_MOST = 64,
    KEY_CASE = 300,
    KEY_SHAPE,
    KEY_TYPE,
    KEY_SECONDS,
    KEY_MASK,
    KEY_LAYOUT,
    KEY_JSON,
    KEY_HTML,
    KEY_COMPARE,
    KEY_SAVE,
    KEY_LIST
};

typedef struct bench_options {
    attn_options device;
    spec cases[CASES_MOST];
    int count;
    bool types[ATTN_BF16 + 1], has_type;
    double seconds;
    bool masked;
    attn_layout layout;
    const char *json, *html, *compare, *save;
    bool list;
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
    { "html", KEY_HTML, "FILE", 0, "Write a page with a roofline plot, bars and all figures to FILE", 20 },
    { "compare", KEY_COMPARE, "FILE", 0, "Set the peers' figures in FILE (peers.json) beside these", 20 },
    { "save", KEY_SAVE, "FILE", 0, "Write q, k and v of one case and type to FILE (.safetensors), as attn run takes them; time nothing",
      20 },
    { "list", KEY_LIST, NULL, 0, "Print the names of the cases that are timed without --case", 20 },
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

static void check_options(const bench_options *o, struct argp_state *state) {
    int types = 0;
    for (attn_type type = ATTN_F32; type <= ATTN_BF16; type++) types += o->types[type];
    if (o->save && (o->count != 1 || types != 1)) argp_error(state, "--save %s: takes one --case or --shape and one --type", o->save);
    if (o->save && o->masked) argp_error(state, "--save %s: does not go with --mask all-true", o->save);
    if (o->save && (o->json || o->html || o->compare))
        argp_error(state, "--save %s: times nothing, so there is nothing for --json, --html or --compare", o->save);
    if (o->json && o->html && attn_cli_output_same(o->json, o->html)) argp_error(state, "--html %s: is the file of --json", o->html);
    if (o->compare && (o->masked || o->layout != ATTN_BHLD))
        argp_error(state, "--compare %s: the peers had no mask and the layout bhld", o->compare);
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
    case KEY_HTML:
        o->html = arg;
        return 0;
    case KEY_COMPARE:
        o->compare = arg;
        return 0;
    case KEY_SAVE:
        o->save = arg;
        return 0;
    case KEY_LIST:
        o->list = true;
        return 0;
    case ARGP_KEY_END:
        check_options(o, state);
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

/* ---- the work ---- */
typedef struct session {
    const bench_options *options;
    attn_context *context;
    ceilings known;
    progress bar;
    report report;
    int total;
    bool mismatch, silent; /* silent: lines of JSON take the table's place */
} session;

static bool measure_row(session *all, workload *w, row *m) {
    const verify_options verify = { 5e7, 3e7, 1, true };
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    if (!attn_cli_ok(attn_explain(all->context, &w->problem, &explanation))) return false;
    attn_cli_plan_text(&explanation, m->plan, sizeof m->plan);
    if (!attn_cli_ok(attn_cli_forward(all->context, &w->problem, &w->args))) return false;
    if (!attn_cli_verify(&w->problem, &w->args, &explanation, &verify, &m->verdict)) return false;
    m->timed = attn_cli_passed(&m->verdict);
    return !m->timed || attn_cli_time(all->context, w, &all->known, all->options->seconds, &m->timing);
}

static bool bench(session *all, workload *w, const spec *s) {
    row *m = &all->report.rows[all->report.count];
    snprintf(m->name, sizeof m->name, "%s", s->name);
    attn_cli_sizes_text(&w->problem, m->shape, sizeof m->shape - 32);
    if (s->causal) strcat(m->shape, s->align == ATTN_BOTTOM_RIGHT ? ",causal=bottom-right" : ",causal");
    m->type = s->type_q;
    if (!measure_row(all, w, m)) return false;
    all->report.count++;
    attn_cli_progress_end(&all->bar);
    if (!all->silent) attn_cli_print_row(&all->report, m);
    if (m->timed) return true;
    all->mismatch = true;
    if (!all->silent) attn_cli_print_verdict(&w->problem, &w->args, &m->verdict);
    return true;
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
    attn_cli_progress(&all->bar, (double)all->report.count / all->total);
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
    all->report.rows = calloc((size_t)all->total + 1, sizeof *all->report.rows);
    if (!all->report.rows) return attn_cli_error("memory: none for the report");
    if (!all->silent) attn_cli_print_head(&all->report);
    attn_cli_progress_begin(&all->bar, "timing");
    for (int i = 0; good && i < count; i++)
        for (attn_type type = ATTN_F32; good && type <= ATTN_BF16; type++)
            if (!o->has_type || o->types[type]) good = bench_case(all, &cases[i], type);
    attn_cli_progress_end(&all->bar);
    if (good && !all->silent) attn_cli_print_end(&all->report);
    return good;
}

static bool write_lines(FILE *to, const report *r) {
    bool good = true;
    for (int i = 0; good && i < r->count; i++) {
        json_t *line = attn_cli_json_row(r, &r->rows[i]);
        good = line && json_dumpf(line, to, JSON_COMPACT) == 0 && fputc('\n', to) != EOF;
        json_decref(line);
    }
    return good || attn_cli_error("JSON: could not be made");
}

/* Into memory first: a file is whole or not there. `file` NULL: standard output. */
static bool write_report(const report *r, bool (*write)(FILE *, const report *), output *file) {
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    bool good = stream && write(stream, r);
    if (stream) good = fclose(stream) == 0 && good;
    if (!stream || !text) good = attn_cli_error("memory: none for the report");
    if (good && !file)
        good = fwrite(text, 1, size, stdout) == size;
    else if (good)
        good = attn_cli_output_bytes(file, text, size, "", 0) && attn_cli_output_commit(file);
    free(text);
    return good;
}

static bool save(const bench_options *o) {
    attn_type type = ATTN_F32;
    while (!o->types[type]) type++;
    spec s = complete(o, &o->cases[0], type);
    workload w;
    if (!attn_cli_workload_make(&s, &w)) return false;
    bool good = attn_cli_workload_save(&s, &w, o->save);
    attn_cli_workload_free(&w);
    return good;
}

static int list(void) {
    const spec *shapes;
    for (int i = 0, count = attn_cli_shapes(&shapes); i < count; i++) puts(shapes[i].name);
    return CLI_GOOD;
}

static bool begin(session *all, output *json, output *html, const spec *cases, int count) {
    const bench_options *o = all->options;
    all->silent = o->json && strcmp(o->json, "-") == 0;
    if (o->json && !all->silent && !attn_cli_output_place(json, "--json", o->json)) return false;
    if (o->html && !attn_cli_output_place(html, "--html", o->html)) return false;
    if (o->compare && !attn_cli_peers_read(o->compare, &all->report.peers)) return false;
    all->context = attn_cli_open(&o->device);
    if (!all->context || !attn_cli_ok(attn_describe(all->context, &all->report.description))) return false;
    all->report.precision = o->device.precision;
    attn_cli_machine_text(all->report.machine, sizeof all->report.machine);
    return check_cases(all->context, o, cases, count);
}

int attn_cli_bench(int argc, char **argv) {
    static bench_options o; /* large */
    output json, html;
    o = (bench_options){ .device = ATTN_OPTIONS_INIT, .seconds = 1 };
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return CLI_BAD;
    if (o.list) return list();
    session all = { .options = &o, .report = { .description = ATTN_DESCRIPTION_INIT } };
    const spec *cases = o.cases;
    int count = o.count ? o.count : attn_cli_shapes(&cases);
    bool good = begin(&all, &json, &html, cases, count);
    if (good && o.save) {
        good = save(&o);
    } else {
        good = good && bench_all(&all, cases, count);
        if (good && o.json) good = write_report(&all.report, write_lines, all.silent ? NULL : &json);
        if (good && o.html) good = write_report(&all.report, attn_cli_page, &html);
    }
    free(all.report.rows);
    attn_cli_peers_free(&all.report.peers);
    attn_close(all.context);
    return !good ? CLI_BAD : all.mismatch ? CLI_MISMATCH : CLI_GOOD;
}
