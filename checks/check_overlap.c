/* check_overlap.c: the overlap of strided tensors against marking every byte, scaled up to the ends of 64 bits, and on layouts that people
 * really use. */
#include "expect.h"
#include "overlap.h"
#include <string.h>

enum { SPACE = 4096, MIDDLE = SPACE / 2 };

static void show(const char *name, const attn_extent *e) {
    printf("%s: base %" PRIuPTR ", run %" PRId64 ", size x stride:", name, e->base, e->run);
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) printf(" %" PRId64 "x%" PRId64, e->size[k], e->stride[k]);
    printf("\n");
}

/* Counts, for each byte, the points that cover it. */
static void mark(const attn_extent *e, int *space, int64_t *low, int64_t *high) {
    int64_t i[ATTN_EXTENT_AXES];
    memset(space, 0, SPACE * sizeof *space);
    *low = SPACE;
    *high = 0;
    for (i[0] = 0; i[0] < e->size[0]; i[0]++)
        for (i[1] = 0; i[1] < e->size[1]; i[1]++)
            for (i[2] = 0; i[2] < e->size[2]; i[2]++)
                for (i[3] = 0; i[3] < e->size[3]; i[3]++) {
                    int64_t at = (int64_t)e->base;
                    for (int k = 0; k < ATTN_EXTENT_AXES; k++) at += i[k] * e->stride[k];
                    for (int64_t r = 0; r < e->run; r++) space[at + r]++;
                    if (at < *low) *low = at;
                    if (at + e->run > *high) *high = at + e->run;
                }
}

static attn_extent small_extent(void) {
    attn_extent e = { .base = (uintptr_t)expect_between(MIDDLE - 60, MIDDLE + 60), .run = expect_between(1, 6) };
    int64_t unit = expect_between(1, 8);
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) {
        e.size[k] = expect_between(expect_between(0, 12) == 0 ? 0 : 1, 5);
        e.stride[k] = expect_between(0, 2) ? unit * expect_between(-12, 12) : expect_between(-60, 60);
    }
    return e;
}

/* The same picture, every byte `factor` bytes wide, except that runs may be cut by less than that. */
static attn_extent scaled(attn_extent e, int64_t factor, int64_t cut) {
    e.base *= (uintptr_t)factor;
    e.run = e.run * factor - cut;
    for (int k = 0; k < ATTN_EXTENT_AXES; k++) e.stride[k] *= factor;
    return e;
}

static void pair_against_bytes(int *answers) {
    static int space_a[SPACE], space_b[SPACE];
    int64_t low, high, lowest, end;
    attn_extent a = small_extent(), b = small_extent();
    mark(&b, space_b, &low, &high);
    mark(&a, space_a, &low, &high);
    bool empty = high == 0, both = false, itself = false;
    for (int k = 0; k < SPACE; k++) {
        both |= space_a[k] > 0 && space_b[k] > 0;
        itself |= space_a[k] > 1;
    }
    int before = expect_failures;
    EXPECT(attn_extent_bounds(&a, &lowest, &end), "bounds");
    EXPECT(empty ? lowest == end : (int64_t)a.base + lowest == low && (int64_t)a.base + end == high, "%" PRId64 " %" PRId64, lowest, end);
    EXPECT(attn_extents_overlap(&a, &b) == both, "should be %d", both);
    EXPECT(attn_extents_overlap(&b, &a) == both, "should be %d", both);
    EXPECT(attn_extent_overlaps_itself(&a) == itself, "should be %d", itself);
    /* 2^50 bytes for each: addresses reach 2^62 */
    int64_t factor = expect_between(0, 1) ? INT64_C(1) << 50 : (INT64_C(1) << 50) - 27, cut = expect_between(0, 1000);
    attn_extent large_a = scaled(a, factor, cut), large_b = scaled(b, factor, expect_between(0, 1000));
    EXPECT(attn_extents_overlap(&large_a, &large_b) == both, "large: should be %d", both);
    EXPECT(attn_extent_overlaps_itself(&large_a) == itself, "large: should be %d", itself);
    if (expect_failures > before) {
        show("a", &a);
        show("b", &b);
    }
    answers[both]++;
    answers[2 + itself]++;
}

