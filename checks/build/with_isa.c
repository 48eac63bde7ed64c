/* with_isa ISA PROGRAM ARGUMENT...: runs the program with ATTN_ISA set, or skips (77) by name where this machine cannot run that ISA. */
#include "attn/attn.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SKIP = 77 };

static int has_word(const char *words, const char *word) {
    size_t length = strlen(word);
    for (const char *at = words; (at = strstr(at, word)) != NULL; at += length)
        if ((at == words || at[-1] == ' ') && (at[length] == ' ' || at[length] == '\0')) return 1;
    return 0;
}

int main(int count, char **arguments) {
    if (count < 3) return fprintf(stderr, "usage: with_isa ISA PROGRAM ARGUMENT...\n"), 2;
    attn_context *context;
    attn_description description = ATTN_DESCRIPTION_INIT;
    unsetenv("ATTN_ISA");
    if (attn_open(&context, NULL) != ATTN_OK || attn_describe(context, &description) != ATTN_OK) return fprintf(stderr, "cannot open\n"), 1;
    int usable = has_word(description.isas, arguments[1]);
    if (!usable) printf("skipped: this machine or build has no %s, only: %s\n", arguments[1], description.isas);
    attn_close(context);
    if (!usable) return SKIP;

    /* The cap must lead to just this one, else the run below would check something else. */
    setenv("ATTN_ISA", arguments[1], 1);
    if (attn_open(&context, NULL) != ATTN_OK || attn_describe(context, &description) != ATTN_OK) return fprintf(stderr, "cannot open\n"), 1;
    int chosen = strcmp(description.isa, arguments[1]) == 0;
    if (!chosen) fprintf(stderr, "ATTN_ISA=%s leads to %s\n", arguments[1], description.isa);
    attn_close(context);
    if (!chosen) return 1;
    execvp(arguments[2], arguments + 2);
    perror(arguments[2]);
    return 1;
}
