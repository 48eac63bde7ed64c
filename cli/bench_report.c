/* bench_report.c: what attn bench measured, as a table in words and as lines of JSON; the figures that the page shares with both. */
#include "bench.h"
#include "convert.h"
#include "options.h"
#include "report.h"
#include <stdlib.h>
#include <string.h>

const peer *attn_cli_peer_of(const report *r, const row *w, int after, int *index) {
    for (int i = after + 1; i < r->peers.count; i++) {
        const peer *p = &r->peers.entries[i];
        if (p->type != w->type || strcmp(p->case_name, w->name) != 0) continue;
        *index = i;
        return p;
    }
    return NULL;
}

bool attn_cli_paired(const report *r, const peer *p) {
    const attn_description *d = &r->description;
    return p->ratio > 0 && r->peers.threads == d->threads && r->peers.precision == r->precision &&
           (!r->peers.isa || !d->isa || strcmp(r->peers.isa, d->isa) == 0);
}

double attn_cli_ratio(const report *r, const row *w, const peer *p) {
    return attn_cli_paired(r, p) ? p->ratio : p->seconds / w->timing.median;
}

double attn_cli_relative_error(const verdict *v) { return v->largest > 0 ? v->largest_error / v->largest : v->largest_error; }

static double spread_of(const row *w) { return w->timing.spread[w->timing.ceiling]; }

/* ---- the summary ---- */
bool attn_cli_summary(const report *r, summary *s) {
    memset(s, 0, sizeof *s);
    double *shares = calloc((size_t)r->count + 1, sizeof *shares), *ratios = calloc((size_t)r->count + 1, sizeof *ratios);
    for (int i = 0; shares && ratios && i < r->count; i++) {
        const row *w = &r->rows[i];
        const peer *best = NULL;
        if (!w->timed) continue;
        if (s->timed == 0 || w->timing.share < s->share_least) s->share_least = w->timing.share, s->share_at = w;
        shares[s->timed++] = w->timing.share;
        int at = -1;
        for (const peer *p; (p = attn_cli_peer_of(r, w, at, &at));)
            if (!best || attn_cli_ratio(r, w, p) < attn_cli_ratio(r, w, best)) best = p;
        if (!best) continue;
        double ratio = attn_cli_ratio(r, w, best);
        if (s->compared == 0 || ratio < s->ratio_least) s->ratio_least = ratio, s->ratio_at = w, s->peer_at = best;
        ratios[s->compared++] = ratio;
    }
    bool good = shares && ratios;
    if (good && s->timed) s->share_median = attn_cli_median(shares, s->timed);
    if (good && s->compared) s->ratio_median = attn_cli_median(ratios, s->compared);
    free(shares);
    free(ratios);
    return good;
}

/* ---- JSON ---- */
static json_t *json_peers(const report *r, const row *w) {
    json_t *array = json_array();
    int at = -1;
    for (const peer *p; (p = attn_cli_peer_of(r, w, at, &at));)
        json_array_append_new(array, json_pack("{s:s,s:s,s:f,s:o,s:b,s:f,s:s}", "peer", p->name, "version", p->version, "seconds_median",
                                               p->seconds, "ratio", w->timed ? json_real(attn_cli_ratio(r, w, p)) : json_null(), "paired",
                                               attn_cli_paired(r, p), "error", p->error, "note", p->note));
    return array;
}

static json_t *real_if(bool known, double value) { return known ? json_real(value) : json_null(); }

json_t *attn_cli_json_row(const report *r, const row *w) {
    const attn_description *d = &r->description;
    const timing *t = &w->timing;
    const worst *worst_out = &w->verdict.out;
    const ceiling_kind *kinds;
    attn_cli_ceilings(&kinds);
    json_t *json = json_pack("{s:s,s:s,s:s,s:s,s:s,s:s?,s:s?,s:s,s:s,s:i,s:o,s:f,s:f}", "command", "bench", "version", attn_version(),
                             "machine", r->machine, "case", w->name, "shape", w->shape, "device", d->device, "isa", d->isa, "precision",
                             attn_cli_precision(r->precision), "type", attn_cli_type(w->type), "threads", d->threads, "seconds_median",
                             real_if(w->timed, t->median), "bytes", t->bytes, "operations", t->operations);
    json_t *more = json_pack(
        "{s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:o,s:I,s:i,s:s}", "ceiling", w->timed ? json_string(kinds[t->ceiling].name) : json_null(),
        "ceiling_value", real_if(w->timed, t->value[t->ceiling]), "ceiling_spread", real_if(w->timed, spread_of(w)), "seconds_floor",
        real_if(w->timed, t->floor), "share", real_if(w->timed, t->share), "error",
        worst_out->any ? attn_cli_json_real(worst_out->error) : json_null(), "bound",
        worst_out->any ? attn_cli_json_real(worst_out->bound) : json_null(), "error_relative",
        attn_cli_json_real(attn_cli_relative_error(&w->verdict)), "runs", (json_int_t)t->runs, "copies", t->copies, "plan", w->plan);
    if (json && more && json_object_update(json, more) != 0) json_object_clear(json);
    json_decref(more);
    if (json && r->peers.root) json_object_set_new(json, "peers", json_peers(r, w));
    return json;
}

