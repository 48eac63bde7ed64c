/* progress.h: a bar on the terminal for what takes longer than a second. Nothing is drawn where stderr is no terminal. */
#ifndef ATTN_CLI_PROGRESS_H
#define ATTN_CLI_PROGRESS_H
#include "cli.h"

typedef struct progress {
    const char *what;
    double begun, drawn; /* seconds; drawn is 0 until something is on the screen */
    bool terminal;
} progress;
void attn_cli_progress_begin(progress *bar, const char *what);
void attn_cli_progress(progress *bar, double share); /* 0 to 1; cheap to call often */
void attn_cli_progress_end(progress *bar);           /* wipes it off */
#endif
