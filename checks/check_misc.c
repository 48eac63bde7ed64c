/* check_misc.c: the edges that no other program is about: lengths of 0, many sequences, strides beyond 32 bits, one key for all, packed
 * tensors, which ISA is taken, what explain and describe say, and errno. */
#include "harness.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static attn_context *context;
static const char *isa;
static check_worst worst;

static void note(const check_case *c, const char *what) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s, %s", isa, what);
    check_case_note(c, prefix);
}

/* Forward with errno watched, and the result against the definition. */
static void run(check_case *c, check_random *random, const char *what) {
    note(c, what);
    check_expected expected = check_expect(c, 100, random);
    errno = 4321;
    check_case_forward(c, context);
    CHECK(errno == 4321, "errno became %d", errno);
    check_compare(c, &expected, 1, what, &worst);
    check_expected_free(&expected);
}

/* ---- nothing to do ---- */
/* Every combination of a batch, len_q and len_kv of 0; what is empty needs no pointer. */
static void zero_sizes(check_random *random) {
    for (int n = 1; n < 8; n++) {
        for (int sinks = 0; sinks < 2; sinks++) {
            check_case c;
            check_case_init(&c, ATTN_BF16, n & 1 ? 0 : 2, 4, 2, n & 2 ? 0 : 3, n & 4 ? 0 : 5, 8);
            c.problem.right = n % 3 == 0 ? 0 : ATTN_UNBOUNDED;
            c.with_sinks = sinks;
            check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
            bool rows = c.problem.batch > 0 && c.problem.len_q > 0, keys = c.problem.batch > 0 && c.problem.len_kv > 0;
            if (!rows) {
                c.args.q = NULL;
                c.args.out = NULL;
                c.args.lse = NULL;
            }
            if (!keys) c.args.k = c.args.v = NULL;
            run(&c, random, "nothing to do");
            CHECK_OK(attn_reserve(context, &c.problem), "reserve");
            CHECK_OK(attn_merge(context, &c.problem, NULL, 0, &c.args), "merge");
            check_case_free(&c);
        }
    }
}

/* ---- many ---- */
static void many(check_random *random) {
    static const int64_t sizes[][4] = {
        { 65536, 1, 1, 1 }, { 70001, 1, 2, 3 }, { 1, 66000, 1, 2 }, { 1, 1, 70000, 2 }, { 1, 2, 1, 70000 }
    };
    for (size_t n = 0; n < sizeof sizes / sizeof *sizes; n++) {
        check_case c;
        check_case_init(&c, n % 2 ? ATTN_F32 : ATTN_F16, sizes[n][0], sizes[n][1], n == 2 ? 1 : sizes[n][1], sizes[n][2], sizes[n][3], 3);
        c.problem.right = n == 3 ? 0 : ATTN_UNBOUNDED;
        c.with_len_kv = n == 1;
        check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
        run(&c, random, "many");
        check_case_free(&c);
    }
}

/* ---- strides beyond 32 bits ---- */
/* Moves a tensor into an address range with other strides, one axis (or more) far apart; only the pages written may be touched. false where
 * this machine has no such range. */
typedef struct far {
    void *map;
    size_t size;
    unsigned char *allowed; /* the last page that was */
} far;

/* Elements do not straddle pages: addresses are multiples of their size. */
static bool allow_page_of(far *place, unsigned char *element) {
    unsigned char *page = element - (uintptr_t)element % check_page();
    if (page == place->allowed) return true;
    place->allowed = page;
    return check_pages_allow(page, check_page(), CHECK_WRITE);
}

