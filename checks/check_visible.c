/* check_visible.c: which keys a row may see, by lengths and band, key by key in 128-bit arithmetic, with offsets and bands up to the ends
 * of 64 bits; and how many pairs that makes. */
#include "expect.h"
#include "problem.h"
#include <math.h>

__extension__ typedef __int128 wide;

static const int64_t edges[] = { INT64_MIN, INT64_MIN + 1, INT64_MIN + 7, -100, -1, 0, 1, 100, INT64_MAX - 7, INT64_MAX - 1, INT64_MAX };

static int64_t offset_like(void) { return expect_between(0, 2) ? expect_between(-15, 15) : EXPECT_PICK(edges); }

static int64_t side_like(void) {
    int64_t side = expect_between(0, 2) ? expect_between(-1, 12) : EXPECT_PICK(edges);
    return side < 0 ? ATTN_UNBOUNDED : side;
}

static bool sees(const attn_problem *p, const attn_sequence *s, int64_t i, int64_t j) {
    wide diagonal = (wide)i + ((wide)p->offset + (p->align == ATTN_BOTTOM_RIGHT ? s->len_kv - s->len_q : 0));
    return j < s->len_kv && (p->left < 0 || j >= diagonal - p->left) && (p->right < 0 || j <= diagonal + p->right);
}

static attn_problem random_problem(int64_t batch) {
    attn_problem p;
    attn_problem_init(&p, ATTN_BHLD, ATTN_F32, batch, 1, 1, expect_between(0, 12), expect_between(0, 12), 4);
    p.align = expect_between(0, 1) ? ATTN_TOP_LEFT : ATTN_BOTTOM_RIGHT;
    p.offset = offset_like();
    p.left = side_like();
    p.right = side_like();
    return p;
}

static void check_sequence(const attn_problem *p, const attn_sequence *s, int64_t len_q, int64_t len_kv) {
    wide diagonal = (wide)p->offset + (p->align == ATTN_BOTTOM_RIGHT ? len_kv - len_q : 0);
    if (diagonal > INT64_MAX) diagonal = INT64_MAX;
    if (diagonal < INT64_MIN) diagonal = INT64_MIN;
    EXPECT(s->len_q == len_q && s->len_kv == len_kv, "%" PRId64 " %" PRId64, s->len_q, s->len_kv);
    EXPECT(s->diagonal == diagonal, "offset %" PRId64 ": %" PRId64, p->offset, s->diagonal);
}

static int64_t count_rows(const attn_problem *p, const attn_sequence *s) {
    int64_t pairs = 0;
    for (int64_t i = 0; i < s->len_q; i++) {
        attn_range range = attn_visible(p, s, i);
        bool inside = 0 <= range.lo && range.lo <= range.hi && range.hi <= s->len_kv;
        EXPECT(inside, "row %" PRId64 ": %" PRId64 " .. %" PRId64, i, range.lo, range.hi);
        for (int64_t j = 0; j < s->len_kv; j++) {
            bool seen = sees(p, s, i, j);
            EXPECT(seen == (range.lo <= j && j < range.hi),
                   "row %" PRId64 ", key %" PRId64 " of %" PRId64 ": %" PRId64 " .. %" PRId64 "; diagonal %" PRId64 ", left %" PRId64
                   ", right %" PRId64,
                   i, j, s->len_kv, range.lo, range.hi, s->diagonal, p->left, p->right);
            pairs += seen;
        }
    }
    return pairs;
}

/* Answers: how many problems had some pairs hidden, and how many none visible. */
static void random_bands(int *some, int *none) {
    enum { BATCH = 3 };
    attn_problem p = random_problem(BATCH);
    attn_args args = ATTN_ARGS_INIT;
    int32_t len_q[BATCH], len_kv[BATCH];
    for (int b = 0; b < BATCH; b++) {
        len_q[b] = (int32_t)expect_between(0, p.len_q);
        len_kv[b] = (int32_t)expect_between(0, p.len_kv);
    }
    if (expect_between(0, 2)) args.len_q = len_q;
    if (expect_between(0, 2)) args.len_kv = len_kv;
    int64_t pairs = 0, all = 0;
    for (int b = 0; b < BATCH; b++) {
        attn_sequence s = attn_sequence_of(&p, &args, b);
        check_sequence(&p, &s, args.len_q ? len_q[b] : p.len_q, args.len_kv ? len_kv[b] : p.len_kv);
        pairs += count_rows(&p, &s);
        all += s.len_q * s.len_kv;
    }
    double counted = attn_visible_pairs(&p, &args);
    EXPECT(counted == (double)pairs, "%" PRId64 " pairs counted as %g; offset %" PRId64 ", left %" PRId64 ", right %" PRId64, pairs,
           counted, p.offset, p.left, p.right);
    attn_sequence full = attn_sequence_of(&p, NULL, 0);
    check_sequence(&p, &full, p.len_q, p.len_kv);
    double each = (double)count_rows(&p, &full);
    EXPECT(attn_visible_pairs(&p, NULL) == BATCH * each, "full lengths: %g", attn_visible_pairs(&p, NULL));
    *some += pairs > 0 && pairs < all;
    *none += pairs == 0 && all > 0;
}

/* Too long to count one by one: the closed forms, and no loop over rows. */
static void long_sequences(void) {
    int64_t n = INT64_C(1) << 40;
    double rows = (double)n;
    attn_problem p;
    attn_problem_init(&p, ATTN_BHLD, ATTN_F32, 1, 1, 1, n, n, 1);
    EXPECT(attn_visible_pairs(&p, NULL) == rows * rows, "all: %g", attn_visible_pairs(&p, NULL));
    p.right = 0;
    double causal = rows * (rows + 1) / 2;
    EXPECT(fabs(attn_visible_pairs(&p, NULL) / causal - 1) < 1e-15, "causal: %g", attn_visible_pairs(&p, NULL));
    p.left = 9;
    EXPECT(attn_visible_pairs(&p, NULL) == 10 * rows - 45, "window: %g", attn_visible_pairs(&p, NULL));
    p.batch = n;
    EXPECT(attn_visible_pairs(&p, NULL) == rows * (10 * rows - 45), "batch: %g", attn_visible_pairs(&p, NULL));
    p.batch = 0;
    EXPECT(attn_visible_pairs(&p, NULL) == 0, "no batch: %g", attn_visible_pairs(&p, NULL));
}

int main(int argc, char **argv) {
    int some = 0, none = 0;
    expect_begin(argc, argv);
    for (int n = 0; n < 40000; n++) random_bands(&some, &none);
    EXPECT(some > 4000 && none > 4000, "%d problems with hidden pairs, %d without visible ones: too much alike", some, none);
    long_sequences();
    return expect_end();
}
