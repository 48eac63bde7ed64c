/* bench.h: what the files of attn bench share: a case verified and timed, the machine's ceilings, peers out of a file, and the reports. */
#ifndef ATTN_CLI_BENCH_H
#define ATTN_CLI_BENCH_H
#include "tensor.h"
#include "verify.h"
#include "workload.h"
#include <jansson.h>

/* ---- ceilings (timing.c): everything else finds them in this table, by index ---- */
typedef struct ceiling_kind {
    attn_ceiling ceiling;
    const char *name, *title; /* "fma_f32", "f32 multiply-add" */
    const char *unit;         /* of 1e9 a second */
    unsigned types;           /* 1 << type for each type of inputs whose operations it bounds; 0: it bounds bytes */
} ceiling_kind;
enum { CEILINGS_MOST = 8, CEILING_SAMPLES = 5 };
int attn_cli_ceilings(const ceiling_kind **kinds);
/* Measures one now. False after a complaint; *value is 0 where the machine or the build has no such ceiling. */
bool attn_cli_ceiling(attn_context *context, const ceiling_kind *kind, double *value);

/* As measured around the timed runs; a median of several shares the machine's noise with the runs. */
typedef struct ceilings {
    double sample[CEILINGS_MOST][CEILING_SAMPLES], measured_at[CEILINGS_MOST]; /* the newest last */
    int count[CEILINGS_MOST];
    bool absent[CEILINGS_MOST];
} ceilings;

typedef struct timing {
    double bytes, operations;     /* k, v, q and out once; 2 (dim_qk + dim_v) for each visible pair of a head */
    double median;                /* seconds */
    double value[CEILINGS_MOST];  /* of every ceiling; 0: there is none */
    double spread[CEILINGS_MOST]; /* the largest sample over the smallest, less 1 */
    int ceiling;                  /* the one that lets the work take longer */
    double floor, share;          /* seconds that it lets the work take; that over the median */
    int64_t runs;
    int copies; /* of k and v that the runs went through in turn */
} timing;

/* Times attn_forward for about `seconds`, five runs at least. False after a complaint. */
bool attn_cli_time(attn_context *context, workload *w, ceilings *known, double seconds, timing *timing);
double attn_cli_median(const double *values, int count); /* of one value at least */

/* ---- peers (peers.c): other implementations' figures, as bench/peers writes them ---- */
typedef struct peer {
    const char *name, *version, *note; /* the file's, free of control characters */
    const char *case_name;
    attn_type type;
    double seconds; /* the median */
    double error;   /* the largest, over the largest output */
    double ratio;   /* the median of paired ratios to ours of one sitting; 0: not given */
} peer;
typedef struct peers {
    json_t *root; /* NULL: no file was given */
    const char *machine, *isa;
    attn_precision precision; /* ours in the same sitting */
    int threads, count;
    peer *entries;
} peers;
bool attn_cli_peers_read(const char *path, peers *p); /* false after a complaint; free it in any case */
void attn_cli_peers_free(peers *p);

/* ---- the report ---- */
typedef struct row {
    char name[64], shape[96], plan[160];
    attn_type type;
    verdict verdict;
    timing timing;
    bool timed; /* not where the verification failed */
} row;
typedef struct report {
    row *rows;
    int count;
    char machine[128];
    attn_description description;
    attn_precision precision;
    peers peers;
} report;

void attn_cli_machine_text(char *text, size_t size); /* the processor's name, as the system tells it; empty where it does not */
/* q, k and v of a dense workload without more, as a .safetensors file that attn run takes. False after a complaint. */
bool attn_cli_workload_save(const spec *s, const workload *w, const char *path);

enum { SPREAD_MOST = 15 }; /* percent: samples of a ceiling that differ by more make a share doubtful */
/* The next peer of the row's case and type after entry `after` (-1: the first); NULL: no more. */
const peer *attn_cli_peer_of(const report *r, const row *w, int after, int *index);
/* Whether its ratio is the paired one, which counts only for the same threads, instruction set and precision; the ratio, more than 1: ours
 * is faster.
 */
bool attn_cli_paired(const report *r, const peer *p);
double attn_cli_ratio(const report *r, const row *w, const peer *p);
double attn_cli_relative_error(const verdict *v); /* the largest error over the largest output */

typedef struct summary {
    int timed, compared;              /* rows */
    double share_median, share_least; /* of the rows timed */
    double ratio_median, ratio_least; /* to the fastest peer of each row compared */
    const row *share_at, *ratio_at;   /* where the least are */
    const peer *peer_at;
} summary;
bool attn_cli_summary(const report *r, summary *s); /* false: no memory */

json_t *attn_cli_json_row(const report *r, const row *w);
void attn_cli_print_head(const report *r);
void attn_cli_print_row(const report *r, const row *w);
void attn_cli_print_end(const report *r);

/* ---- the page: markup by fputs and fprintf, everything else through attn_cli_text ---- */
void attn_cli_text(FILE *to, const char *format, ...) __attribute__((format(printf, 2, 3))); /* escaped for HTML, text or attribute */
bool attn_cli_page(FILE *to, const report *r);                                               /* false after a complaint */
double attn_cli_page_ceiling(const report *r, int i); /* the mean over the rows, which each have their own; 0: none */
void attn_cli_page_style(FILE *to);
void attn_cli_page_roofline(FILE *to, const report *r);
void attn_cli_page_bars(FILE *to, const report *r);
void attn_cli_page_tables(FILE *to, const report *r);
#endif
