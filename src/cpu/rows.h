/* rows.h: what lies between a problem and the kernels: which rows form a row block, where they are, and what they may see. */
#ifndef ATTN_ROWS_H
#define ATTN_ROWS_H
#include "plan.h"

typedef struct attn_call { /* one forward call, shared by its slots */
    const attn_machine *machine;
    const attn_problem *problem;
    const attn_args *args;
    const attn_plan *plan;
    attn_regions regions;
    atomic_int_fast64_t next; /* the next job to take */
} attn_call;

/* A row block: rows first .. first + count - 1 of key head `head_kv` in sequence b. Row r of a key head is position r / group of query
 * head head_kv * group + r % group, so that a block spans few positions. */
typedef struct attn_row_block {
    int64_t b, head_kv, first, block;
    int count;
    attn_way way;
    attn_sequence sequence;
    attn_range keys; /* the union of what its rows see by length and band; lo == hi: nothing */
} attn_row_block;

/* false where the sequence has no such block */
bool attn_row_block_of(const attn_call *call, int64_t b, int64_t head_kv, int64_t block, attn_row_block *rows);

/* Packs the block's queries into the scratch and fills what does not change from keys to keys. */
void attn_rows_begin(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, attn_work *work);

/* After the last attend of the block. */
void attn_rows_end(const attn_call *call, const attn_work *work);

/* Points `work` at keys key .. key + count - 1 (count <= ATTN_BLOCK): visibility, mask, rows of K and V. false where no row sees any. */
bool attn_rows_keys(const attn_call *call, const attn_row_block *rows, const attn_scratch *scratch, int64_t key, int count,
                    attn_work *work);

/* Divides and writes out and lse of the block. */
void attn_rows_finish(const attn_call *call, const attn_row_block *rows, attn_states states);
#endif