static bool overlap_and_back(const attn_extent *a, const attn_extent *b) {
    bool forth = attn_extents_overlap(a, b);
    EXPECT(attn_extents_overlap(b, a) == forth, "not the same both ways");
    return forth;
}

/* q, k, v and out side by side in each token's row of one buffer: [batch, len, 4, heads, dim], 2 bytes an element. */
static void packed_layout(void) {
    int64_t batch = 3, len = 1000, heads = 32, dim = 128, size = 2, part = heads * dim * size;
    attn_extent e = { .base = 1 << 20, .run = dim * size };
    int64_t sizes[] = { batch, heads, len, 1 }, strides[] = { len * 4 * part, dim * size, 4 * part, 0 };
    memcpy(e.size, sizes, sizeof sizes);
    memcpy(e.stride, strides, sizeof strides);
    attn_extent q = e, out = e;
    EXPECT(!attn_extent_overlaps_itself(&q), "packed");
    for (int64_t shift = -4; shift <= 4; shift++) {
        out.base = e.base + (uintptr_t)(shift * part);
        EXPECT(overlap_and_back(&q, &out) == (shift % 4 == 0), "parts apart: %" PRId64, shift);
        out.base += 1;
        EXPECT(overlap_and_back(&q, &out) == (shift % 4 == 0 || (shift + 1) % 4 == 0), "parts and a byte apart: %" PRId64, shift);
    }
    /* backwards in every axis, it covers the same bytes */
    out = e;
    for (int k = 0; k < 3; k++) {
        out.base += (uintptr_t)((out.size[k] - 1) * out.stride[k]);
        out.stride[k] = -out.stride[k];
    }
    EXPECT(overlap_and_back(&q, &out), "backwards");
    out.base += (uintptr_t)part;
    EXPECT(!overlap_and_back(&q, &out), "backwards, the next part");
    /* grouped heads: q's 32 heads and a single key head in the same row */
    attn_extent k = e;
    k.size[1] = 1;
    k.base = e.base + (uintptr_t)(2 * part);
    EXPECT(!overlap_and_back(&q, &k), "one key head");
}

/* A cache of [batch, capacity, heads, dim] of which `used` rows are taken; the output lies in the free rows of the same buffer. */
static void cache_layout(void) {
    int64_t batch = 8, capacity = 4096, used = 3000, heads = 8, row = 256;
    attn_extent k = {
        .base = 1 << 20, .size = { batch, heads, used, 1 }, .stride = { capacity * heads * row, row, heads * row, 0 }, .run = row
    };
    attn_extent out = k;
    out.size[2] = capacity - used;
    out.base += (uintptr_t)(used * heads * row);
    EXPECT(!overlap_and_back(&k, &out), "free rows");
    out.base -= 1;
    EXPECT(overlap_and_back(&k, &out), "one byte too early");
    out.base += 1;
    out.size[2] += 1;
    EXPECT(overlap_and_back(&k, &out), "one row too many: it reaches the next sequence");
    out.size[0] = 1;
    out.base += (uintptr_t)((batch - 1) * capacity * heads * row);
    EXPECT(!overlap_and_back(&k, &out), "past the last sequence nothing follows");
}

