/* bench.h: what bench.c and timing.c share: one case, set up, verified and timed. */
#ifndef ATTN_CLI_BENCH_H
#define ATTN_CLI_BENCH_H
#include "verify.h"
#include "workload.h"

/* The machine's ceilings as measured around the timed runs; a median of several shares the machine's noise with the runs. */
enum { CEILING_SAMPLES = 5, CEILINGS = 2 };
typedef struct ceilings {
    double sample[CEILINGS][CEILING_SAMPLES], measured_at[CEILINGS]; /* by attn_ceiling; the newest last */
    int count[CEILINGS];
} ceilings;

typedef struct timing {
    double bytes, operations; /* k, v, q and out once; 2 (dim_qk + dim_v) for each visible pair of a head */
    double median;            /* seconds */
    attn_ceiling ceiling;     /* the one that lets the work take longer */
    double ceiling_value, share;
    int64_t runs;
    int copies; /* of k and v that the runs went through in turn */
} timing;

/* Times attn_forward for about `seconds`, five runs at least. False after a complaint. */
bool attn_cli_time(attn_context *context, workload *w, ceilings *known, double seconds, timing *timing);
#endif
