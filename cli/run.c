/* run.c: attn run: tensors from files to the attention's output in a file, verified and explained on request. */
#include "convert.h"
#include "inputs.h"
#include "mirror.h"
#include "options.h"
#include "report.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct run_options {
    attn_options device;
    problem_options problem;
    const char *files[INPUTS], *all, *out, *lse; /* one file each, or one with all */
    bool verify, explain, json;
} run_options;

enum { KEY_LSE = 300, KEY_VERIFY, KEY_EXPLAIN, KEY_JSON, KEY_INPUT = 400 };

static const struct argp_option options[] = {
    { "q", 'q', "FILE", 0, "Queries", 1 },
    { "k", 'k', "FILE", 0, "Keys", 1 },
    { "v", 'v', "FILE", 0, "Values", 1 },
    { "output", 'o', "FILE", 0, "The attention's output", 1 },
    { "lse", KEY_LSE, "FILE", 0, "Write the log of each row's sum of exp(score) too", 2 },
    { "mask", KEY_INPUT + INPUT_MASK, "FILE", 0, "bool or u8 (true: takes part), or a float type (added to the scores)", 2 },
    { "sinks", KEY_INPUT + INPUT_SINKS, "FILE", 0, "One more score a query head, that has no value", 2 },
    { "slopes", KEY_INPUT + INPUT_SLOPES, "FILE", 0, "ALiBi slopes, one a query head", 2 },
    { "len-q", KEY_INPUT + INPUT_LEN_Q, "FILE", 0, "Rows of each sequence, i32 or i64", 2 },
    { "len-kv", KEY_INPUT + INPUT_LEN_KV, "FILE", 0, "Keys of each sequence, i32 or i64", 2 },
    { "verify", KEY_VERIFY, NULL, 0, "Compare with the reference; exit status 1 on a mismatch", 20 },
    { "explain", KEY_EXPLAIN, NULL, 0, "Say what ran, and why", 20 },
    { "json", KEY_JSON, NULL, 0, "Report as one JSON object", 20 },
    { 0 },
};

static void check_files(run_options *o, struct argp_state *state) {
    if (!o->out) argp_error(state, "-o: an output file must be given");
    if (!o->all)
        for (int i = INPUT_Q; i <= INPUT_V; i++)
            if (!o->files[i]) argp_error(state, "%s: a file must be given, or one .safetensors file with all", attn_cli_input_option(i));
    if (o->lse && attn_cli_output_same(o->lse, o->out)) argp_error(state, "--lse %s: is the file of -o", o->lse);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    run_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->problem;
        state->child_inputs[1] = &o->device;
        return 0;
    case 'q':
        o->files[INPUT_Q] = arg;
        return 0;
    case 'k':
        o->files[INPUT_K] = arg;
        return 0;
    case 'v':
        o->files[INPUT_V] = arg;
        return 0;
    case 'o':
        o->out = arg;
        return 0;
    case KEY_LSE:
        o->lse = arg;
        return 0;
    case KEY_VERIFY:
        o->verify = true;
        return 0;
    case KEY_EXPLAIN:
        o->explain = true;
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case ARGP_KEY_ARG:
        if (strcmp(arg, "top-left") == 0 || strcmp(arg, "bottom-right") == 0) argp_error(state, "%s: write --causal=%s", arg, arg);
        if (o->all) argp_error(state, "%s: one file at most can hold all tensors", arg);
        o->all = arg;
        return 0;
    case ARGP_KEY_END:
        check_files(o, state);
        return 0;
    default:
        if (key < KEY_INPUT || key >= KEY_INPUT + INPUTS) return ARGP_ERR_UNKNOWN;
        o->files[key - KEY_INPUT] = arg;
        return 0;
    }
}

static const struct argp_child children[] = { { &attn_cli_problem_argp, 0, "The problem:", 5 },
                                              { &attn_cli_device_argp, 0, "The device:", 10 },
                                              { 0 } };
static const struct argp argp = { options,
                                  parse,
                                  "-q FILE -k FILE -v FILE -o FILE\nFILE.safetensors -o FILE",
                                  "Computes attention on tensors in .npy or .safetensors files.\v"
                                  "q, k and v are f32, f16 or bf16 (in .npy: two-byte voids), of rank 4 in the layout, or of rank 3 or 2 "
                                  "without batch, or batch and heads. "
                                  "FILE.safetensors holds tensors named q, k, v and, where wanted, mask, sinks, slopes, len_q, len_kv; its "
                                  "metadata may have causal, align, "
                                  "offset, window, scale, softcap, layout. Options win over both.",
                                  children,
                                  NULL,
                                  NULL };

/* ---- the outputs ---- */
typedef struct results {
    tensor out, lse;
    output out_file, lse_file;
} results;

static element element_of(attn_type type) { return type == ATTN_F16 ? ELEMENT_F16 : type == ATTN_BF16 ? ELEMENT_BF16 : ELEMENT_F32; }

static bool make_tensor(tensor *t, element type, int rank, const int64_t *shape) {
    t->type = type;
    t->rank = rank;
    memcpy(t->shape, shape, (size_t)rank * sizeof *shape);
    if (!attn_cli_count(shape, rank, attn_cli_element_size(type), &t->count)) return attn_cli_error("-o: the output's sizes overflow");
    t->data = attn_cli_memory((size_t)t->count * attn_cli_element_size(type));
    return t->data != NULL;
}

