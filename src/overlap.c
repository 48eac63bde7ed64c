/* overlap.c: decides whether strided tensors share a byte, exactly unless the layout is so contrived that the search gives up: then it
 * answers that they do.
 *
 * Every question is brought to one form: is some sum of step[k] * y[k], 0 <= y[k] <= most[k], within [target - slack, target]?
 * Two bytes coincide when the difference of their points' addresses is small enough for their runs, and that difference is such a sum once
 * each axis is counted from the end that makes its step positive. A tensor spans less than 2^63 bytes, so 64 unsigned bits hold
 * everything. */
#include "overlap.h"

enum { AXES = 2 * ATTN_EXTENT_AXES, EFFORT = 100000 };

typedef struct axis {
    uint64_t step, most;
} axis;

typedef struct search {
    axis axes[AXES];
    int count;
    int effort;               /* steps left before giving up */
    uint64_t slack;           /* width of the wanted range, less one */
    uint64_t reach[AXES + 1]; /* the largest sum of axes k, k + 1, ... */
    uint64_t divisor[AXES];   /* the greatest common divisor of their steps */
} search;

static uint64_t magnitude(int64_t value) { return value < 0 ? 0 - (uint64_t)value : (uint64_t)value; }

static bool is_empty(const attn_extent *extent) {
    bool empty = extent->run <= 0;
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) empty |= extent->size[k] <= 0;
    return empty;
}

bool attn_extent_bounds(const attn_extent *extent, int64_t *lowest, int64_t *end) {
    *lowest = *end = 0;
    if (is_empty(extent)) return true;
    int64_t low = 0, high = extent->run, span;
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) {
        int64_t far;
        if (extent->size[k] < 2) continue;
        if (__builtin_mul_overflow(extent->stride[k], extent->size[k] - 1, &far)) return false;
        if (__builtin_add_overflow(far < 0 ? low : high, far, far < 0 ? &low : &high)) return false;
    }
    if (__builtin_sub_overflow(high, low, &span)) return false;
    *lowest = low;
    *end = high;
    return true;
}

/* Keeps the axes in ascending order of step. An axis of one entry or of step 0 moves nothing. */
static void add_axis(search *s, uint64_t step, uint64_t most) {
    if (step == 0 || most == 0) return;
    int at = s->count++;
    for (; at > 0 && s->axes[at - 1].step > step; at--) s->axes[at] = s->axes[at - 1];
    s->axes[at] = (axis){ step, most };
}

static void add_axes(search *s, const attn_extent *extent) {
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) add_axis(s, magnitude(extent->stride[k]), (uint64_t)(extent->size[k] - 1));
}

/* Joins axes without changing which sums exist: where the steps of one axis bridge one step of a larger axis, the two reach every multiple
 * of the smaller step. Slack is an axis of step 1. Dense and equally strided tensors are left with next to nothing to search. */
static void join_axes(search *s) {
    int kept = 0;
    for (int k = 0; k < s->count; k++) {
        axis next = s->axes[k];
        if (next.step - 1 <= s->slack) {
            s->slack += next.step * next.most;
            continue;
        }
        int into = 0;
        while (into < kept && (next.step % s->axes[into].step != 0 || next.step / s->axes[into].step - 1 > s->axes[into].most)) into++;
        if (into < kept)
            s->axes[into].most += next.step / s->axes[into].step * next.most;
        else
            s->axes[kept++] = next;
    }
    s->count = kept;
}

static uint64_t common_divisor(uint64_t a, uint64_t b) {
    while (b != 0) {
        uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Largest step first: the fewest values of it can be right. */
static bool walk(search *s, int k, uint64_t target) {
    uint64_t low = target > s->slack ? target - s->slack : 0;
    uint64_t high = target < s->reach[k] ? target : s->reach[k];
    if (low > high) return false;
    if (k == s->count) return true;
    if (high - high % s->divisor[k] < low) return false;
    if (k + 1 == s->count) return true; /* divisor is the step: the multiple just found is a sum */
    uint64_t step = s->axes[k].step, inner = s->reach[k + 1];
    uint64_t first = low > inner ? (low - inner - 1) / step + 1 : 0;
    uint64_t last = high / step < s->axes[k].most ? high / step : s->axes[k].most;
    for (uint64_t y = first; y <= last; y++) {
        if (--s->effort < 0 || walk(s, k + 1, target - y * step)) return true;
    }
    return false;
}

static bool is_sum(search *s, uint64_t target) {
    join_axes(s);
    for (int a = 0, b = s->count - 1; a < b; a++, b--) {
        axis swap = s->axes[a];
        s->axes[a] = s->axes[b];
        s->axes[b] = swap;
    }
    s->reach[s->count] = 0;
    uint64_t divisor = 0;
    for (int k = s->count - 1; k >= 0; k--) {
        s->reach[k] = s->reach[k + 1] + s->axes[k].step * s->axes[k].most;
        s->divisor[k] = divisor = common_divisor(s->axes[k].step, divisor);
    }
    s->effort = EFFORT;
    return walk(s, 0, target);
}

bool attn_extent_addresses(const attn_extent *extent, uint64_t *first, uint64_t *end) {
    int64_t low, high;
    if (!attn_extent_bounds(extent, &low, &high)) return false;
    uint64_t base = extent->base;
    if (magnitude(low) > base || (uint64_t)high > UINTPTR_MAX - base) return false;
    *first = base - magnitude(low);
    *end = base + (uint64_t)high;
    return true;
}

bool attn_extents_overlap(const attn_extent *a, const attn_extent *b) {
    if (is_empty(a) || is_empty(b)) return false;
    uint64_t first_a, end_a, first_b, end_b;
    if (!attn_extent_addresses(a, &first_a, &end_a) || !attn_extent_addresses(b, &first_b, &end_b)) return true;
    if (first_a >= end_b || first_b >= end_a) return false;
    /* b's points counted up from its first, a's down from its last: the sum of both is b - a plus a constant */
    search s = { .slack = (uint64_t)(a->run - 1) + (uint64_t)(b->run - 1) };
    add_axes(&s, a);
    add_axes(&s, b);
    return is_sum(&s, end_a - 1 - first_b);
}

bool attn_extent_overlaps_itself(const attn_extent *extent) {
    if (is_empty(extent)) return false;
    int64_t low, high;
    if (!attn_extent_bounds(extent, &low, &high)) return true;
    search all = { .count = 0 };
    add_axes(&all, extent);
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) {
        if (extent->size[k] > 1 && extent->stride[k] == 0) return true;
    }
    uint64_t run = (uint64_t)extent->run, end = run;
    bool nested = true;
    for (int k = 0; k < all.count; k++) {
        nested &= all.axes[k].step >= end;
        end += all.axes[k].step * all.axes[k].most;
    }
    if (nested) return false;
    /* Two points whose indices first differ (largest step first) on axis k, the one further on minus the other: 1 .. most steps there, and
     * -most .. most on every smaller axis. */
    uint64_t inner = 0;
    for (int k = 0; k < all.count; k++) {
        uint64_t step = all.axes[k].step, most = all.axes[k].most;
        if (run - 1 + inner >= step) {
            search s = { .slack = 2 * (run - 1) };
            for (int j = 0; j < k; j++) add_axis(&s, all.axes[j].step, 2 * all.axes[j].most);
            add_axis(&s, step, most - 1);
            if (is_sum(&s, run - 1 + inner - step)) return true;
        }
        inner += step * most;
    }
    return false;
}
