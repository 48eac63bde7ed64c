/* check_status.c: every rule that can be broken is broken, by itself: the call returns that rule's status, with a text of its own, has
 * written nothing and left errno alone. At the end every status but "no memory" (check_inject.c) has been seen. */
#include "harness.h"
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STATUSES = 64 };
static bool seen[STATUSES];
static attn_context *context;

#define EXPECT(wanted, call)                                                                                                               \
    do {                                                                                                                                   \
        errno = 4321;                                                                                                                      \
        attn_status status_ = (call);                                                                                                      \
        CHECK(errno == 4321, "errno became %d", errno);                                                                                    \
        CHECK(status_ == (wanted), "status is %d (%s), expected %d (%s)", (int)status_, attn_status_text(status_), (int)(wanted),          \
              attn_status_text(wanted));                                                                                                   \
        if ((int)status_ >= 0 && (int)status_ < STATUSES) seen[status_] = true;                                                            \
    } while (0)

static void make(check_case *c, attn_type type_mask) {
    check_random random = check_random_from(check_seed);
    check_case_init(c, ATTN_F32, 2, 4, 2, 3, 5, 8);
    c->problem.type_mask = type_mask;
    c->problem.mask = (attn_mask_strides){ 0, 0, 5, 1 };
    c->with_sinks = c->with_slopes = c->with_len_q = c->with_len_kv = true;
    check_case_build(c, &random, CHECK_NORMAL, CHECK_AT_END);
    for (int b = 0; b < 2; b++) { /* full: what overlaps is judged by the actual lengths */
        ((int32_t *)(void *)c->len_q.data)[b] = 3;
        ((int32_t *)(void *)c->len_kv.data)[b] = 5;
    }
    check_case_clear(c);
}

static void untouched(const check_case *c, const char *what) {
    size_t n = 0, m = 0;
    while (n < c->out.buffer.size && c->out.buffer.data[n] == CHECK_FILL) n++;
    while (m < c->lse.buffer.size && c->lse.buffer.data[m] == CHECK_FILL) m++;
    CHECK(n == c->out.buffer.size && m == c->lse.buffer.size, "%s: outputs were written", what);
}

/* ---- rules of the problem: forward, workspace, reserve, explain and merge all say the same ---- */
static void refuse_problem(check_case *c, attn_status wanted) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    size_t bytes = 77;
    snprintf(check_note, sizeof check_note, "rule %d", (int)wanted);
    EXPECT(wanted, attn_forward(context, &c->problem, &c->args));
    EXPECT(wanted, attn_workspace(context, &c->problem, &bytes));
    EXPECT(wanted, attn_reserve(context, &c->problem));
    EXPECT(wanted, attn_explain(context, &c->problem, &explanation));
    EXPECT(wanted, attn_merge(context, &c->problem, NULL, 0, &c->args));
    CHECK(bytes == 77, "workspace wrote %zu", bytes);
    CHECK(explanation.kernel == NULL && explanation.reason[0] == 0, "explain wrote");
    untouched(c, "a broken problem");
}

#define REFUSE_PROBLEM(wanted, change)                                                                                                     \
    do {                                                                                                                                   \
        check_case c_;                                                                                                                     \
        make(&c_, ATTN_NONE);                                                                                                              \
        attn_problem *p = &c_.problem;                                                                                                     \
        change;                                                                                                                            \
        refuse_problem(&c_, wanted);                                                                                                       \
        check_case_free(&c_);                                                                                                              \
    } while (0)