/* ---- words ---- */
enum { PEER_WIDTH = 20 };

void attn_cli_print_head(const report *r) {
    const attn_description *d = &r->description;
    printf("attn %s, device %s, isa %s, precision %s, threads %d\n", attn_version(), d->device, d->isa ? d->isa : "none",
           attn_cli_precision(r->precision), d->threads);
    if (r->peers.root && (r->peers.threads != d->threads || (*r->peers.machine && strcmp(r->peers.machine, r->machine) != 0)))
        printf("warning: the peers were timed elsewhere: %s, threads %d\n", *r->peers.machine ? r->peers.machine : "machine not stated",
               r->peers.threads);
    printf("%-12s %-4s %10s %15s %18s %6s %6s  ", "case", "type", "median", "rate", "ceiling", "share", "error");
    if (r->peers.root) printf("%8s  %-*s %10s %7s %8s  ", "relative", PEER_WIDTH, "peer", "median", "ratio", "relative");
    printf("plan\n");
    fflush(stdout);
}

static void print_peer(const report *r, const row *w, const peer *p) {
    char time[32] = "-", ratio[24] = "-", error[24] = "-";
    if (p) attn_cli_time_text(p->seconds, time, sizeof time);
    if (p) snprintf(error, sizeof error, "%.1e", p->error);
    if (p && w->timed) snprintf(ratio, sizeof ratio, "%.2f", attn_cli_ratio(r, w, p));
    printf("%-*.*s %10s %7s %8s", PEER_WIDTH, PEER_WIDTH, p ? p->name : "-", time, ratio, error);
}

static void print_ours(const row *w) {
    char time[32] = "MISMATCH", rate[48] = "-", ceiling[48] = "-", share[24] = "-";
    const timing *t = &w->timing;
    if (w->timed) {
        const ceiling_kind *kinds;
        attn_cli_ceilings(&kinds);
        const ceiling_kind *kind = &kinds[t->ceiling];
        attn_cli_time_text(t->median, time, sizeof time);
        snprintf(rate, sizeof rate, "%.1f %s", (kind->types ? t->operations : t->bytes) / t->median * 1e-9, kind->unit);
        snprintf(ceiling, sizeof ceiling, "%.1f %s", t->value[t->ceiling] * 1e-9, kind->name);
        snprintf(share, sizeof share, "%.3f", t->share);
    }
    printf("%-12s %-4s %10s %15s %18s %6s %6.2f  ", w->name, attn_cli_type(w->type), time, rate, ceiling, share,
           w->verdict.out.any ? w->verdict.out.ratio : 0);
}

void attn_cli_print_row(const report *r, const row *w) {
    int at = -1;
    print_ours(w);
    if (r->peers.root) {
        const peer *p = attn_cli_peer_of(r, w, -1, &at);
        printf("%8.1e  ", attn_cli_relative_error(&w->verdict));
        print_peer(r, w, p);
        printf("  %s\n", w->plan);
        while (p && (p = attn_cli_peer_of(r, w, at, &at))) { /* one more peer is one more line */
            printf("%92s", "");
            print_peer(r, w, p);
            putchar('\n');
        }
    } else {
        printf("%s\n", w->plan);
    }
    if (w->timed && spread_of(w) > 0.01 * SPREAD_MOST) {
        const ceiling_kind *kinds;
        attn_cli_ceilings(&kinds);
        printf("  warning: samples of %s differ by %.0f %%: the machine does something else too, and the share is no better than that\n",
               kinds[w->timing.ceiling].name, 100 * spread_of(w));
    }
    fflush(stdout);
}

/* Ratios of one sitting stand beside times of this run: said where they are far from what these times would give. */
static void print_sittings(const report *r) {
    int paired = 0, apart = 0, at = -1;
    for (int i = 0; i < r->count; i++, at = -1) {
        const row *w = &r->rows[i];
        for (const peer *p; w->timed && (p = attn_cli_peer_of(r, w, at, &at));) {
            double now = p->seconds / w->timing.median;
            paired += attn_cli_paired(r, p);
            apart += attn_cli_paired(r, p) && (now > 1.25 * p->ratio || p->ratio > 1.25 * now);
        }
    }
    if (apart)
        printf("ratios are those of the peers' own sitting, in turn with attn; %d of %d are a quarter and more off what the times above "
               "give\n",
               apart, paired);
}

void attn_cli_print_end(const report *r) {
    summary s;
    if (!attn_cli_summary(r, &s)) return;
    if (r->peers.root && s.compared == 0) printf("the peers' file has none of these cases and types\n");
    if (s.compared == 0) return;
    print_sittings(r);
    printf("ratio to the fastest peer, of %d problem%s: median %.2f, least %.2f (%s %s, %s); more than 1: attn is faster\n", s.compared,
           s.compared == 1 ? "" : "s", s.ratio_median, s.ratio_least, s.ratio_at->name, attn_cli_type(s.ratio_at->type), s.peer_at->name);
}
