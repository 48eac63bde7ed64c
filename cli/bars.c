/* bars.c: the bars of the page: for each case and type the speed of libattn and of its peers as a share of the ceiling, which is the grey
 * track behind each bar. Across, in percent: as wide as the screen. */
#include "bench.h"
#include "convert.h"
#include "report.h"
#include <string.h>

enum { STEP = 20, BAR = 12, NAME_MOST = 13 };

/* A name cut to what fits beside a bar, at a whole character of UTF-8. */
static void cut(const char *name, char *text, size_t size) {
    size_t used = 0, characters = 0;
    for (; name[used] && used + 8 < size; used++)
        if (((unsigned char)name[used] & 0xc0) != 0x80 && characters++ == NAME_MOST) break;
    snprintf(text, size, "%.*s%s", (int)used, name, name[used] ? "\xe2\x80\xa6" : "");
}

typedef struct bar {
    const char *name, *class, *type;
    double seconds, ratio; /* ratio 0: of ours */
} bar;

static void draw_bar(FILE *to, const bar *b, double floor, double most, int line) {
    char name[80], time[32];
    double share = floor / b->seconds;
    int y = line * STEP;
    cut(b->name, name, sizeof name);
    attn_cli_time_text(b->seconds, time, sizeof time);
    fputs("<g><title>", to);
    attn_cli_text(to, "%s: %s, share of the ceiling %.3f", b->name, time, share);
    fputs("</title>", to);
    fprintf(to, "<rect class=\"ceiling\" x=\"0\" y=\"%d\" width=\"%.2f%%\" height=\"%d\" rx=\"2\"/>", y, 100 / most, BAR);
    fprintf(to, "<rect class=\"%s\" x=\"0\" y=\"%d\" width=\"%.2f%%\" height=\"%d\" rx=\"2\"/>", b->class, y, 100 * share / most, BAR);
    fprintf(to, "<text x=\"-8\" y=\"%d\" text-anchor=\"end\">", y + 10);
    attn_cli_text(to, "%s", name);
    fprintf(to, "</text><text x=\"100%%\" dx=\"8\" y=\"%d\">", y + 10);
    attn_cli_text(to, "%s", time);
    fputs("</text><text class=\"soft\" x=\"100%\" dx=\"110\" ", to);
    fprintf(to, "y=\"%d\" text-anchor=\"end\">", y + 10);
    if (b->ratio > 0)
        attn_cli_text(to, b->ratio < 9.95 ? "%.1f\xc3\x97" : "%.3g\xc3\x97", b->ratio);
    else
        attn_cli_text(to, "%.0f %%", 100 * share);
    fputs("</text></g>\n", to);
}

static double most_share(const report *r, const row *w) {
    double most = w->timing.share > 1 ? w->timing.share : 1;
    int at = -1;
    for (const peer *p; (p = attn_cli_peer_of(r, w, at, &at));)
        if (w->timing.floor / p->seconds > most) most = w->timing.floor / p->seconds;
    return most;
}

static void draw_row(FILE *to, const report *r, const row *w, int id) {
    char floor[32];
    const char *type = attn_cli_type(w->type);
    int lines = 1, at = -1;
    const ceiling_kind *kinds;
    attn_cli_ceilings(&kinds);
    fprintf(to, "<h4>%s", type);
    if (!w->timed) {
        fputs("<span class=\"warn\">MISMATCH: not timed</span></h4>\n", to);
        return;
    }
    while (attn_cli_peer_of(r, w, at, &at)) lines++;
    attn_cli_time_text(w->timing.floor, floor, sizeof floor);
    fputs("<span>", to);
    attn_cli_text(to, "floor %s, %s", floor, kinds[w->timing.ceiling].title);
    fputs("</span></h4>\n<div class=\"bars\">", to);
    fprintf(to, "<svg width=\"100%%\" height=\"%d\" role=\"img\" aria-labelledby=\"bars-%d\">\n<title id=\"bars-%d\">", lines * STEP - 4,
            id, id);
    attn_cli_text(to, "%s %s: speed as a share of the ceiling", w->name, type);
    fputs("</title>\n", to);
    char class[16];
    snprintf(class, sizeof class, "ours %s", type);
    double most = most_share(r, w);
    draw_bar(to, &(bar){ "attn", class, type, w->timing.median, 0 }, w->timing.floor, most, 0);
    at = -1;
    for (int line = 1; line < lines; line++) {
        const peer *p = attn_cli_peer_of(r, w, at, &at);
        draw_bar(to, &(bar){ p->name, "peer", type, p->seconds, attn_cli_ratio(r, w, p) }, w->timing.floor, most, line);
    }
    fprintf(to, "<line class=\"limit\" x1=\"%.2f%%\" x2=\"%.2f%%\" y1=\"-3\" y2=\"%d\"/></svg></div>\n", 100 / most, 100 / most,
            lines * STEP - 5);
}

void attn_cli_page_bars(FILE *to, const report *r) {
    fputs("<section>\n<h2>Case by case</h2>\n<p class=\"soft\">Speed as a share of the machine\xe2\x80\x99s ceiling: longer is faster, and "
          "the "
          "line at the end of the grey track is the floor, the least time that the ceiling allows.",
          to);
    if (r->peers.root) fputs(" Beside a peer: its time, and how many times ours that is.", to);
    fputs("</p>\n<div class=\"cards\">\n", to);
    for (int i = 0; i < r->count; i++) {
        const row *w = &r->rows[i];
        bool first = i == 0 || strcmp(r->rows[i - 1].name, w->name) != 0,
             last = i + 1 == r->count || strcmp(r->rows[i + 1].name, w->name) != 0;
        if (first) {
            fputs("<article class=\"card\"><h3>", to);
            attn_cli_text(to, "%s", w->name);
            fputs("</h3>\n<span class=\"soft\">", to);
            attn_cli_text(to, "%s", strcmp(w->name, w->shape) != 0 ? w->shape : "");
            fputs("</span>\n", to);
        }
        draw_row(to, r, w, i);
        if (last) fputs("</article>\n", to);
    }
    fputs("</div>\n</section>\n", to);
}
