/* workload.h: a problem described in a few words (a case) and the same with memory behind it (a workload), for check, bench and explain. */
#ifndef ATTN_CLI_WORKLOAD_H
#define ATTN_CLI_WORKLOAD_H
#include "cli.h"

enum { AXIS_KEY = 1, AXIS_ROW = 2, AXIS_HEAD = 4, AXIS_BATCH = 8 }; /* axes that a mask has of its own; it is broadcast along the others */

typedef enum fill {                  /* of a mask */
                    FILL_RANDOM = 0, /* three of four are kept; the kept ones of an additive mask are normal numbers */
                    FILL_KEEP,       /* hides nothing, adds nothing */
                    FILL_HIDE,       /* hides all */
                    FILL_PADDING,    /* the first and the last keys are hidden from all rows */
                    FILL_LOWEST      /* additive: every other key gets the lowest finite number */
} fill;

typedef enum strides {
    STRIDES_DENSE = 0,
    STRIDES_PADDED,  /* gaps on every axis, rows at odd addresses */
    STRIDES_SHARED,  /* one K and V for the whole batch: stride 0 */
    STRIDES_REVERSED /* rows run backwards in memory */
} strides;

typedef enum plant { PLANT_NONE = 0, PLANT_NAN_Q, PLANT_NAN_K, PLANT_NAN_V, PLANT_INF_V, PLANT_INF_K } plant; /* in one row of the tensor */

typedef struct spec { /* zero is the plain choice everywhere but in the sizes */
    char name[64];
    int64_t batch, heads_q, heads_kv, len_q, len_kv, dim_qk, dim_v; /* dim_v 0: as dim_qk */
    attn_type type_q, type_k, type_v, type_out;                     /* ATTN_NONE: the run's type */
    attn_layout layout;
    attn_align align;
    bool causal, window; /* window: left and right count */
    int64_t offset, left, right;
    bool scaled; /* scale counts */
    float scale, softcap;
    attn_type mask;
    unsigned axes;
    fill fill;
    bool sinks, slopes, lens_q, lens_kv;
    float sink;           /* the mean of the sinks */
    float spread, values; /* factors on q and v; 0: 1 */
    strides strides;
    plant plant;
    bool poison; /* NaN in all that no row may see: keys, values, rows past len_q, mask entries past the lengths */
    uint64_t seed;
} spec;

/* ---- cases ---- */
int attn_cli_shapes(const spec **specs); /* the shapes that the project measures by: origin, D2 to D5, M1, P1 to P4 */
int attn_cli_edges(const spec **specs);  /* small problems at the edges of everything */
/* One of either by name; "D2.small" is D2 cut down to what the reference can check in a blink. */
bool attn_cli_case(const char *name, spec *found);
bool attn_cli_shape_spec(const char *shape, spec *found); /* of --shape's text, which becomes the name */
void attn_cli_case_small(const spec *full, spec *small);
spec attn_cli_random_case(uint64_t seed, uint64_t index);         /* named random:SEED:INDEX */
void attn_cli_case_type(spec *s, attn_type type, bool force);     /* where the spec leaves it open, or everywhere */
void attn_cli_case_problem(const spec *s, attn_problem *problem); /* sizes, types, strides and visibility, no memory */

/* ---- workloads ---- */
enum { WORKLOAD_BLOCKS = 12 };
typedef struct workload {
    attn_problem problem;
    attn_args args;
    void *blocks[WORKLOAD_BLOCKS]; /* owned */
    int count;
    unsigned char *out, *lse; /* the blocks that hold them, with a margin on either side */
    size_t out_size, lse_size;
} workload;
bool attn_cli_workload_make(const spec *s, workload *w);
void attn_cli_workload_free(workload *w);
/* Bytes around and between the rows of out and lse that are no longer what they were, and bytes of rows past len_q. Destroys out and lse.
 */
size_t attn_cli_workload_stray(workload *w);
#endif
