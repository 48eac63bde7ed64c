/* progress.c: the bar. */
#include "progress.h"
#include <stdio.h>
#include <unistd.h>

void attn_cli_progress_begin(progress *bar, const char *what) { *bar = (progress){ what, attn_cli_seconds(), 0, isatty(STDERR_FILENO) }; }

void attn_cli_progress(progress *bar, double share) {
    enum { WIDTH = 40 };
    static const char full[] = "########################################";
    if (!bar->terminal) return;
    double now = attn_cli_seconds();
    if (now - bar->begun < 1 || now - bar->drawn < 0.1) return;
    if (share < 0) share = 0;
    if (share > 1) share = 1;
    int done = (int)(share * WIDTH);
    fprintf(stderr, "\r%s [%.*s%*s] %3d %%\033[K", bar->what, done, full, WIDTH - done, "", (int)(share * 100));
    fflush(stderr);
    bar->drawn = now;
}

void attn_cli_progress_end(progress *bar) {
    if (bar->drawn > 0) fputs("\r\033[K", stderr);
    bar->drawn = 0;
}
