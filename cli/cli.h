/* cli.h: what every file of the command shares: exit codes, the one way to complain, memory, and the list of sub-commands. */
#ifndef ATTN_CLI_H
#define ATTN_CLI_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <attn/attn.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLI_GOOD = 0, CLI_MISMATCH = 1, CLI_BAD = 2 };

/* The sub-commands: each takes its own argv ("attn run", ...) and returns an exit code. */
int attn_cli_run(int argc, char **argv);
int attn_cli_check(int argc, char **argv);
int attn_cli_bench(int argc, char **argv);
int attn_cli_info(int argc, char **argv);
int attn_cli_explain(int argc, char **argv);

/* Prints "attn run: ..." on stderr, one line; returns false, so that a caller can `return attn_cli_error(...)`. */
bool attn_cli_error(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* The same with the library's own words; true where status is ATTN_OK. */
bool attn_cli_ok(attn_status status);
void attn_cli_name(const char *name); /* "attn run": what messages begin with */

/* 64-byte aligned, never NULL for 0 bytes; large blocks are 2 MB aligned and ask for huge pages. NULL after a complaint. */
void *attn_cli_memory(size_t bytes);
double attn_cli_seconds(void); /* a monotonic clock */
#endif
