/* check.c: attn check: listed and random problems on a device, each held against the reference. */
#include "convert.h"
#include "mirror.h"
#include "options.h"
#include "progress.h"
#include "random.h"
#include "report.h"
#include "workload.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct check_options {
    attn_options device;
    double seconds;
    uint64_t seed;
    bool has_seed, json, list;
    const char *name;
    attn_type type; /* ATTN_NONE: all three in turn */
} check_options;

enum { KEY_SECONDS = 300, KEY_SEED, KEY_CASE, KEY_TYPE, KEY_LIST, KEY_JSON };

static const struct argp_option options[] = {
    { "seconds", KEY_SECONDS, "S", 0, "How long to go on with random problems; the listed ones count too, and all of them run (10)", 1 },
    { "seed", KEY_SEED, "N", 0, "Seed of all random numbers; without it a new one, which is stated", 1 },
    { "case", KEY_CASE, "NAME", 0, "One problem only: a listed name, random:SEED:INDEX, or random:SEED for a run of them", 1 },
    { "type", KEY_TYPE, "TYPE", 0, "f32, f16 or bf16 only", 1 },
    { "list", KEY_LIST, NULL, 0, "Print the names that --case takes, and end", 1 },
    { "json", KEY_JSON, NULL, 0, "Report as one JSON object", 20 },
    { 0 },
};

/* "random:12" or "random:12:345" */
static bool parse_random(const char *name, uint64_t *seed, uint64_t *index, bool *one) {
    char text[48];
    int64_t first = 0, second = 0;
    if (strncmp(name, "random:", 7) != 0 || strlen(name) >= sizeof text) return false;
    strcpy(text, name + 7);
    char *colon = strchr(text, ':');
    *one = colon != NULL;
    if (colon) *colon = 0;
    if (!attn_cli_int_parse(text, &first) || first < 0) return false;
    if (colon && (!attn_cli_int_parse(colon + 1, &second) || second < 0)) return false;
    *seed = (uint64_t)first;
    *index = (uint64_t)second;
    return true;
}

static bool is_case(const char *name) {
    uint64_t seed, index;
    bool one;
    spec s;
    return parse_random(name, &seed, &index, &one) || attn_cli_case(name, &s);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    check_options *o = state->input;
    int64_t number;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->device;
        return 0;
    case KEY_SECONDS:
        if (!attn_cli_real_parse(arg, &o->seconds) || !(o->seconds >= 0 && o->seconds <= 1e9))
            argp_error(state, "--seconds %s: must be a number that is not negative", arg);
        return 0;
    case KEY_SEED:
        if (!attn_cli_int_parse(arg, &number) || number < 0) argp_error(state, "--seed %s: must be a number that is not negative", arg);
        o->seed = (uint64_t)number;
        o->has_seed = true;
        return 0;
    case KEY_CASE:
        o->name = arg;
        if (!is_case(arg)) argp_error(state, "--case %s: no such case (attn check --list names them)", arg);
        return 0;
    case KEY_TYPE:
        if (!attn_cli_type_parse(arg, &o->type)) argp_error(state, "--type %s: must be f32, f16 or bf16", arg);
        return 0;
    case KEY_LIST:
        o->list = true;
        return 0;
    case KEY_JSON:
        o->json = true;
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
    "Checks a device against the reference.\v"
    "First the listed problems, then random ones until the time is up. A failure prints the command that repeats it. "
    "Exit status: 0 all passed, 1 one or more failed, 2 bad usage.",
    children,
    NULL,
    NULL
};

/* ---- one problem ---- */
typedef struct tested {
    attn_status status; /* of the device; the rest is of use where it is ATTN_OK */
    verdict verdict;
    attn_explanation explanation;
    size_t stray;
} tested;

static bool good(const tested *t) { return t->status == ATTN_OK && t->stray == 0 && attn_cli_passed(&t->verdict); }

typedef struct totals {
    const check_options *options;
    attn_context *context; /* open with `opened` */
    attn_options opened;
    progress bar;
    double begun;
    int64_t passed, failed;
    double worst; /* the largest part of a bound that an error took up among what passed */
    char worst_case[80];
    json_t *failures, *cases;
} totals;