static void problem_sizes(void) {
    REFUSE_PROBLEM(ATTN_ERROR_BATCH, p->batch = -1);
    REFUSE_PROBLEM(ATTN_ERROR_HEADS_Q, p->heads_q = 0);
    REFUSE_PROBLEM(ATTN_ERROR_HEADS_Q, p->heads_q = -4);
    REFUSE_PROBLEM(ATTN_ERROR_HEADS_KV, p->heads_kv = 0);
    REFUSE_PROBLEM(ATTN_ERROR_HEADS_KV, p->heads_kv = -2);
    REFUSE_PROBLEM(ATTN_ERROR_HEADS_NOT_MULTIPLE, p->heads_kv = 3);
    REFUSE_PROBLEM(ATTN_ERROR_HEADS_NOT_MULTIPLE, p->heads_kv = 8);
    REFUSE_PROBLEM(ATTN_ERROR_LEN_Q, p->len_q = -1);
    REFUSE_PROBLEM(ATTN_ERROR_LEN_KV, p->len_kv = INT64_MIN);
    REFUSE_PROBLEM(ATTN_ERROR_DIM_QK, p->dim_qk = 0);
    REFUSE_PROBLEM(ATTN_ERROR_DIM_V, p->dim_v = -8);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->dim_qk = INT64_MAX);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->batch = INT64_MAX);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->len_kv = INT64_MAX);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->len_q = INT64_MAX);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->heads_q = INT64_MAX - 1);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->q.row = INT64_MAX);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->k.batch = INT64_MIN);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->v.head = INT64_MAX / 2);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, p->lse.row = INT64_MAX);
    REFUSE_PROBLEM(ATTN_ERROR_TOO_LARGE, (p->type_mask = ATTN_F32, p->mask.key = INT64_MAX / 4));
}

static void problem_values(void) {
    REFUSE_PROBLEM(ATTN_ERROR_TYPE_Q, p->type_q = ATTN_NONE);
    REFUSE_PROBLEM(ATTN_ERROR_TYPE_K, p->type_k = ATTN_BOOL);
    REFUSE_PROBLEM(ATTN_ERROR_TYPE_V, p->type_v = (attn_type)99);
    REFUSE_PROBLEM(ATTN_ERROR_TYPE_OUT, p->type_out = (attn_type)5);
    REFUSE_PROBLEM(ATTN_ERROR_TYPE_MASK, p->type_mask = (attn_type)77);
    REFUSE_PROBLEM(ATTN_ERROR_SCALE, p->scale = NAN);
    REFUSE_PROBLEM(ATTN_ERROR_SCALE, p->scale = -INFINITY);
    REFUSE_PROBLEM(ATTN_ERROR_SOFTCAP, p->softcap = -1);
    REFUSE_PROBLEM(ATTN_ERROR_SOFTCAP, p->softcap = NAN);
    REFUSE_PROBLEM(ATTN_ERROR_SOFTCAP, p->softcap = INFINITY);
    REFUSE_PROBLEM(ATTN_ERROR_ALIGN, p->align = (attn_align)2);
    REFUSE_PROBLEM(ATTN_ERROR_LEFT, p->left = -2);
    REFUSE_PROBLEM(ATTN_ERROR_RIGHT, p->right = INT64_MIN);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.row = 0);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.row = 7);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.row = -7);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.head = 0);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.head = 23);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.batch = p->out.head);
    REFUSE_PROBLEM(ATTN_ERROR_OUT_STRIDES, p->out.batch = -p->out.head);
}

/* ---- rules of the arguments ---- */
static void refuse_args(check_case *c, attn_status wanted) {
    snprintf(check_note, sizeof check_note, "rule %d", (int)wanted);
    EXPECT(wanted, attn_forward(context, &c->problem, &c->args));
    untouched(c, "broken arguments");
}

#define REFUSE_ARGS(wanted, type_mask, change)                                                                                             \
    do {                                                                                                                                   \
        check_case c_, *c = &c_;                                                                                                           \
        make(&c_, type_mask);                                                                                                              \
        attn_args *a = &c_.args;                                                                                                           \
        (void)a;                                                                                                                           \
        change;                                                                                                                            \
        refuse_args(c, wanted);                                                                                                            \
        check_case_free(&c_);                                                                                                              \
    } while (0)

