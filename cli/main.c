/* main.c: finds the sub-command and runs it; the shared odds and ends of cli.h. */
#include "cli.h"
#include <argp.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static const char *program = "attn";

void attn_cli_name(const char *name) { program = name; }

bool attn_cli_error(const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s: ", program);
    vfprintf(stderr, format, list);
    fputc('\n', stderr);
    va_end(list);
    return false;
}

bool attn_cli_ok(attn_status status) {
    if (status == ATTN_OK) return true;
    if (status == ATTN_ERROR_PLUGIN || status == ATTN_ERROR_DRIVER)
        return attn_cli_error("%s: %s", attn_status_text(status), attn_failure());
    return attn_cli_error("%s", attn_status_text(status));
}

void *attn_cli_memory(size_t bytes) {
    enum { HUGE_PAGE = 1 << 21 };
    size_t align = bytes >= 2 * (size_t)HUGE_PAGE ? HUGE_PAGE : 64;
    size_t size = bytes == 0 ? align : bytes;
    if (size > SIZE_MAX - align) size = 0;
    void *memory = size ? aligned_alloc(align, (size + align - 1) / align * align) : NULL;
    if (!memory) attn_cli_error("memory: no %zu bytes to be had", bytes);
#ifdef MADV_HUGEPAGE
    else if (align == HUGE_PAGE)
        madvise(memory, bytes, MADV_HUGEPAGE); /* a wish: failing costs speed only */
#endif
    return memory;
}

double attn_cli_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void print_version(FILE *stream, struct argp_state *state) {
    (void)state;
    fprintf(stream, "attn %s\n", attn_version());
}

static const struct {
    const char *name, *title;
    int (*run)(int, char **);
} commands[] = {
    { "run", "attn run", attn_cli_run },    { "check", "attn check", attn_cli_check },       { "bench", "attn bench", attn_cli_bench },
    { "info", "attn info", attn_cli_info }, { "explain", "attn explain", attn_cli_explain },
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const char top_doc[] = "Exact scaled dot-product attention.\v"
                              "Commands (each has its own --help):\n"
                              "  run      attention on tensors in .npy or .safetensors files, verified with --verify\n"
                              "  check    listed and random problems against the reference\n"
                              "  bench    verify, then time; a share of the machine's measured ceiling\n"
                              "  info     version, devices, instruction sets, threads; the ceilings with --measure\n"
                              "  explain  what would run for a shape, and why\n"
                              "\n"
                              "Exit status: 0 good, 1 a mismatch was found, 2 bad usage or input. The manual page is attn(1).";

/* The first word that is no option is the sub-command; what stands after it is not looked at here. */
static error_t parse_top(int key, char *arg, struct argp_state *state) {
    if (key == ARGP_KEY_ARG) {
        for (int i = 0; i < COMMANDS; i++) {
            if (strcmp(arg, commands[i].name) != 0) continue;
            *(int *)state->input = i;
            state->next = state->argc;
            return 0;
        }
        argp_error(state, "%s: no such command", arg);
    } else if (key == ARGP_KEY_NO_ARGS) {
        argp_error(state, "a command must be given");
    } else {
        return ARGP_ERR_UNKNOWN;
    }
    return 0;
}

int main(int argc, char **argv) {
    static const struct argp top = { NULL, parse_top, "COMMAND [OPTION...]", top_doc, NULL, NULL, NULL };
    static char name[] = "attn";
    argp_err_exit_status = CLI_BAD;
    argp_program_version_hook = print_version;
    if (argc < 1) return CLI_BAD;
    signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error to report */
    argv[0] = name;
    int command = -1, first = 1;
    while (first < argc && argv[first][0] == '-') first++;
    int words = first < argc ? first + 1 : argc; /* hide the sub-command's own options from this parser */
    if (argp_parse(&top, words, argv, ARGP_IN_ORDER, NULL, &command) != 0 || command < 0) return CLI_BAD;
    attn_cli_name(commands[command].title);
    char title[32];
    snprintf(title, sizeof title, "%s", commands[command].title);
    argv[first] = title;
    int code = commands[command].run(argc - first, argv + first);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        attn_cli_error("standard output: %s", strerror(errno));
        return CLI_BAD;
    }
    return code;
}
