/* kernels.h: the contract between the CPU device and the kernels of one ISA (docs/kernels.md draws it). A kernel knows nothing of problems,
 * masks, layouts or threads: it gets packed queries, evenly spaced rows of keys, and what each row may see; it returns float32 states. */
#ifndef ATTN_KERNELS_H
#define ATTN_KERNELS_H
#include "attn/attn.h"
#include <stdbool.h>

enum {
    ATTN_BLOCK = 512,                /* keys of a block: their scores stay in cache, and a block's state is exact about its maximum */
    ATTN_RUN = 64,                   /* keys that are staged, and walked by every panel of values, together */
    ATTN_ROWS = 64,                  /* rows of a row block, at most */
    ATTN_LANES_MAX = 16,             /* of any ISA: what arrays are padded to */
    ATTN_SET_MAX = 32,               /* numbers of a set, what one load brings in: what rows of queries and of states are padded to */
    ATTN_SCORES_LD = ATTN_BLOCK + 16 /* row stride of thin scores: rows must not fall on the same cache sets */
};

/* States of rows: the largest score m, the sum l of exp(score - m), the weighted values o[row][stride]. Always float32. m and l have room
 * for whole vectors of rows. A row with l == 0 has seen nothing: the identity. */
typedef struct attn_states {
    float *m, *l, *o;
} attn_states;

/* How the rows of a block are taken: thin, the head dim in vector lanes; wide, the rows in them; tile, products of whole matrices of 16-bit
 * numbers. */
typedef enum attn_way { ATTN_THIN, ATTN_WIDE, ATTN_TILE } attn_way;

/* One row block against one block of keys. Key indices are relative to the block's first key. */
typedef struct attn_work {
    attn_type type_q, type_k, type_v; /* of the tensors: q is float32 here */
    attn_way way;
    bool fast; /* probabilities may be rounded to 16 bits: options.precision */
    int rows;  /* 1 .. the plan's block_rows; at most the ISA's thin_rows where thin */
    int64_t dim_qk, dim_v;
    int64_t q_stride, o_stride; /* floats between thin query rows; between rows of a state's o (multiples of ATTN_SET_MAX) */
    float scale, softcap;
    const float *q;           /* [rows][q_stride], zero behind dim_qk; wide: [tile][dim_qk][tile_rows], zero behind rows up to a vector */
    const float *slopes;      /* [ATTN_ROWS] or NULL */
    const float *diagonal;    /* [ATTN_ROWS]: the key on the row's diagonal; read where slopes are given */
    const int32_t *lo, *hi;   /* [ATTN_ROWS]: keys lo <= j < hi are inside lengths and band; 0, 0 behind rows */
    const float *const *bias; /* NULL, or [ATTN_ROWS]: mask values of the block's keys, -inf hides; NULL entries behind rows only */
    int first, end;           /* the keys that any row sees are among first <= j < end */
    bool mixed;               /* some key is visible to one row and hidden from another */
    const char *k, *v;        /* key j's rows are k + j * k_row and v + j * v_row (bytes), first <= j < end */
    int64_t k_row, v_row;
    int64_t k_ahead, v_ahead;  /* bytes from a row to one that will be read a while later: thin kernels prefetch there */
    const unsigned char *seen; /* NULL, or [ATTN_BLOCK]: rows of keys with 0 here must not be read */
    float *scores, *convert;   /* scratch: see attn_plan */
    void *packed;              /* tile way: what `begin` makes of the queries for every block of keys; see attn_tile_packed */
    void *tile;                /* tile way: scratch; see attn_tile_lay */
    attn_states state;         /* the result */
} attn_work;

typedef struct attn_kernels {
    const char *name;
    int lanes, tile_rows; /* rows of a wide tile: 2 * lanes */
    int thin_rows;        /* the most rows that go the thin way */
    /* Whether the problem can go the tile way, where it has more than thin_rows; NULL: no problem can. Rows of a block then. */
    bool (*tiles)(const attn_problem *problem);
    int tile_block;
    /* What the tile way may lose of a weight where `fast`, relative to it; NULL where `tiles` is */
    double (*weight_error)(const attn_problem *problem);
    /* Once a row block, before its first attend and after its last; NULL: nothing to do */
    void (*begin)(const attn_work *work), (*end)(const attn_work *work);
    void (*attend)(const attn_work *work);
    /* into += from, row by row; rows of `from` with l == 0 leave `into` as it is, whatever their o holds */
    void (*fold)(attn_states into, attn_states from, int rows, int64_t o_stride);
    /* one row: o / l into out (dim_v elements of `type`), zeros where l == 0 */
    void (*finish)(void *out, attn_type type, const float *o, float l, int64_t dim_v);
    /* count elements of `type` to float32; what lies behind count up to a whole vector is set to zero */
    void (*load)(float *to, const void *from, attn_type type, int64_t count);
    /* to[d * tile_rows + r] = from[r * stride + d] for `lanes` rows; reads up to a whole vector of dims */
    void (*turn)(float *to, const float *from, int64_t stride, int64_t dim);
    /* mask values of keys: bool to 0 or -inf, floats as they are; says whether any entry differs from 0 */
    bool (*load_mask)(float *to, const void *from, attn_type type, int64_t count);
    double (*fma_rate)(int64_t rounds);           /* does rounds * some multiply-adds in registers; returns how many operations that was */
    double (*dot_rate)(int64_t rounds);           /* the same in bf16, by what the tile way uses; NULL where there is none */
    void (*read)(const void *from, size_t bytes); /* reads and does next to nothing else */
} attn_kernels;

/* The ISAs, worst first. Each is one object file that exports one const table and no function. */
#if defined __x86_64__ && (defined __linux__ || defined ATTN_EMULATE_TILES)
#define ATTN_ISA_LIST(X) X(scalar) X(avx2) X(avx512) X(avx512bf16) X(amx)
#elif defined __x86_64__ /* tiles have to be asked for, and only Linux is */
#define ATTN_ISA_LIST(X) X(scalar) X(avx2) X(avx512) X(avx512bf16)
#elif defined ATTN_EMULATE_TILES
#define ATTN_ISA_LIST(X) X(scalar) X(amx)
#elif defined __AARCH64EL__
#define ATTN_ISA_LIST(X) X(scalar) X(neon) X(neonbf16)
#else
#define ATTN_ISA_LIST(X) X(scalar)
#endif
#define ATTN_ISA_DECLARE(isa) extern const attn_kernels attn_kernels_##isa;
ATTN_ISA_LIST(ATTN_ISA_DECLARE)
#undef ATTN_ISA_DECLARE
#endif