static void pointers(void) {
    REFUSE_ARGS(ATTN_ERROR_NULL_Q, ATTN_NONE, a->q = NULL);
    REFUSE_ARGS(ATTN_ERROR_NULL_K, ATTN_NONE, a->k = NULL);
    REFUSE_ARGS(ATTN_ERROR_NULL_V, ATTN_NONE, a->v = NULL);
    REFUSE_ARGS(ATTN_ERROR_NULL_OUT, ATTN_NONE, a->out = NULL);
    REFUSE_ARGS(ATTN_ERROR_NULL_MASK, ATTN_BOOL, a->mask = NULL);
    REFUSE_ARGS(ATTN_ERROR_NULL_MASK, ATTN_F16, a->mask = NULL);
    REFUSE_ARGS(ATTN_ERROR_MASK_UNTYPED, ATTN_BOOL, c->problem.type_mask = ATTN_NONE);
    REFUSE_ARGS(ATTN_ERROR_LEN_Q_RANGE, ATTN_NONE, ((int32_t *)(void *)c->len_q.data)[1] = 4);
    REFUSE_ARGS(ATTN_ERROR_LEN_Q_RANGE, ATTN_NONE, ((int32_t *)(void *)c->len_q.data)[0] = -1);
    REFUSE_ARGS(ATTN_ERROR_LEN_KV_RANGE, ATTN_NONE, ((int32_t *)(void *)c->len_kv.data)[1] = 6);
    REFUSE_ARGS(ATTN_ERROR_LEN_KV_RANGE, ATTN_NONE, ((int32_t *)(void *)c->len_kv.data)[0] = INT32_MIN);
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->q = (const char *)a->q - 1);
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->k = (const char *)a->k - 2);
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->v = (const char *)a->v - 3);
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->out = (char *)a->out - 1);
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->lse = (float *)(void *)((char *)a->lse - 2));
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_F16, a->mask = (const char *)a->mask - 1);
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->sinks = (const float *)(const void *)((const char *)a->sinks - 1));
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->slopes = (const float *)(const void *)((const char *)a->slopes - 2));
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->len_q = (const int32_t *)(const void *)((const char *)a->len_q - 1));
    REFUSE_ARGS(ATTN_ERROR_MISALIGNED, ATTN_NONE, a->len_kv = (const int32_t *)(const void *)((const char *)a->len_kv - 2));
}

static void overlaps(void) {
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_NONE, a->q = a->out);
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_NONE, a->k = (const float *)a->out + 191);
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_NONE, a->v = (const float *)a->out - 159);
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_F32, a->mask = (const float *)a->out + 100);
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_NONE, a->sinks = (const float *)a->out + 3);
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_NONE, a->slopes = (const float *)a->out + 3);
    REFUSE_ARGS(ATTN_ERROR_OUT_OVERLAPS, ATTN_NONE, a->lse = (float *)a->out + 50);
    REFUSE_ARGS(ATTN_ERROR_LSE_STRIDES, ATTN_NONE, c->problem.lse.row = 0);
    REFUSE_ARGS(ATTN_ERROR_LSE_STRIDES, ATTN_NONE, c->problem.lse.head = 2);
    REFUSE_ARGS(ATTN_ERROR_LSE_STRIDES, ATTN_NONE, c->problem.lse.batch = c->problem.lse.head);
    REFUSE_ARGS(ATTN_ERROR_LSE_OVERLAPS, ATTN_NONE, a->q = a->lse);
    REFUSE_ARGS(ATTN_ERROR_LSE_OVERLAPS, ATTN_NONE, a->k = a->lse + 23);
    REFUSE_ARGS(ATTN_ERROR_LSE_OVERLAPS, ATTN_NONE, a->sinks = a->lse);
    REFUSE_ARGS(ATTN_ERROR_LSE_OVERLAPS, ATTN_F32, a->mask = a->lse);
}