static bool spread(check_tensor *tensor, const int64_t stride[4], far *place) {
    int64_t low = 0, high = 1, element = (int64_t)check_size(tensor->type);
    for (int axis = 0; axis < 4; axis++) {
        int64_t reach = (tensor->size[axis] - 1) * stride[axis];
        if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    place->size = (size_t)((high - low) * element);
    place->allowed = NULL;
    place->map = check_pages_take(place->size);
    if (!place->map) return false;
    check_tensor moved = *tensor;
    memcpy(moved.stride, stride, sizeof moved.stride);
    moved.base = (unsigned char *)place->map - low * element;
    for (int64_t b = 0; b < moved.size[0]; b++)
        for (int64_t h = 0; h < moved.size[1]; h++)
            for (int64_t i = 0; i < moved.size[2]; i++)
                for (int64_t e = 0; e < moved.size[3]; e++) {
                    unsigned char *to = check_at(&moved, b, h, i, e);
                    if (!allow_page_of(place, to)) return check_pages_give(place->map, place->size), false;
                    memcpy(to, check_at(tensor, b, h, i, e), (size_t)element);
                }
    *tensor = moved;
    return true;
}

static void expect_same(const check_case *a, const check_case *b, const char *what) {
    const attn_problem *p = &a->problem;
    size_t row = (size_t)p->dim_v * check_size(p->type_out);
    bool same = true;
    for (int64_t n = 0; n < p->batch; n++)
        for (int64_t h = 0; h < p->heads_q; h++)
            for (int64_t i = 0; i < p->len_q; i++)
                same &= !memcmp(check_at(&a->out, n, h, i, 0), check_at(&b->out, n, h, i, 0), row) &&
                        !memcmp(check_at(&a->lse, n, h, i, 0), check_at(&b->lse, n, h, i, 0), 4);
    CHECK(same, "%s: other bits", what);
}

/* Tensor number `which` of the case with axis `axis` at a stride of `step`; the rest as it was. */
static bool far_apart(check_case *base, int which, int axis, int64_t step) {
    check_case c = *base;
    attn_problem *p = &c.problem;
    check_tensor *tensors[] = { &c.q, &c.k, &c.v, &c.out, &c.lse, &c.mask }, *tensor = tensors[which];
    attn_strides *strides[] = { &p->q, &p->k, &p->v, &p->out, &p->lse };
    int64_t stride[4];
    far place;
    memcpy(stride, tensor->stride, sizeof stride);
    stride[axis] = step;
    if (!spread(tensor, stride, &place)) return false;
    if (which < 5)
        *strides[which] = (attn_strides){ stride[0], stride[1], stride[2] };
    else
        p->mask = (attn_mask_strides){ stride[0], stride[1], stride[2], stride[3] };
    c.args.q = c.q.base;
    c.args.k = c.k.base;
    c.args.v = c.v.base;
    c.args.out = c.out.base;
    c.args.lse = (float *)(void *)c.lse.base;
    c.args.mask = c.mask.base;
    note(&c, "far apart");
    CHECK_OK(attn_forward(context, p, &c.args), "forward");
    expect_same(base, &c, "far apart");
    check_pages_give(place.map, place.size);
    return true;
}

/* Each axis of each tensor at each step: three axes of five tensors, and four of the mask. An emulator may keep books on every page of a
 * range, so a smaller ATTN_CHECK_SCALE takes some of them. */
static bool index_widths(check_random *random, int64_t len_q) {
    enum { STEPS = 3, ALL = (5 * 3 + 4) * STEPS };
    static const int64_t steps[STEPS] = { (INT64_C(1) << 31) + 1, (INT64_C(1) << 32) + 16, -(INT64_C(1) << 32) };
    check_case c;
    bool there = true;
    check_case_init(&c, ATTN_F16, 2, 4, 2, len_q, 37, 8);
    c.problem.type_mask = ATTN_F16;
    c.problem.mask = (attn_mask_strides){ 4 * len_q * 37, len_q * 37, 37, 1 };
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    check_case_forward(&c, context);
    for (int n = 0, picks = check_count(ALL); n < picks && n < ALL && there; n++) {
        int at = picks < ALL ? n * ALL / picks : n, axis = at / STEPS;
        there = far_apart(&c, axis / 3 < 5 ? axis / 3 : 5, axis / 3 < 5 ? axis % 3 : axis - 15, steps[at % STEPS]);
    }
    check_case_free(&c);
    return there;
}

/* ---- strides that lead out of all memory, on rows that the lengths hide: for sanitizers, which see addresses that nobody reads ---- */
static void far_unread(check_random *random, int64_t len_q) {
    for (int n = 0; n < 6; n++) {
        const int64_t apart = (n % 2 ? -1 : 1) * (INT64_C(1) << 54);
        const int32_t one = 1;
        check_case c;
        check_case_init(&c, (attn_type)(ATTN_F32 + n / 2), 1, 1, 1, len_q, 1, 40);
        check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
        c.problem.len_kv = 30;
        c.problem.k.row = c.problem.v.row = apart;
        c.problem.k.batch = c.problem.k.head = c.problem.v.batch = c.problem.v.head = 0;
        c.args.len_kv = &one;
        note(&c, "far and unread");
        CHECK_OK(attn_forward(context, &c.problem, &c.args), "forward");
        for (int64_t i = 0; i < len_q; i++)
            for (int64_t e = 0; e < 40; e++)
                CHECK(check_get(&c.out, 0, 0, i, e) == check_get(&c.v, 0, 0, 0, e), "out is not the one value there is");
        check_case_free(&c);
    }
}

/* ---- every row of keys, or of values, is the same one: a stride of 0 ---- */
static void one_for_all(check_random *random) {
    static const int64_t rows[] = { 1, 2, 3, 9, 32, 70 }, keys[] = { 1, 3, 4, 6, 130 };
    for (int n = 0; n < 3 * 6 * 5; n++) {
        check_case c;
        check_case_init(&c, (attn_type)(ATTN_F32 + n % 3), 1, 1, 1, rows[n / 3 % 6], keys[n / 18], 24);
        if (n % 2) c.problem.type_mask = ATTN_BOOL;
        check_case_arrange_mask(&c, random);
        c.problem.k.row = 0;
        if (check_chance(random, 0.3)) c.problem.v.row = 0;
        check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
        run(&c, random, "one key for all");
        check_case_free(&c);
    }
}

/* ---- q, k, v and out side by side in every row of one buffer ---- */
static void packed(check_random *random) {
    enum { ROW = 4 * 2 * 16, LEN = 9 };
    check_case c, inside;
    check_case_init(&c, ATTN_F32, 1, 2, 2, LEN, LEN, 16);
    check_case_arrange(&c, random, CHECK_DENSE_BLHD);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    check_case_forward(&c, context);
    check_buffer buffer = check_buffer_make(ROW * LEN * sizeof(float), CHECK_AT_END);
    inside = c;
    check_tensor *tensors[] = { &inside.q, &inside.k, &inside.v, &inside.out }, *old[] = { &c.q, &c.k, &c.v, &c.out };
    for (int n = 0; n < 4; n++) {
        tensors[n]->base = buffer.data + n * 32 * (int)sizeof(float);
        tensors[n]->stride[2] = ROW;
        for (int64_t h = 0; h < 2; h++)
            for (int64_t i = 0; i < LEN && n < 3; i++)
                memcpy(check_at(tensors[n], 0, h, i, 0), check_at(old[n], 0, h, i, 0), 16 * sizeof(float));
    }
    inside.problem.q.row = inside.problem.k.row = inside.problem.v.row = inside.problem.out.row = ROW;
    inside.args.q = inside.q.base;
    inside.args.k = inside.k.base;
    inside.args.v = inside.v.base;
    inside.args.out = inside.out.base;
    inside.args.lse = NULL;
    note(&inside, "packed");
    CHECK_OK(attn_forward(context, &inside.problem, &inside.args), "forward");
    expect_same(&c, &inside, "packed");
    check_buffer_free(&buffer);
    check_case_free(&c);
}

/* ---- what the library says ---- */
static double visible_pairs(const check_case *c) {
    double pairs = 0;
    for (int64_t b = 0; b < c->problem.batch; b++)
        for (int64_t i = 0; i < c->problem.len_q; i++)
            for (int64_t j = 0; j < c->problem.len_kv; j++) pairs += check_in_band(c, b, i, j);
    return pairs * (double)c->problem.heads_q;
}

static void explains(check_random *random) {
    check_case c;
    attn_explanation e = ATTN_EXPLANATION_INIT;
    attn_description d = ATTN_DESCRIPTION_INIT;
    size_t bytes = 0;
    check_case_random(&c, random, 1e6);
    attn_problem *p = &c.problem;
    p->mask = (attn_mask_strides){ p->heads_q * p->len_q * p->len_kv, p->len_q * p->len_kv, p->len_kv, 1 };
    check_case_arrange(&c, random, CHECK_DENSE_BHLD);
    c.with_len_q = c.with_len_kv = false;
    note(&c, "explain");
    CHECK_OK(attn_explain(context, p, &e), "explain");
    CHECK_OK(attn_describe(context, &d), "describe");
    CHECK_OK(attn_workspace(context, p, &bytes), "workspace");
    double operations = 2 * (double)(p->dim_qk + p->dim_v) * visible_pairs(&c), rows = (double)(p->batch * p->heads_q * p->len_q);
    double keys = (double)(p->batch * p->heads_kv * p->len_kv), mask = rows * (double)p->len_kv * (double)check_size(p->type_mask);
    double moved = rows * (double)(p->dim_qk * (int64_t)check_size(p->type_q) + p->dim_v * (int64_t)check_size(p->type_out)) +
                   keys * (double)(p->dim_qk * (int64_t)check_size(p->type_k) + p->dim_v * (int64_t)check_size(p->type_v)) + mask;
    CHECK(fabs(e.operations - operations) <= 1e-9 * operations, "operations %g, expected %g", e.operations, operations);
    CHECK(fabs(e.bytes - moved) <= 1e-9 * moved, "bytes %g, expected %g", e.bytes, moved);
    CHECK(e.workspace == bytes, "workspace %zu, expected %zu", e.workspace, bytes);
    CHECK(e.passes >= 1 && e.passes <= 2 && e.threads >= 1 && e.threads <= d.threads, "passes %d threads %d", e.passes, e.threads);
    CHECK(e.chunk > 0 && e.chunks == (p->len_kv + e.chunk - 1) / e.chunk, "chunk %lld chunks %lld", (long long)e.chunk,
          (long long)e.chunks);
    CHECK(p->len_q == 0 || p->batch == 0 || (e.jobs >= 1 && e.rows >= 1), "jobs %lld rows %lld", (long long)e.jobs, (long long)e.rows);
    CHECK(e.device && !strcmp(e.device, "cpu") && e.isa && !strcmp(e.isa, isa) && e.kernel && e.kernel[0], "names");
    CHECK(e.reason[0] && memchr(e.reason, 0, sizeof e.reason), "reason");
    CHECK(e.weight_error == 0, "weight_error %g in exact", e.weight_error);
}

static void describes(void) {
    attn_description d = ATTN_DESCRIPTION_INIT;
    attn_context *alone = check_open(isa, 1, 0, 0);
    int major, minor, patch, end = 0;
    check_note[0] = 0;
    CHECK_OK(attn_describe(alone, &d), "describe");
    CHECK(d.threads == 1 && !strcmp(d.pool, "none"), "threads %d pool %s", d.threads, d.pool);
    CHECK(!strcmp(d.device, "cpu") && !strcmp(d.isa, isa) && strstr(d.isas, isa), "device %s isa %s isas %s", d.device, d.isa, d.isas);
    attn_close(alone);
    CHECK(sscanf(attn_version(), "%d.%d.%d%n", &major, &minor, &patch, &end) == 3 && !attn_version()[end], "version %s", attn_version());
}

static void expect_isa(const char *wanted) {
    attn_description d = ATTN_DESCRIPTION_INIT;
    attn_context *opened = check_open(NULL, 1, 0, 0);
    CHECK_OK(attn_describe(opened, &d), "describe");
    CHECK(!strcmp(d.isa, wanted), "isa %s, expected %s", d.isa, wanted);
    attn_close(opened);
}

/* Without a choice the best is taken, up to ATTN_ISA; a choice is above it. */
static void chosen_isa(char isas[CHECK_ISAS][16], int count) {
    const char *given = getenv("ATTN_ISA");
    char *before = given ? strdup(given) : NULL;
    check_variable("ATTN_ISA", NULL);
    expect_isa(isas[count - 1]);
    for (int n = 0; n < count; n++) {
        check_variable("ATTN_ISA", isas[n]);
        expect_isa(isas[n]);
        for (int m = 0; m <= n; m++) attn_close(check_open(isas[m], 1, 0, 0));
    }
    check_variable("ATTN_ISA", before);
    free(before);
}

static void quiet_errno(void) {
    check_case c;
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *opened = NULL;
    attn_explanation e = ATTN_EXPLANATION_INIT;
    attn_description d = ATTN_DESCRIPTION_INIT;
    size_t bytes;
    check_case_init(&c, ATTN_F32, 1, 2, 1, 3, 5, 8);
    options.threads = 3;
    options.isa = isa;
    check_note[0] = 0;
    errno = 4321;
#define QUIET(call)                                                                                                                        \
    do {                                                                                                                                   \
        CHECK_OK(call, #call);                                                                                                             \
        CHECK(errno == 4321, #call ": errno became %d", errno);                                                                            \
    } while (0)
    QUIET(attn_open(&opened, &options));
    QUIET(attn_reserve(opened, &c.problem));
    QUIET(attn_workspace(opened, &c.problem, &bytes));
    QUIET(attn_explain(opened, &c.problem, &e));
    QUIET(attn_describe(opened, &d));
    attn_close(opened);
    CHECK(errno == 4321, "close: errno became %d", errno);
}

static void measures(void) {
    attn_context *alone = check_open(NULL, 1, 0, 0);
    double read = 0, fma = 0;
    errno = 4321;
    CHECK_OK(attn_measure(alone, ATTN_DRAM_READ, &read), "measure");
    CHECK_OK(attn_measure(alone, ATTN_FMA_F32, &fma), "measure");
    CHECK(errno == 4321, "errno became %d", errno);
    CHECK(read > 1e7 && read < 1e13 && fma > 1e7 && fma < 1e13, "%g bytes and %g operations a second", read, fma);
    attn_close(alone);
}

/* Who rounds weights to bf16 has products of bf16 for it, which can be measured; who has none says so. */
static void measures_products(void) {
    attn_context *alone = check_open(isa, 1, 0, 0);
    double dot = -1;
    attn_status status = attn_measure(alone, ATTN_DOT_BF16, &dot);
    CHECK(status == (check_rounds(isa) ? ATTN_OK : ATTN_ERROR_CEILING), "%s: %s", isa, attn_status_text(status));
    CHECK(status == ATTN_OK ? dot > 1e6 && dot < 1e14 : dot == -1, "%s: %g operations a second", isa, dot);
    attn_close(alone);
}

int main(int argc, char **argv) {
    char isas[CHECK_ISAS][16];
    check_begin("check_misc", argc, argv, 1);
    int count = check_isas(isas);
    bool wide = true;
    for (int n = 0; n < count; n++) {
        check_random random = check_random_from(check_seed);
        isa = isas[n];
        context = check_open_serial(isa, 2, 0, 0);
        zero_sizes(&random);
        many(&random);
        wide = wide && index_widths(&random, 1) && index_widths(&random, 5);
        far_unread(&random, 1);
        far_unread(&random, 9);
        far_unread(&random, 70);
        one_for_all(&random);
        packed(&random);
        for (int m = 0; m < 30; m++) explains(&random);
        describes();
        quiet_errno();
        measures_products();
        attn_close(context);
    }
    chosen_isa(isas, count);
    measures();
    printf("worst error/bound %.3f\n", worst.ratio);
    if (!wide) printf("check_misc: skip: strides beyond 32 bits: no address range of that size\n");
    return check_end();
}
