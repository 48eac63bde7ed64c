/* report.h: results in words and as JSON. */
#ifndef ATTN_CLI_REPORT_H
#define ATTN_CLI_REPORT_H
#include "verify.h"
#include <jansson.h>

/* JSON has no infinities and no NaN: these become the strings "inf", "-inf" and "nan". */
json_t *attn_cli_json_real(double value);
json_t *attn_cli_json_verdict(const attn_problem *problem, const attn_args *args, const verdict *verdict);
json_t *attn_cli_json_problem(const attn_problem *problem);
json_t *attn_cli_json_explanation(const attn_explanation *explanation);
/* Prints it and gives it up. False after a complaint: no memory for it, or an entry could not be made. */
bool attn_cli_json_print(json_t *json);

void attn_cli_print_verdict(const attn_problem *problem, const attn_args *args, const verdict *verdict);
void attn_cli_print_explanation(const attn_explanation *explanation);
/* "1,32/2,1,1024,128": a problem's sizes as --shape takes them. */
void attn_cli_sizes_text(const attn_problem *problem, char *text, size_t size);
/* "thin, 2 passes, 32 chunks of 512 keys, 2 threads". */
void attn_cli_plan_text(const attn_explanation *explanation, char *text, size_t size);
void attn_cli_time_text(double seconds, char *text, size_t size); /* "12.3 us" */
#endif