/* A context whose plan needs a workspace, so that there are rules to break. */
static void workspaces(void) {
    check_case c;
    attn_context *two = check_open(NULL, 1, 2, 0);
    size_t bytes = 0;
    make(&c, ATTN_NONE);
    c.problem.len_kv = 700;
    c.problem.k = c.problem.v = (attn_strides){ 8, 8, 0 };
    CHECK_OK(attn_workspace(two, &c.problem, &bytes), "workspace");
    CHECK(bytes > 0, "two passes need no workspace");
    check_buffer room = check_buffer_make((bytes + 63) / 64 * 64 + 64, CHECK_AT_START);
    c.args.workspace = room.data;
    c.args.workspace_size = bytes - 1;
    snprintf(check_note, sizeof check_note, "workspaces");
    EXPECT(ATTN_ERROR_WORKSPACE_TOO_SMALL, attn_forward(two, &c.problem, &c.args));
    c.args.workspace_size = 0;
    EXPECT(ATTN_ERROR_WORKSPACE_TOO_SMALL, attn_forward(two, &c.problem, &c.args));
    c.args.workspace_size = bytes;
    c.args.workspace = room.data + 32;
    EXPECT(ATTN_ERROR_WORKSPACE_MISALIGNED, attn_forward(two, &c.problem, &c.args));
    c.args.workspace = room.data;
    attn_args args = c.args;
    args.q = room.data;
    EXPECT(ATTN_ERROR_WORKSPACE_OVERLAPS, attn_forward(two, &c.problem, &args));
    args = c.args;
    args.sinks = (const float *)(const void *)(room.data + bytes / 4 * 4 - 4);
    EXPECT(ATTN_ERROR_WORKSPACE_OVERLAPS, attn_forward(two, &c.problem, &args));
    args = c.args;
    args.out = room.data;
    EXPECT(ATTN_ERROR_OUT_OVERLAPS, attn_forward(two, &c.problem, &args));
    args = c.args;
    args.lse = (float *)(void *)room.data;
    EXPECT(ATTN_ERROR_LSE_OVERLAPS, attn_forward(two, &c.problem, &args));
    for (size_t n = 0; n < room.size; n++)
        if (room.data[n] != CHECK_FILL) {
            CHECK(0, "workspace byte %zu was written", n);
            break;
        }
    untouched(&c, "a bad workspace");
    EXPECT(ATTN_OK, attn_forward(two, &c.problem, &c.args));
    check_buffer_free(&room);
    check_case_free(&c);
    attn_close(two);
}

/* ---- structs that nobody set up, or of another version ---- */
static void stamps(void) {
    check_case c;
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_description description = ATTN_DESCRIPTION_INIT;
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *opened = context;
    static const struct {
        uint32_t add;
        bool zero;
        attn_status status;
    } bad[] = {
        { 0, true, ATTN_ERROR_UNINITIALISED },           /* zeroed */
        { 8, false, ATTN_ERROR_NEWER },                  /* eight bytes more than this library knows */
        { 0xffffff00u, false, ATTN_ERROR_UNINITIALISED } /* another mark or a size below the first version's */
    };
    make(&c, ATTN_NONE);
    snprintf(check_note, sizeof check_note, "stamps");
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        attn_problem problem = c.problem;
        attn_args args = c.args;
        problem.stamp = bad[n].zero ? 0 : problem.stamp + bad[n].add;
        args.stamp = bad[n].zero ? 0 : args.stamp + bad[n].add;
        explanation.stamp = bad[n].zero ? 0 : ATTN_STAMP(attn_explanation) + bad[n].add;
        description.stamp = bad[n].zero ? 0 : ATTN_STAMP(attn_description) + bad[n].add;
        options.stamp = bad[n].zero ? 0 : ATTN_STAMP(attn_options) + bad[n].add;
        EXPECT(bad[n].status, attn_forward(context, &problem, &c.args));
        EXPECT(bad[n].status, attn_forward(context, &c.problem, &args));
        EXPECT(bad[n].status, attn_merge(context, &c.problem, NULL, 0, &args));
        EXPECT(bad[n].status, attn_problem_dense(&problem, ATTN_BHLD));
        EXPECT(bad[n].status, attn_explain(context, &c.problem, &explanation));
        EXPECT(bad[n].status, attn_describe(context, &description));
        opened = context;
        EXPECT(bad[n].status, attn_open(&opened, &options));
        CHECK(opened == NULL, "context is not NULL after an error");
        memset(&problem, 0x5a, sizeof problem);
        EXPECT(bad[n].status,
               attn_problem_setup(&problem, c.problem.stamp * !bad[n].zero + bad[n].add, ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 1, 1));
        for (size_t m = 0; m < sizeof problem; m++) CHECK(((const unsigned char *)&problem)[m] == 0x5a, "setup wrote byte %zu", m);
    }
    untouched(&c, "a bad stamp");
    check_case_free(&c);
}

