/* problem.h: every rule that a problem and its arguments must meet, one status each, and what each row may see. Masks, bands and lengths
 * are interpreted here and nowhere else. */
#ifndef ATTN_PROBLEM_H
#define ATTN_PROBLEM_H
#include "attn/attn.h"
#include <stdbool.h>

/* Bytes of one element; 0 for ATTN_NONE and unknown types. */
size_t attn_type_size(attn_type type);

/* Copies what the caller gave (an older caller's struct may be shorter) and checks every rule that needs no pointer. In the copy, strides
 * that nobody steps along (axes of one entry, empty tensors, no mask) are 0, whatever the caller left there. */
attn_status attn_problem_check(const attn_problem *given, attn_problem *problem);

/* Copies and checks the arguments of a forward call: pointers, alignment, lengths, overlaps. `workspace` is what the problem needs; it is
 * asked of the caller only where the caller gave a workspace. Reads len_q and len_kv, unless they are out of reach (`remote`); writes
 * nothing but *args. */
attn_status attn_args_check(const attn_problem *problem, const attn_args *given, size_t workspace, bool remote, attn_args *args);

/* The same for attn_merge: q, k, v, mask, sinks, slopes and len_kv are not looked at and come back as NULL. */
attn_status attn_merge_check(const attn_problem *problem, const attn_state *states, int64_t count, const attn_args *given, size_t workspace,
                             bool remote, attn_args *args);

/* One sequence of the batch: its lengths and its diagonal (key i + diagonal is on row i's diagonal; saturated). */
typedef struct attn_sequence {
    int64_t len_q, len_kv, diagonal;
} attn_sequence;
attn_sequence attn_sequence_of(const attn_problem *problem, const attn_args *args, int64_t b);

/* The keys lo <= j < hi that lengths and band let row i see; lo == hi where it sees none. Masks may hide more of them. Saturates: any
 * offset is legal. */
typedef struct attn_range {
    int64_t lo, hi;
} attn_range;
attn_range attn_visible(const attn_problem *problem, const attn_sequence *sequence, int64_t i);

/* Visible pairs (row, key) of one query head over the whole batch, by lengths and band; full lengths where args is NULL. O(batch) at most.
 */
double attn_visible_pairs(const attn_problem *problem, const attn_args *args);

/* What explain tells of a problem at full lengths: q, k, v, out and mask once, in bytes; 2 (dim_qk + dim_v) operations a visible pair. */
void attn_problem_work(const attn_problem *problem, double *bytes, double *operations);

/* Exact conversions of one element, for the reference and for the edges of kernels. */
float attn_f16_to_f32(uint16_t bits);
float attn_bf16_to_f32(uint16_t bits);
uint16_t attn_f32_to_f16(float value);  /* to nearest even; NaN stays NaN, overflow becomes infinity */
uint16_t attn_f32_to_bf16(float value); /* likewise */
#endif
