/* html.c: the page of attn bench --html: one file without scripts or anything from elsewhere, well-formed as XML too. Text of any origin
 * goes through attn_cli_text. */
#include "bench.h"
#include "convert.h"
#include "options.h"
#include "report.h"
#include <stdarg.h>
#include <string.h>

void attn_cli_text(FILE *to, const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (const char *at = text; *at; at++) {
        if (*at == '<')
            fputs("&lt;", to);
        else if (*at == '>')
            fputs("&gt;", to);
        else if (*at == '&')
            fputs("&amp;", to);
        else if (*at == '"')
            fputs("&quot;", to);
        else if (*at == '\'')
            fputs("&#39;", to);
        else
            fputc((unsigned char)*at < ' ' ? ' ' : *at, to);
    }
}

static const char *isa_of(const report *r) { return r->description.isa ? r->description.isa : r->description.device; }

double attn_cli_page_ceiling(const report *r, int i) {
    double sum = 0;
    int count = 0;
    for (int n = 0; n < r->count; n++)
        if (r->rows[n].timed && r->rows[n].timing.value[i] > 0) sum += r->rows[n].timing.value[i], count++;
    return count ? sum / count : 0;
}

/* ---- the head ---- */
static void write_head(FILE *to, const report *r) {
    fputs("<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>",
          to);
    attn_cli_text(to, "attn bench: %s, %s, threads %d", *r->machine ? r->machine : "this machine", isa_of(r), r->description.threads);
    fputs("</title>\n", to);
    attn_cli_page_style(to);
    fputs("</head>\n<body>\n<main>\n<header>\n<h1>libattn against this machine\xe2\x80\x99s ceilings</h1>\n<p class=\"soft\">", to);
    attn_cli_text(to, "%s%sattn %s, device %s, instruction set %s, precision %s, threads %d", r->machine, *r->machine ? ". " : "",
                  attn_version(), r->description.device, isa_of(r), attn_cli_precision(r->precision), r->description.threads);
    fputs("</p>\n", to);
}

static void tile(FILE *to, const char *name, const char *value, const char *more) {
    fputs("<div class=\"tile\"><dt>", to);
    attn_cli_text(to, "%s", name);
    fputs("</dt><dd>", to);
    attn_cli_text(to, "%s", value);
    if (*more) {
        fputs("<span>", to);
        attn_cli_text(to, "%s", more);
        fputs("</span>", to);
    }
    fputs("</dd></div>\n", to);
}

static void write_tiles(FILE *to, const report *r, const summary *s) {
    char value[64], more[256];
    const ceiling_kind *kinds;
    fputs("<dl class=\"tiles\">\n", to);
    for (int i = 0, count = attn_cli_ceilings(&kinds); i < count; i++) {
        double rate = attn_cli_page_ceiling(r, i);
        if (rate <= 0) continue;
        snprintf(value, sizeof value, "%.*f %s", rate < 1e12 ? 1 : 0, rate * 1e-9, kinds[i].unit);
        tile(to, kinds[i].title, value, "measured ceiling");
    }
    if (s->timed) {
        snprintf(value, sizeof value, "%.2f", s->share_median);
        snprintf(more, sizeof more, "least %.2f (%s %s)", s->share_least, s->share_at->name, attn_cli_type(s->share_at->type));
        tile(to, "Share of the ceiling, median", value, more);
    }
    if (s->compared) {
        snprintf(value, sizeof value, "%.2f\xc3\x97", s->ratio_median);
        snprintf(more, sizeof more, "least %.2f (%s %s, %s)", s->ratio_least, s->ratio_at->name, attn_cli_type(s->ratio_at->type),
                 s->peer_at->name);
        tile(to, "Fastest peer\xe2\x80\x99s time to ours, median", value, more);
    }
    fputs("</dl>\n</header>\n", to);
}

/* ---- tables: on a narrow screen every row becomes a card, and its cells carry their own labels ---- */
static const char *const our_columns[] = { "Case",  "Type",          "Median",         "Rate", "Ceiling",        "Floor",
                                           "Share", "Error / bound", "Relative error", "Runs", "Copies of k, v", "Plan" };
static const char *const peer_columns[] = { "Case", "Type", "Peer", "Version", "Median", "Ratio", "Relative error", "Our error", "Note" };

static void begin_table(FILE *to, const char *label, const char *const *columns, int count) {
    fputs("<table role=\"table\" aria-label=\"", to);
    attn_cli_text(to, "%s", label);
    fputs("\">\n<thead role=\"rowgroup\"><tr role=\"row\">", to);
    for (int i = 0; i < count; i++) {
        fputs("<th role=\"columnheader\" scope=\"col\">", to);
        attn_cli_text(to, "%s", columns[i]);
        fputs("</th>", to);
    }
    fputs("</tr></thead>\n<tbody role=\"rowgroup\">\n", to);
}

static void cell(FILE *to, const char *column, bool left, const char *text) {
    fprintf(to, "<td role=\"cell\"%s data-label=\"", left ? " class=\"left\"" : "");
    attn_cli_text(to, "%s", column);
    fputs("\">", to);
    attn_cli_text(to, "%s", text);
    fputs("</td>", to);
}

static void begin_row(FILE *to, const row *w) {
    fputs("<tr role=\"row\"><th role=\"rowheader\" scope=\"row\">", to);
    attn_cli_text(to, "%s", w->name);
    if (strcmp(w->name, w->shape) != 0) {
        fputs("<br/><span class=\"soft\">", to);
        attn_cli_text(to, "%s", w->shape);
        fputs("</span>", to);
    }
    fputs("</th>", to);
    cell(to, our_columns[1], true, attn_cli_type(w->type));
}

