/* inputs.h: the tensors of attn run, read from files and made into a problem and its arguments. */
#ifndef ATTN_CLI_INPUTS_H
#define ATTN_CLI_INPUTS_H
#include "options.h"
#include "tensor.h"

enum { INPUT_Q, INPUT_K, INPUT_V, INPUT_MASK, INPUT_SINKS, INPUT_SLOPES, INPUT_LEN_Q, INPUT_LEN_KV, INPUTS };

typedef struct inputs {
    tensor tensors[INPUTS];
    place places[INPUTS]; /* for messages: the option where one was given, else the name in the file with all */
    attn_layout layout;
    attn_problem problem;
    attn_args args; /* all but the outputs */
} inputs;

const char *attn_cli_input_option(int input); /* "-q", "--len-kv" */
/* `all` may be NULL; an entry of `files` wins over the tensor in `all`. False after a complaint; free them in any case. */
bool attn_cli_inputs_read(inputs *inputs, const char *all, const char *const files[INPUTS], const problem_options *options);
void attn_cli_inputs_free(inputs *inputs);
#endif