static bool same_options(const attn_options *a, const attn_options *b) {
    return a->threads == b->threads && a->passes == b->passes && a->chunk == b->chunk; /* the others never change */
}

static bool open_context(totals *all, const attn_options *want) {
    if (all->context && same_options(&all->opened, want)) return true;
    attn_close(all->context);
    all->opened = *want;
    all->context = attn_cli_open(want);
    return all->context != NULL;
}

/* What a random problem leaves open in the options is drawn too, from its own seed. */
static attn_options drawn_options(const attn_options *given, const spec *s) {
    static const int64_t chunks[] = { 0, 0, 64, 100, 128, 512, 1000, 4096 };
    attn_options drawn = *given;
    generator g = attn_cli_generator(s->seed, 30);
    int threads = (int)attn_cli_below(&g, 5), passes = (int)attn_cli_below(&g, 3);
    int64_t chunk = chunks[attn_cli_below(&g, sizeof chunks / sizeof *chunks)];
    if (given->threads == 0) drawn.threads = threads;
    if (given->passes == 0) drawn.passes = passes;
    if (given->chunk == 0) drawn.chunk = chunk;
    return drawn;
}

static void note_worst(totals *all, const spec *s, const verdict *v) {
    double ratio = v->lse.any && v->lse.ratio > v->out.ratio ? v->lse.ratio : v->out.any ? v->out.ratio : 0;
    if (!(ratio > all->worst)) return;
    all->worst = ratio;
    snprintf(all->worst_case, sizeof all->worst_case, "%s, %s", s->name, attn_cli_type(s->type_q));
}

static void repeat_text(const totals *all, const spec *s, bool typed, char *text, size_t size) {
    char device[256];
    attn_cli_device_text(&all->options->device, device, sizeof device);
    if (strncmp(s->name, "random:", 7) == 0)
        snprintf(text, size, "attn check%s%s%s --case %s", device, all->options->type ? " --type " : "",
                 all->options->type ? attn_cli_type(all->options->type) : "", s->name);
    else
        snprintf(text, size, "attn check%s%s%s --seed %llu --case %s", device, typed ? " --type " : "",
                 typed ? attn_cli_type(s->type_q) : "", (unsigned long long)all->options->seed, s->name);
}

static void print_case(const spec *s, const workload *w, const tested *t) {
    const attn_problem *p = &w->problem;
    char sizes[160], plan[160] = "";
    attn_cli_sizes_text(p, sizes, sizeof sizes);
    printf("%s: shape %s, q %s, k %s, v %s, out %s", s->name, sizes, attn_cli_type(p->type_q), attn_cli_type(p->type_k),
           attn_cli_type(p->type_v), attn_cli_type(p->type_out));
    if (t->status == ATTN_OK) attn_cli_plan_text(&t->explanation, plan, sizeof plan);
    printf("%s%s\n", *plan ? "; " : "", plan);
    if (t->status != ATTN_OK)
        printf("FAILED: %s\n", attn_status_text(t->status));
    else
        attn_cli_print_verdict(p, &w->args, &t->verdict);
    if (t->stray) printf("FAILED: %zu bytes around the outputs or the workspace were written to\n", t->stray);
}

static json_t *json_case(const spec *s, const workload *w, const tested *t, const char *repeat) {
    json_t *json = json_pack("{s:s,s:b,s:s,s:o,s:s}", "case", s->name, "passed", good(t), "status", attn_status_text(t->status), "problem",
                             attn_cli_json_problem(&w->problem), "command", repeat);
    if (json && t->status == ATTN_OK) {
        json_object_set_new(json, "stray_bytes", json_integer((json_int_t)t->stray));
        json_object_set_new(json, "verify", attn_cli_json_verdict(&w->problem, &w->args, &t->verdict));
    }
    return json;
}