/* ---- the other verbs ---- */
static void nulls(void) {
    check_case c;
    size_t bytes;
    double rate;
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_description description = ATTN_DESCRIPTION_INIT;
    make(&c, ATTN_NONE);
    snprintf(check_note, sizeof check_note, "nulls");
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_forward(NULL, &c.problem, &c.args));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_merge(NULL, &c.problem, NULL, 0, &c.args));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_workspace(NULL, &c.problem, &bytes));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_reserve(NULL, &c.problem));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_explain(NULL, &c.problem, &explanation));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_describe(NULL, &description));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_measure(NULL, ATTN_DRAM_READ, &rate));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_forward(context, NULL, &c.args));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_merge(context, NULL, NULL, 0, &c.args));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_workspace(context, NULL, &bytes));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_reserve(context, NULL));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_explain(context, NULL, &explanation));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_problem_dense(NULL, ATTN_BHLD));
    EXPECT(ATTN_ERROR_NULL_PROBLEM, attn_problem_setup(NULL, ATTN_STAMP(attn_problem), ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 1, 1));
    EXPECT(ATTN_ERROR_NULL_ARGS, attn_forward(context, &c.problem, NULL));
    EXPECT(ATTN_ERROR_NULL_ARGS, attn_merge(context, &c.problem, NULL, 0, NULL));
    EXPECT(ATTN_ERROR_NULL_RESULT, attn_workspace(context, &c.problem, NULL));
    EXPECT(ATTN_ERROR_NULL_RESULT, attn_explain(context, &c.problem, NULL));
    EXPECT(ATTN_ERROR_NULL_RESULT, attn_describe(context, NULL));
    EXPECT(ATTN_ERROR_NULL_RESULT, attn_measure(context, ATTN_DRAM_READ, NULL));
    EXPECT(ATTN_ERROR_NULL_CONTEXT, attn_open(NULL, NULL));
    EXPECT(ATTN_ERROR_CEILING, attn_measure(context, (attn_ceiling)99, &rate));
    EXPECT(ATTN_ERROR_LAYOUT, attn_problem_dense(&c.problem, (attn_layout)2));
    EXPECT(ATTN_ERROR_LAYOUT, attn_problem_setup(&c.problem, ATTN_STAMP(attn_problem), (attn_layout)-1, ATTN_F32, 1, 1, 1, 1, 1, 1));
    EXPECT(ATTN_ERROR_UNINITIALISED, attn_forward(context, &c.problem, &c.args));
    untouched(&c, "a null");
    attn_close(NULL);
    check_case_free(&c);
}

static void run_nothing(void *host, attn_job job, void *state, size_t count) { (void)host, (void)job, (void)state, (void)count; }

