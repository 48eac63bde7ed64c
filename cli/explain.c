/* explain.c: attn explain: what would run for a shape, and why. */
#include "convert.h"
#include "options.h"
#include "report.h"
#include "workload.h"
#include <stdio.h>
#include <string.h>

typedef struct explain_options {
    attn_options device;
    problem_options problem;
    spec spec;
    bool has_spec, json;
    attn_type type, type_mask;
} explain_options;

enum { KEY_SHAPE = 300, KEY_CASE, KEY_TYPE, KEY_MASK, KEY_JSON };

static const struct argp_option options[] = {
    { "shape", KEY_SHAPE, "SHAPE", 0, "B,Hq/Hkv,Lq,Lk,D[/Dv][,causal[=ALIGN]]", 1 },
    { "case", KEY_CASE, "NAME", 0, "A case by name, as attn bench and attn check have them", 1 },
    { "type", KEY_TYPE, "TYPE", 0, "f32 (the default), f16 or bf16", 1 },
    { "mask", KEY_MASK, "TYPE", 0, "With a mask of all four axes: bool, f32, f16 or bf16", 1 },
    { "json", KEY_JSON, NULL, 0, "Report as one JSON object", 20 },
    { 0 },
};

static void set_shape(explain_options *o, const char *text, struct argp_state *state) {
    if (o->has_spec) argp_error(state, "%s: one shape or case at a time", text);
    o->has_spec = true;
    if (!attn_cli_shape_spec(text, &o->spec)) argp_error(state, "--shape %s: must be B,Hq/Hkv,Lq,Lk,D[/Dv][,causal[=ALIGN]]", text);
}

static error_t parse(int key, char *arg, struct argp_state *state) {
    explain_options *o = state->input;
    switch (key) {
    case ARGP_KEY_INIT:
        state->child_inputs[0] = &o->problem;
        state->child_inputs[1] = &o->device;
        return 0;
    case KEY_SHAPE:
    case ARGP_KEY_ARG:
        set_shape(o, arg, state);
        return 0;
    case KEY_CASE:
        if (o->has_spec) argp_error(state, "%s: one shape or case at a time", arg);
        o->has_spec = true;
        if (!attn_cli_case(arg, &o->spec)) argp_error(state, "--case %s: no such case (attn check --list names them)", arg);
        return 0;
    case KEY_TYPE:
        if (!attn_cli_type_parse(arg, &o->type)) argp_error(state, "--type %s: must be f32, f16 or bf16", arg);
        return 0;
    case KEY_MASK:
        o->type_mask = ATTN_BOOL;
        if (strcmp(arg, "bool") != 0 && !attn_cli_type_parse(arg, &o->type_mask))
            argp_error(state, "--mask %s: must be bool, f32, f16 or bf16", arg);
        return 0;
    case KEY_JSON:
        o->json = true;
        return 0;
    case ARGP_KEY_END:
        if (!o->has_spec) argp_error(state, "--shape or --case must be given");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static const struct argp_child children[] = { { &attn_cli_problem_argp, 0, "The problem:", 5 },
                                              { &attn_cli_device_argp, 0, "The device:", 10 },
                                              { 0 } };
static const struct argp argp = { options, parse, "[SHAPE]", "Tells what would run for a shape, and why.", children, NULL, NULL };

int attn_cli_explain(int argc, char **argv) {
    explain_options o = { .device = ATTN_OPTIONS_INIT, .type = ATTN_F32 };
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_problem problem;
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return CLI_BAD;
    attn_cli_case_type(&o.spec, o.type, false);
    if (o.problem.has_layout) o.spec.layout = o.problem.layout;
    if (o.type_mask) o.spec.mask = o.type_mask, o.spec.axes = AXIS_BATCH | AXIS_HEAD | AXIS_ROW | AXIS_KEY;
    attn_cli_case_problem(&o.spec, &problem);
    attn_cli_problem_apply(&o.problem, &problem);
    attn_context *context = attn_cli_open(&o.device);
    bool good = context && attn_cli_ok(attn_explain(context, &problem, &explanation));
    if (good && o.json) {
        json_t *json = attn_cli_json_explanation(&explanation);
        if (json) {
            json_object_set_new(json, "command", json_string("explain"));
            json_object_set_new(json, "version", json_string(attn_version()));
            json_object_set_new(json, "precision", json_string(attn_cli_precision(o.device.precision)));
            json_object_set_new(json, "problem", attn_cli_json_problem(&problem));
        }
        good = attn_cli_json_print(json);
    } else if (good) {
        attn_cli_print_explanation(&explanation);
    }
    attn_close(context);
    return good ? CLI_GOOD : CLI_BAD;
}