static void record(totals *all, const spec *s, bool typed, const workload *w, const tested *t) {
    char repeat[512];
    bool one = all->options->name && strncmp(all->options->name, "random:", 7) != 0;
    repeat_text(all, s, typed, repeat, sizeof repeat);
    if (good(t))
        all->passed++, note_worst(all, s, &t->verdict);
    else
        all->failed++;
    bool verbose = !good(t) || one || (all->options->name && strcmp(all->options->name, s->name) == 0);
    if (!verbose) return;
    attn_cli_progress_end(&all->bar);
    if (all->options->json) {
        if (!good(t)) json_array_append_new(all->failures, json_case(s, w, t, repeat));
        json_array_append_new(all->cases, json_case(s, w, t, repeat));
        return;
    }
    print_case(s, w, t);
    if (!good(t)) printf("repeat with: %s\n", repeat);
    fflush(stdout);
}

/* A workspace of the exact size, full of NaN, between margins of the same: what it held may not matter, what lies around it may not change.
 */
enum { MARGIN = 64, NOT_A_NUMBER = 0xff };

static void forward(totals *all, workload *w, tested *t) {
    size_t bytes = 0;
    t->status = attn_explain(all->context, &w->problem, &t->explanation);
    if (t->status == ATTN_OK) t->status = attn_workspace(all->context, &w->problem, &bytes);
    unsigned char *memory = t->status == ATTN_OK && bytes < SIZE_MAX / 2 ? attn_cli_memory(bytes + 2 * MARGIN) : NULL;
    if (!memory) {
        if (t->status == ATTN_OK) t->status = ATTN_ERROR_OUT_OF_MEMORY;
        return;
    }
    memset(memory, NOT_A_NUMBER, bytes + 2 * MARGIN);
    w->args.workspace = memory + MARGIN;
    w->args.workspace_size = bytes;
    t->status = attn_cli_forward(all->context, &w->problem, &w->args);
    for (size_t i = 0; i < MARGIN; i++) t->stray += (memory[i] != NOT_A_NUMBER) + (memory[MARGIN + bytes + i] != NOT_A_NUMBER);
    w->args.workspace = NULL;
    w->args.workspace_size = 0;
    free(memory);
}

/* False only where the check itself could not be made: no memory, no such device. */
static bool test(totals *all, const spec *s, bool typed, const attn_options *device, const verify_options *verify) {
    workload w;
    tested t = { .explanation = ATTN_EXPLANATION_INIT };
    if (!open_context(all, device) || !attn_cli_workload_make(s, &w)) return false;
    forward(all, &w, &t);
    bool done = t.status != ATTN_OK || attn_cli_verify(&w.problem, &w.args, &t.explanation, verify, &t.verdict);
    if (done && t.status == ATTN_OK) t.stray += attn_cli_workload_stray(&w);
    if (done) record(all, s, typed, &w, &t);
    attn_cli_workload_free(&w);
    double seconds = all->options->seconds > 0 ? all->options->seconds : 1;
    attn_cli_progress(&all->bar, (attn_cli_seconds() - all->begun) / seconds);
    return done;
}

/* ---- many ---- */
static const verify_options brief = { 8e6, 4e6, 1, true };

static bool test_types(totals *all, spec s, const verify_options *verify) {
    attn_type only = all->options->type;
    bool open = s.type_q == ATTN_NONE;
    s.seed = all->options->seed;
    for (attn_type type = ATTN_F32; type <= ATTN_BF16; type++) {
        spec typed = s;
        if (open ? only != ATTN_NONE && type != only : type != ATTN_F32) continue; /* a case with types of its own runs once */
        attn_cli_case_type(&typed, type, false);
        if (!test(all, &typed, open, &all->options->device, verify)) return false;
    }
    return true;
}

static bool test_random(totals *all, uint64_t seed, uint64_t index, const verify_options *verify) {
    spec s = attn_cli_random_case(seed, index);
    if (all->options->type) attn_cli_case_type(&s, all->options->type, true);
    attn_options device = drawn_options(&all->options->device, &s);
    return test(all, &s, false, &device, verify);
}

static bool test_until(totals *all, uint64_t seed) {
    bool done = true;
    for (uint64_t index = 0; done && attn_cli_seconds() - all->begun < all->options->seconds; index++)
        done = test_random(all, seed, index, &brief);
    return done;
}