static void options_rules(void) {
    static const attn_executor idle = { NULL, NULL, 2 }, none = { run_nothing, NULL, 0 }, many = { run_nothing, NULL, 1025 };
    static const struct {
        int device, threads, passes;
        int64_t chunk;
        const char *isa;
        const attn_executor *executor;
        attn_status status;
    } bad[] = {
        { 7, 0, 0, 0, NULL, NULL, ATTN_ERROR_DEVICE },    { -1, 0, 0, 0, NULL, NULL, ATTN_ERROR_DEVICE },
        { 0, -1, 0, 0, NULL, NULL, ATTN_ERROR_THREADS },  { 0, 1025, 0, 0, NULL, NULL, ATTN_ERROR_THREADS },
        { 0, 0, 3, 0, NULL, NULL, ATTN_ERROR_PASSES },    { 0, 0, -1, 0, NULL, NULL, ATTN_ERROR_PASSES },
        { 0, 0, 0, -1, NULL, NULL, ATTN_ERROR_CHUNK },    { 0, 0, 0, INT64_MIN, NULL, NULL, ATTN_ERROR_CHUNK },
        { 0, 1, 0, 0, "mmx", NULL, ATTN_ERROR_ISA },      { 0, 1, 0, 0, "", NULL, ATTN_ERROR_ISA },
        { 0, 1, 0, 0, "AVX2", NULL, ATTN_ERROR_ISA },     { 0, 1, 0, 0, "scalar ", NULL, ATTN_ERROR_ISA },
        { 0, 0, 0, 0, NULL, &idle, ATTN_ERROR_EXECUTOR }, { 0, 0, 0, 0, NULL, &none, ATTN_ERROR_EXECUTOR },
        { 0, 0, 0, 0, NULL, &many, ATTN_ERROR_EXECUTOR },
    };
    for (size_t n = 0; n < sizeof bad / sizeof *bad; n++) {
        attn_options options = ATTN_OPTIONS_INIT;
        attn_context *opened = context;
        options.device = (attn_device)bad[n].device;
        options.threads = bad[n].threads;
        options.passes = bad[n].passes;
        options.chunk = bad[n].chunk;
        options.isa = bad[n].isa;
        options.executor = bad[n].executor;
        snprintf(check_note, sizeof check_note, "options %zu", n);
        EXPECT(bad[n].status, attn_open(&opened, &options));
        CHECK(opened == NULL, "context is not NULL after an error");
    }
    for (int device = ATTN_CPU; device <= ATTN_REFERENCE; device++)
        for (int index = -1; index <= 1; index += 2) {
            attn_options options = ATTN_OPTIONS_INIT;
            attn_context *opened = context;
            options.device = (attn_device)device;
            options.index = index;
            EXPECT(ATTN_ERROR_INDEX, attn_open(&opened, &options));
        }
    for (int precision = -1; precision <= 2; precision++) {
        attn_options options = ATTN_OPTIONS_INIT;
        attn_context *opened = context;
        options.precision = (attn_precision)precision;
        EXPECT(precision == ATTN_EXACT || precision == ATTN_FAST ? ATTN_OK : ATTN_ERROR_PRECISION, attn_open(&opened, &options));
        attn_close(opened);
    }
}

/* Options as they were before precision: still good. */
static void older_options(void) {
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *opened = NULL;
    options.stamp -= (uint32_t)(sizeof options - offsetof(attn_options, precision));
    memset(&options.precision, 0x7f, sizeof options - offsetof(attn_options, precision));
    EXPECT(ATTN_OK, attn_open(&opened, &options));
    attn_close(opened);
}

/* Explanations as they were before weight_error: filled as far as they go. */
static void older_explanation(void) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    const unsigned char *rest = (const unsigned char *)&explanation.weight_error;
    const size_t size = sizeof explanation - offsetof(attn_explanation, weight_error);
    check_case c;
    make(&c, ATTN_NONE);
    explanation.stamp -= (uint32_t)size;
    memset(&explanation.weight_error, 0x7f, size);
    EXPECT(ATTN_OK, attn_explain(context, &c.problem, &explanation));
    CHECK(explanation.kernel != NULL && explanation.reason[0] != 0, "an older explanation was not filled");
    for (size_t n = 0; n < size; n++) CHECK(rest[n] == 0x7f, "explain wrote byte %zu behind an older explanation", n);
    check_case_free(&c);
}

