/* options.h: options that several sub-commands share, as argp parsers to be put among an argp's children, and the words behind them. */
#ifndef ATTN_CLI_OPTIONS_H
#define ATTN_CLI_OPTIONS_H
#include "cli.h"
#include <argp.h>

/* --device --isa --precision --threads --passes --chunk; the child's input is an attn_options that ATTN_OPTIONS_INIT set up. */
extern const struct argp attn_cli_device_argp;

/* --causal --align --offset --window --scale --softcap --layout --type-out; the child's input is a problem_options of zeros. */
extern const struct argp attn_cli_problem_argp;

typedef struct problem_options {
    bool has_causal, has_align, has_offset, has_window, has_scale, has_softcap, has_layout, has_type_out;
    bool causal;
    attn_align align;
    int64_t offset, left, right;
    float scale, softcap;
    attn_layout layout;
    attn_type type_out;
} problem_options;

/* One of them by its name without dashes; `text` is NULL where an optional value is missing. NULL, or the rule that is broken. */
const char *attn_cli_problem_option(problem_options *options, const char *key, const char *text);
/* What `more` has and `options` has not. */
void attn_cli_problem_merge(problem_options *options, const problem_options *more);
/* All but the layout, which strides depend on: into a problem of full sizes. */
void attn_cli_problem_apply(const problem_options *options, attn_problem *problem);

/* The sizes of --shape "B,Hq/Hkv,Lq,Lk,D[/Dv][,causal[=ALIGN]]". */
typedef struct shape_option {
    int64_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v;
    bool causal;
    attn_align align;
} shape_option;
bool attn_cli_shape_parse(const char *text, shape_option *shape);

bool attn_cli_int_parse(const char *text, int64_t *value); /* the whole text, decimal */
bool attn_cli_real_parse(const char *text, double *value); /* the whole text; infinities and NaN too */
const char *attn_cli_device(attn_device device);           /* "cpu", "reference" */
const char *attn_cli_align(attn_align align);              /* "top-left", "bottom-right" */
const char *attn_cli_precision(attn_precision precision);  /* "exact", "fast" */
attn_context *attn_cli_open(const attn_options *options);  /* NULL after a complaint */
/* The device options as a command line would spell them, each with a space in front; those that stand at their defaults left out. */
void attn_cli_device_text(const attn_options *options, char *text, size_t size);
#endif