static bool test_listed(totals *all) {
    const spec *specs;
    spec small;
    bool done = true;
    for (int i = 0, count = attn_cli_shapes(&specs); done && i < count; i++) {
        attn_cli_case_small(&specs[i], &small);
        done = test_types(all, small, &brief);
    }
    for (int i = 0, count = attn_cli_edges(&specs); done && i < count; i++) done = test_types(all, specs[i], &brief);
    return done;
}

static bool test_named(totals *all) {
    const verify_options thorough = VERIFY_OPTIONS_INIT;
    uint64_t seed = 0, index = 0;
    bool one = false;
    spec s;
    if (parse_random(all->options->name, &seed, &index, &one))
        return one ? test_random(all, seed, index, &thorough) : test_until(all, seed);
    return attn_cli_case(all->options->name, &s) && test_types(all, s, &thorough);
}

static void print_head(const totals *all) {
    attn_description d = ATTN_DESCRIPTION_INIT;
    if (attn_describe(all->context, &d) != ATTN_OK) return;
    printf("attn %s, device %s, isa %s, precision %s, threads %d, seed %llu\n", attn_version(), d.device, d.isa ? d.isa : "none",
           attn_cli_precision(all->options->device.precision), d.threads, (unsigned long long)all->options->seed);
}

static bool report(totals *all) {
    double seconds = attn_cli_seconds() - all->begun;
    attn_description d = ATTN_DESCRIPTION_INIT;
    if (!all->options->json) {
        if (all->worst > 0) printf("largest error/bound among what passed: %.3g (%s)\n", all->worst, all->worst_case);
        printf("%lld passed, %lld failed\n", (long long)all->passed, (long long)all->failed);
        return true;
    }
    if (!open_context(all, &all->options->device) || !attn_cli_ok(attn_describe(all->context, &d))) return false;
    return attn_cli_json_print(json_pack(
        "{s:s,s:s,s:s,s:s?,s:s,s:i,s:I,s:f,s:I,s:I,s:o,s:s,s:O,s:O}", "command", "check", "version", attn_version(), "device", d.device,
        "isa", d.isa, "precision", attn_cli_precision(all->options->device.precision), "threads", d.threads, "seed",
        (json_int_t)all->options->seed, "seconds", seconds, "passed", (json_int_t)all->passed, "failed", (json_int_t)all->failed,
        "worst_ratio", attn_cli_json_real(all->worst), "worst_case", all->worst_case, "cases", all->cases, "failures", all->failures));
}

static int list_names(void) {
    const spec *specs;
    for (int i = 0, count = attn_cli_shapes(&specs); i < count; i++) printf("%s\n%s.small\n", specs[i].name, specs[i].name);
    for (int i = 0, count = attn_cli_edges(&specs); i < count; i++) printf("%s\n", specs[i].name);
    printf("random:SEED\nrandom:SEED:INDEX\n");
    return CLI_GOOD;
}

int attn_cli_check(int argc, char **argv) {
    check_options o = { .device = ATTN_OPTIONS_INIT, .seconds = 10 };
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return CLI_BAD;
    if (o.list) return list_names();
    if (!o.has_seed) o.seed = attn_cli_entropy();
    uint64_t index;
    bool one;
    if (o.name) parse_random(o.name, &o.seed, &index, &one); /* such a name brings its own seed */
    totals all = { .options = &o, .begun = attn_cli_seconds(), .failures = json_array(), .cases = json_array() };
    bool done = open_context(&all, &o.device);
    if (done && !o.json) print_head(&all);
    attn_cli_progress_begin(&all.bar, "checking");
    if (done && o.name)
        done = test_named(&all);
    else if (done)
        done = test_listed(&all) && test_until(&all, o.seed);
    attn_cli_progress_end(&all.bar);
    if (done) done = report(&all);
    attn_close(all.context);
    json_decref(all.failures);
    json_decref(all.cases);
    return !done ? CLI_BAD : all.failed ? CLI_MISMATCH : CLI_GOOD;
}