static void merge_rules(void) {
    check_case c;
    make(&c, ATTN_NONE);
    float *out = malloc(c.out.buffer.size), *lse = calloc(1, c.lse.buffer.size);
    if (!out || !lse) abort();
    memset(out, 0, c.out.buffer.size);
    float *lse_out = (float *)(void *)c.lse.base, *out_out = (float *)(void *)c.out.base;
    attn_state fine = { out, lse };
    const attn_state no_out[] = { fine, { NULL, lse } }, no_lse[] = { { out, NULL }, fine };
    const attn_state over_out[] = { fine, { out_out, lse } }, over_lse[] = { fine, { out, lse_out + 23 } },
                     cross[] = { { lse_out, lse }, fine };
    snprintf(check_note, sizeof check_note, "merge");
    EXPECT(ATTN_ERROR_COUNT, attn_merge(context, &c.problem, &fine, -1, &c.args));
    EXPECT(ATTN_ERROR_NULL_STATES, attn_merge(context, &c.problem, NULL, 1, &c.args));
    EXPECT(ATTN_ERROR_NULL_STATES, attn_merge(context, &c.problem, no_out, 2, &c.args));
    EXPECT(ATTN_ERROR_NULL_STATES, attn_merge(context, &c.problem, no_lse, 2, &c.args));
    EXPECT(ATTN_ERROR_STATE_OVERLAPS, attn_merge(context, &c.problem, over_out, 2, &c.args));
    EXPECT(ATTN_ERROR_STATE_OVERLAPS, attn_merge(context, &c.problem, over_lse, 2, &c.args));
    EXPECT(ATTN_ERROR_STATE_OVERLAPS, attn_merge(context, &c.problem, cross, 2, &c.args));
    attn_args args = c.args;
    args.out = NULL;
    EXPECT(ATTN_ERROR_NULL_OUT, attn_merge(context, &c.problem, &fine, 1, &args));
    ((int32_t *)(void *)c.len_q.data)[0] = 9;
    EXPECT(ATTN_ERROR_LEN_Q_RANGE, attn_merge(context, &c.problem, &fine, 1, &c.args));
    untouched(&c, "a bad merge");
    free(out);
    free(lse);
    check_case_free(&c);
}

static void texts(void) {
    static const char *const all[] = {
#define TEXT(name, number, text) [number] = text,
        ATTN_STATUS_LIST(TEXT)
#undef TEXT
    };
    int count = (int)(sizeof all / sizeof *all);
    check_note[0] = 0;
    for (int n = 0; n < count; n++) {
        const char *text = attn_status_text((attn_status)n);
        CHECK(text && all[n] && !strcmp(text, all[n]), "text of status %d", n);
        for (int m = 0; m < n; m++) CHECK(strcmp(text, attn_status_text((attn_status)m)) != 0, "statuses %d and %d share a text", n, m);
        CHECK(n == 0 || strstr(text, ": "), "status %d does not name what it is about: %s", n, text);
        const bool elsewhere = n == ATTN_ERROR_OUT_OF_MEMORY || (n >= ATTN_ERROR_PLUGIN && n <= ATTN_ERROR_HOST_POINTER); /* check_plugin */
        CHECK(seen[n] || elsewhere, "status %d (%s) was never seen", n, text);
    }
    for (int n = -5; n < 1000; n++) CHECK(attn_status_text((attn_status)n) != NULL, "text of number %d is NULL", n);
}

int main(int argc, char **argv) {
    check_begin("check_status", argc, argv, 1);
    for (int device = 0; device < 2; device++) {
        context = device ? check_open_reference() : check_open(NULL, 1, 0, 0);
        problem_sizes();
        problem_values();
        pointers();
        overlaps();
        stamps();
        nulls();
        merge_rules();
        older_explanation();
        attn_close(context);
    }
    context = check_open(NULL, 1, 0, 0);
    workspaces();
    options_rules();
    older_options();
    check_case c;
    make(&c, ATTN_NONE);
    EXPECT(ATTN_OK, attn_forward(context, &c.problem, &c.args));
    check_case_free(&c);
    attn_close(context);
    texts();
    return check_end();
}