/* out has q's rank; rows past len_q are 0 there and -inf in lse. */
static bool make_results(const inputs *in, results *r) {
    const attn_problem *p = &in->problem;
    int skip = 4 - in->tensors[INPUT_Q].rank;
    int64_t bhld[] = { p->batch, p->heads_q, p->len_q, p->dim_v }, blhd[] = { p->batch, p->len_q, p->heads_q, p->dim_v };
    const int64_t *shape = in->layout == ATTN_BLHD && skip < 2 ? blhd : bhld;
    if (!make_tensor(&r->out, element_of(p->type_out), 4 - skip, shape + skip)) return false;
    if (!make_tensor(&r->lse, ELEMENT_F32, 3 - skip, bhld + skip)) return false;
    memset(r->out.data, 0, (size_t)r->out.count * attn_cli_element_size(r->out.type));
    for (int64_t i = 0; i < r->lse.count; i++) ((float *)r->lse.data)[i] = -__builtin_inff();
    return true;
}

static bool write_results(const run_options *o, results *r) {
    if (!attn_cli_output_write(&r->out_file, &r->out)) return false;
    if (o->lse && !attn_cli_output_write(&r->lse_file, &r->lse)) {
        attn_cli_output_drop(&r->out_file);
        return false;
    }
    bool good = attn_cli_output_commit(&r->out_file);
    if (!o->lse) return good;
    if (good) return attn_cli_output_commit(&r->lse_file);
    attn_cli_output_drop(&r->lse_file);
    return false;
}

/* ---- the report ---- */
typedef struct outcome {
    double seconds;
    verdict verdict;
    attn_explanation explanation;
} outcome;

static bool report_json(const run_options *o, const inputs *in, const outcome *got) {
    json_t *json =
        json_pack("{s:s,s:s,s:s,s:s?,s:s,s:s,s:s?,s:o,s:f}", "command", "run", "version", attn_version(), "device",
                  attn_cli_device(o->device.device), "isa", got->explanation.isa, "precision", attn_cli_precision(o->device.precision),
                  "out", o->out, "lse", o->lse, "problem", attn_cli_json_problem(&in->problem), "seconds", got->seconds);
    if (json && o->verify) json_object_set_new(json, "verify", attn_cli_json_verdict(&in->problem, &in->args, &got->verdict));
    if (json && o->explain) json_object_set_new(json, "explain", attn_cli_json_explanation(&got->explanation));
    return attn_cli_json_print(json);
}

static void report_text(const run_options *o, const inputs *in, const outcome *got) {
    char shape[256], plan[128], time[32];
    const attn_problem *p = &in->problem;
    attn_cli_sizes_text(p, shape, sizeof shape);
    attn_cli_plan_text(&got->explanation, plan, sizeof plan);
    attn_cli_time_text(got->seconds, time, sizeof time);
    printf("%s: %s of shape %s in %s (%s: %s)\n", o->out, attn_cli_type(p->type_out), shape, time,
           got->explanation.isa ? got->explanation.isa : attn_cli_device(o->device.device), plan);
    if (o->explain) attn_cli_print_explanation(&got->explanation);
    if (o->verify) attn_cli_print_verdict(p, &in->args, &got->verdict);
}

static bool compute(attn_context *context, const run_options *o, inputs *in, outcome *got) {
    const verify_options verify = VERIFY_OPTIONS_INIT;
    if (!attn_cli_ok(attn_explain(context, &in->problem, &got->explanation))) return false;
    double begun = attn_cli_seconds();
    if (!attn_cli_ok(attn_cli_forward(context, &in->problem, &in->args))) return false;
    got->seconds = attn_cli_seconds() - begun;
    return !o->verify || attn_cli_verify(&in->problem, &in->args, &got->explanation, &verify, &got->verdict);
}

static int run(const run_options *o, attn_context *context, inputs *in, results *r) {
    outcome got = { .explanation = ATTN_EXPLANATION_INIT };
    if (!make_results(in, r)) return CLI_BAD;
    in->args.out = r->out.data;
    in->args.lse = r->lse.data;
    if (!compute(context, o, in, &got) || !write_results(o, r)) return CLI_BAD;
    if (!o->json)
        report_text(o, in, &got);
    else if (!report_json(o, in, &got))
        return CLI_BAD;
    return o->verify && !attn_cli_passed(&got.verdict) ? CLI_MISMATCH : CLI_GOOD;
}

int attn_cli_run(int argc, char **argv) {
    run_options o = { .device = ATTN_OPTIONS_INIT };
    inputs in = { 0 };
    results r = { 0 };
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return CLI_BAD;
    if (!attn_cli_output_check(&r.out_file, "-o", o.out, "out")) return CLI_BAD;
    if (o.lse && !attn_cli_output_check(&r.lse_file, "--lse", o.lse, "lse")) return CLI_BAD;
    int code = CLI_BAD;
    attn_context *context = attn_cli_open(&o.device);
    if (context && attn_cli_inputs_read(&in, o.all, o.files, &o.problem)) code = run(&o, context, &in, &r);
    attn_close(context);
    attn_cli_inputs_free(&in);
    attn_cli_tensor_free(&r.out);
    attn_cli_tensor_free(&r.lse);
    return code;
}