static void our_row(FILE *to, const row *w) {
    char text[sizeof our_columns / sizeof *our_columns][64] = { "", "", "MISMATCH", "-", "-", "-", "-" };
    const timing *t = &w->timing;
    const ceiling_kind *kinds;
    attn_cli_ceilings(&kinds);
    begin_row(to, w);
    if (w->timed) {
        const ceiling_kind *kind = &kinds[t->ceiling];
        attn_cli_time_text(t->median, text[2], sizeof text[2]);
        snprintf(text[3], sizeof text[3], "%.1f %s", (kind->types ? t->operations : t->bytes) / t->median * 1e-9, kind->unit);
        snprintf(text[4], sizeof text[4], "%s %.1f %s", kind->name, t->value[t->ceiling] * 1e-9, kind->unit);
        attn_cli_time_text(t->floor, text[5], sizeof text[5]);
        snprintf(text[6], sizeof text[6], "%.3f", t->share);
    }
    snprintf(text[7], sizeof text[7], "%.2f", w->verdict.out.any ? w->verdict.out.ratio : 0);
    snprintf(text[8], sizeof text[8], "%.1e", attn_cli_relative_error(&w->verdict));
    snprintf(text[9], sizeof text[9], "%lld", (long long)t->runs);
    snprintf(text[10], sizeof text[10], "%d", t->copies);
    for (int i = 2; i < 11; i++) cell(to, our_columns[i], false, text[i]);
    cell(to, our_columns[11], true, w->plan);
    fputs("</tr>\n", to);
}

static void peer_row(FILE *to, const report *r, const row *w, const peer *p) {
    char text[64];
    begin_row(to, w);
    cell(to, peer_columns[2], true, p->name);
    cell(to, peer_columns[3], true, p->version);
    attn_cli_time_text(p->seconds, text, sizeof text);
    cell(to, peer_columns[4], false, text);
    snprintf(text, sizeof text, "-");
    if (w->timed) snprintf(text, sizeof text, "%.2f%s", attn_cli_ratio(r, w, p), attn_cli_paired(r, p) ? " (paired)" : "");
    cell(to, peer_columns[5], false, text);
    snprintf(text, sizeof text, "%.1e", p->error);
    cell(to, peer_columns[6], false, text);
    snprintf(text, sizeof text, "%.1e", attn_cli_relative_error(&w->verdict));
    cell(to, peer_columns[7], false, text);
    cell(to, peer_columns[8], true, p->note);
    fputs("</tr>\n", to);
}

void attn_cli_page_tables(FILE *to, const report *r) {
    fputs(
        "<section>\n<h2>All figures</h2>\n<p class=\"soft\">Case: batch, query/key heads, rows, keys, dim. Floor: the least time that the "
        "ceiling allows. Error / bound: the worst element against the error bound that every result is held to; above 1 is a mismatch. "
        "Relative error: the largest error over the largest output.</p>\n",
        to);
    begin_table(to, "Timings of libattn", our_columns, sizeof our_columns / sizeof *our_columns);
    for (int i = 0; i < r->count; i++) our_row(to, &r->rows[i]);
    fputs("</tbody>\n</table>\n</section>\n", to);
    if (!r->peers.root) return;
    fputs("<section>\n<h2>Peers</h2>\n<p class=\"soft\">", to);
    attn_cli_text(to,
                  "Timed on: %s, threads %d. Ratio: the peer\xe2\x80\x99s time over ours; above 1 libattn is faster. Paired: the median of "
                  "ratios of runs that took turns.",
                  *r->peers.machine ? r->peers.machine : "a machine that is not stated", r->peers.threads);
    fputs("</p>\n", to);
    begin_table(to, "Timings of peers", peer_columns, sizeof peer_columns / sizeof *peer_columns);
    for (int i = 0; i < r->count; i++) {
        int at = -1;
        for (const peer *p; (p = attn_cli_peer_of(r, &r->rows[i], at, &at));) peer_row(to, r, &r->rows[i], p);
    }
    fputs("</tbody>\n</table>\n</section>\n", to);
}

/* ---- the whole ---- */
static void write_notes(FILE *to, const report *r) {
    const ceiling_kind *kinds;
    attn_cli_ceilings(&kinds);
    for (int i = 0; i < r->count; i++) {
        const row *w = &r->rows[i];
        if (!w->timed || w->timing.spread[w->timing.ceiling] <= 0.01 * SPREAD_MOST) continue;
        fputs("<p class=\"warn\">", to);
        attn_cli_text(to, "%s %s: samples of %s differ by %.0f %%; the share is no better than that.", w->name, attn_cli_type(w->type),
                      kinds[w->timing.ceiling].name, 100 * w->timing.spread[w->timing.ceiling]);
        fputs("</p>\n", to);
    }
    fputs("<p class=\"soft\">Every problem is verified first. The ceilings are measured in the same process, on the same threads, before, "
          "between and after the runs; medians count. Problems of up to 16 rows go through copies of k and v that are larger than the last "
          "cache, so that every run reads memory.</p>\n",
          to);
}

bool attn_cli_page(FILE *to, const report *r) {
    summary s;
    if (!attn_cli_summary(r, &s)) return attn_cli_error("memory: none for the report");
    write_head(to, r);
    write_tiles(to, r, &s);
    if (s.timed) attn_cli_page_roofline(to, r);
    attn_cli_page_bars(to, r);
    attn_cli_page_tables(to, r);
    fputs("<footer>\n<h2>How this was measured</h2>\n", to);
    write_notes(to, r);
    fputs("</footer>\n</main>\n</body>\n</html>\n", to);
    return true;
}
