/* overlap.h: whether two strided tensors share a byte, exactly: interleaved layouts (q, k, v and out in one packed buffer) do not. */
#ifndef ATTN_OVERLAP_H
#define ATTN_OVERLAP_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ATTN_EXTENT_AXES = 4 };
typedef struct attn_extent {
    uintptr_t base;                   /* address of element (0, 0, ...) */
    int64_t size[ATTN_EXTENT_AXES];   /* entries of each axis; an axis of 0 entries makes the tensor empty */
    int64_t stride[ATTN_EXTENT_AXES]; /* bytes between them */
    int64_t run;                      /* contiguous bytes at each point */
} attn_extent;

/* Bytes from the lowest to one past the highest byte touched, as offsets from base; false if that leaves 64 bits. */
bool attn_extent_bounds(const attn_extent *extent, int64_t *lowest, int64_t *end);
/* The same as addresses; false if they leave the address space. */
bool attn_extent_addresses(const attn_extent *extent, uint64_t *first, uint64_t *end);
bool attn_extents_overlap(const attn_extent *a, const attn_extent *b);
/* Whether two different points of the tensor share a byte. */
bool attn_extent_overlaps_itself(const attn_extent *extent);
#endif