/* f32 output rows in the gaps of 2-byte rows that lie twice as densely, and columns of a matrix. */
static void other_layouts(void) {
    attn_extent a = { .base = 1 << 20, .size = { 1, 4, 100000, 1 }, .stride = { 0, 25600000, 256, 0 }, .run = 64 };
    attn_extent b = { .base = a.base + 64, .size = { 1, 8, 50000, 1 }, .stride = { 0, 12800000 * 2, 512, 0 }, .run = 192 };
    EXPECT(!overlap_and_back(&a, &b), "gaps");
    b.run = 193;
    EXPECT(overlap_and_back(&a, &b), "gaps exceeded");
    attn_extent column = { .base = 1 << 20, .size = { 1, 1, 1000, 1000 }, .stride = { 0, 0, 8, 8000 }, .run = 4 };
    attn_extent other = column;
    other.base += 4;
    EXPECT(!overlap_and_back(&column, &other), "even and odd columns");
    other.stride[2] = 8000;
    other.stride[3] = 8;
    EXPECT(!overlap_and_back(&column, &other), "even and odd columns, transposed");
    other.run = 5;
    EXPECT(overlap_and_back(&column, &other), "even and odd columns, transposed, too wide");
    EXPECT(!attn_extent_overlaps_itself(&column), "columns");
    attn_extent broadcast = { .base = 1 << 20, .size = { 7, 1000000000, 3, 1 }, .stride = { 0, 0, 0, 0 }, .run = 4 };
    EXPECT(overlap_and_back(&broadcast, &column), "broadcast");
    EXPECT(attn_extent_overlaps_itself(&broadcast), "broadcast");
    broadcast.base += 4;
    EXPECT(!overlap_and_back(&broadcast, &column), "broadcast in a gap");
    /* heads inside rows whose steps do not nest, yet never meet: 6 i + 15 j (j below 2) */
    attn_extent woven = { .base = 1 << 20, .size = { 1, 2, 1000000, 1 }, .stride = { 0, 15, 6, 0 }, .run = 3 };
    EXPECT(!attn_extent_overlaps_itself(&woven), "woven");
    woven.size[1] = 3;
    EXPECT(attn_extent_overlaps_itself(&woven), "woven once too often");
}

static void limits(void) {
    int64_t low, end;
    attn_extent e = { .base = 64, .size = { 2, 1, 1, 1 }, .stride = { INT64_MAX, INT64_MIN, 0, 0 }, .run = 1 };
    EXPECT(!attn_extent_bounds(&e, &low, &end), "past the end of 64 bits");
    e.stride[0] = INT64_MAX - 1;
    EXPECT(attn_extent_bounds(&e, &low, &end) && low == 0 && end == INT64_MAX, "%" PRId64 " %" PRId64, low, end);
    EXPECT(!attn_extent_overlaps_itself(&e) && overlap_and_back(&e, &e), "two far points");
    e.size[1] = 2;
    EXPECT(!attn_extent_bounds(&e, &low, &end), "spans more than 63 bits");
    EXPECT(attn_extent_overlaps_itself(&e), "undecided");
    e = (attn_extent){ .base = 64, .size = { 1, 1, INT64_MAX, 1 }, .stride = { 0, 0, 2, 0 }, .run = 1 };
    EXPECT(!attn_extent_bounds(&e, &low, &end), "product past 64 bits");
    uint64_t first, last;
    e = (attn_extent){ .base = 64, .size = { 1, 1, 2, 1 }, .stride = { 0, 0, -64, 0 }, .run = 4 };
    EXPECT(attn_extent_addresses(&e, &first, &last) && first == 0 && last == 68, "%" PRIu64 " %" PRIu64, first, last);
    e.base = 60;
    EXPECT(!attn_extent_addresses(&e, &first, &last), "below address 0");
    e = (attn_extent){ .base = UINTPTR_MAX - 3, .size = { 1, 1, 1, 1 }, .run = 3 };
    EXPECT(attn_extent_addresses(&e, &first, &last), "to the last address");
    e.run = 4;
    EXPECT(!attn_extent_addresses(&e, &first, &last), "past the last address");
    e.run = 0;
    EXPECT(!attn_extents_overlap(&e, &e) && !attn_extent_overlaps_itself(&e), "no bytes");
    e.run = 4;
    e.size[2] = 0;
    EXPECT(!attn_extents_overlap(&e, &e) && !attn_extent_overlaps_itself(&e), "no points");
    /* too contrived to search to the end: the answer is the careful one */
    attn_extent a = { .base = 1, .size = { 900001, 900007, 900001, 1 }, .stride = { 1000000006, 1000000014, 1000000018, 2 }, .run = 1 };
    attn_extent b = a;
    b.base += 1;
    EXPECT(attn_extents_overlap(&a, &a), "same");
    (void)attn_extents_overlap(&a, &b);
}

int main(int argc, char **argv) {
    int answers[4] = { 0, 0, 0, 0 };
    expect_begin(argc, argv);
    for (int n = 0; n < 30000; n++) pair_against_bytes(answers);
    for (int k = 0; k < 4; k++) EXPECT(answers[k] > 3000, "only %d of answer %d: the random tensors are too much alike", answers[k], k);
    packed_layout();
    cache_layout();
    other_layouts();
    limits();
    return expect_end();
}
