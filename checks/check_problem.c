/* check_problem.c: setting up a problem, and every rule that a problem and its arguments must meet: each broken alone gives its own status,
 * and layouts at the edge of the rules are accepted. Tensors here are addresses only: the checks follow no pointer but those to lengths
 * and states. */
#include "expect.h"
#include "problem.h"
#include <math.h>
#include <string.h>

enum { CODES = 64, WORKSPACE = 1024 };

static bool reached[CODES];

static void *address(uint64_t at) { return (void *)(uintptr_t)at; }

static void expect_status(attn_status got, attn_status want, int line, const char *what) {
    EXPECT(got == want, "line %d: %s: got \"%s\", should be \"%s\"", line, what, attn_status_text(got), attn_status_text(want));
    if (got == want) reached[want] = true;
}

/* A problem and arguments that are right: two sequences, four heads on two, 16 rows, 24 keys, a mask, lengths, everything given. */
typedef struct asked {
    attn_problem p;
    attn_args a;
    attn_state states[3];
    int32_t len_q[2], len_kv[2];
    int64_t count;
} asked;

static asked right(void) {
    asked x = { .a = ATTN_ARGS_INIT, .len_q = { 16, 3 }, .len_kv = { 0, 24 }, .count = 3 };
    attn_problem_init(&x.p, ATTN_BHLD, ATTN_F16, 2, 4, 2, 16, 24, 8);
    x.p.type_mask = ATTN_F32;
    x.p.mask = (attn_mask_strides){ 4 * 16 * 24, 16 * 24, 24, 1 };
    x.a.q = address(0x10000);
    x.a.k = address(0x20000);
    x.a.v = address(0x30000);
    x.a.mask = address(0x40000);
    x.a.out = address(0x50000);
    x.a.lse = address(0x60000);
    x.a.sinks = address(0x70000);
    x.a.slopes = address(0x80000);
    x.a.workspace = address(0x90000);
    x.a.workspace_size = WORKSPACE;
    for (uint64_t i = 0; i < 3; i++) x.states[i] = (attn_state){ address(0x100000 + i * 0x10000), address(0x200000 + i * 0x10000) };
    return x;
}

static attn_status forward_status(asked *x) {
    attn_problem problem;
    attn_args args;
    attn_status status = attn_problem_check(&x->p, &problem);
    if (status != ATTN_OK) return status;
    if (x->a.len_q == NULL) x->a.len_q = x->len_q;
    if (x->a.len_kv == NULL) x->a.len_kv = x->len_kv;
    status = attn_args_check(&problem, &x->a, WORKSPACE, false, &args);
    EXPECT(status != ATTN_OK || memcmp(&args, &x->a, sizeof args) == 0, "the copy differs");
    return status;
}

static attn_status merge_status(asked *x) {
    attn_problem problem;
    attn_args args;
    attn_status status = attn_problem_check(&x->p, &problem);
    if (status != ATTN_OK) return status;
    if (x->a.len_q == NULL) x->a.len_q = x->len_q;
    return attn_merge_check(&problem, x->count < 0 ? NULL : x->states, x->count, &x->a, WORKSPACE, false, &args);
}

/* One change to what is right, and the status it must give. */
#define FORWARD(code, ...)                                                                                                                 \
    do {                                                                                                                                   \
        asked x = right();                                                                                                                 \
        __VA_ARGS__;                                                                                                                       \
        expect_status(forward_status(&x), ATTN_##code, __LINE__, #__VA_ARGS__);                                                            \
    } while (0)
#define MERGE(code, ...)                                                                                                                   \
    do {                                                                                                                                   \
        asked x = right();                                                                                                                 \
        __VA_ARGS__;                                                                                                                       \
        expect_status(merge_status(&x), ATTN_##code, __LINE__, #__VA_ARGS__);                                                              \
    } while (0)

static void broken_problems(void) {
    FORWARD(OK, );
    FORWARD(ERROR_UNINITIALISED, x.p.stamp = 0);
    FORWARD(ERROR_UNINITIALISED, x.p.stamp ^= 0x10000);
    FORWARD(ERROR_UNINITIALISED, x.p.stamp -= 1);
    FORWARD(ERROR_NEWER, x.p.stamp += 8);
    FORWARD(ERROR_BATCH, x.p.batch = -1);
    FORWARD(ERROR_HEADS_Q, x.p.heads_q = 0);
    FORWARD(ERROR_HEADS_KV, x.p.heads_kv = 0);
    FORWARD(ERROR_HEADS_NOT_MULTIPLE, x.p.heads_kv = 3);
    FORWARD(ERROR_HEADS_NOT_MULTIPLE, x.p.heads_kv = 8);
    FORWARD(ERROR_LEN_Q, x.p.len_q = INT64_MIN);
    FORWARD(ERROR_LEN_KV, x.p.len_kv = -1);
    FORWARD(ERROR_DIM_QK, x.p.dim_qk = 0);
    FORWARD(ERROR_DIM_V, x.p.dim_v = 0);
    FORWARD(ERROR_TOO_LARGE, x.p.batch = INT64_C(1) << 55);
    FORWARD(ERROR_TOO_LARGE, x.p.heads_q = x.p.heads_kv = INT64_C(1) << 50);
    FORWARD(ERROR_TOO_LARGE, x.p.len_kv = INT64_MAX);
    FORWARD(ERROR_TOO_LARGE, x.p.batch = 0; x.p.len_q = INT64_MAX);
    FORWARD(ERROR_TOO_LARGE, x.p.dim_v = INT64_MAX);
    FORWARD(ERROR_TOO_LARGE, x.p.q.batch = INT64_MAX / 2 + 1);
    FORWARD(ERROR_TOO_LARGE, x.p.k.row = INT64_MAX / 24);
    FORWARD(ERROR_TOO_LARGE, x.p.v.row = INT64_MIN / 24);
    FORWARD(ERROR_TOO_LARGE, x.p.out.head = INT64_MIN);
    FORWARD(ERROR_TOO_LARGE, x.p.mask.key = INT64_MIN / 8);
    FORWARD(ERROR_TOO_LARGE, x.p.lse.head = INT64_MAX / 4);
    FORWARD(ERROR_TYPE_Q, x.p.type_q = ATTN_NONE);
    FORWARD(ERROR_TYPE_K, x.p.type_k = ATTN_BOOL);
    FORWARD(ERROR_TYPE_V, x.p.type_v = (attn_type)5);
    FORWARD(ERROR_TYPE_OUT, x.p.type_out = (attn_type)-1);
    FORWARD(ERROR_TYPE_MASK, x.p.type_mask = (attn_type)5);
    FORWARD(ERROR_SCALE, x.p.scale = NAN);
    FORWARD(ERROR_SCALE, x.p.scale = -INFINITY);
    FORWARD(ERROR_SOFTCAP, x.p.softcap = NAN);
    FORWARD(ERROR_SOFTCAP, x.p.softcap = INFINITY);
    FORWARD(ERROR_SOFTCAP, x.p.softcap = -1.0f);
    FORWARD(ERROR_ALIGN, x.p.align = (attn_align)2);
    FORWARD(ERROR_LEFT, x.p.left = -2);
    FORWARD(ERROR_RIGHT, x.p.right = INT64_MIN);
    FORWARD(ERROR_OUT_STRIDES, x.p.out.batch = 0);
    FORWARD(ERROR_OUT_STRIDES, x.p.out.row = 7);
    FORWARD(ERROR_OUT_STRIDES, x.p.out.head = -x.p.out.batch);
    FORWARD(ERROR_LSE_STRIDES, x.p.lse.row = 0);
    FORWARD(ERROR_LSE_STRIDES, x.p.lse.head = x.p.lse.row);
}

static void broken_arguments(void) {
    static const int32_t lengths[2] = { 1, 1 };
    FORWARD(ERROR_UNINITIALISED, x.a.stamp = 1);
    FORWARD(ERROR_UNINITIALISED, x.a.stamp -= 16); /* 8: as it first came out, without stream */
    FORWARD(ERROR_NEWER, x.a.stamp += 8);
    FORWARD(ERROR_NULL_Q, x.a.q = NULL);
    FORWARD(ERROR_NULL_K, x.a.k = NULL);
    FORWARD(ERROR_NULL_V, x.a.v = NULL);
    FORWARD(ERROR_NULL_OUT, x.a.out = NULL);
    FORWARD(ERROR_NULL_MASK, x.a.mask = NULL);
    FORWARD(ERROR_MASK_UNTYPED, x.p.type_mask = ATTN_NONE);
    FORWARD(ERROR_LEN_Q_RANGE, x.len_q[1] = 17);
    FORWARD(ERROR_LEN_Q_RANGE, x.len_q[0] = -1);
    FORWARD(ERROR_LEN_KV_RANGE, x.len_kv[0] = 25);
    FORWARD(ERROR_LEN_KV_RANGE, x.len_kv[1] = INT32_MIN);
    FORWARD(ERROR_MISALIGNED, x.a.q = address(0x10001));
    FORWARD(ERROR_MISALIGNED, x.a.k = address(0x20003));
    FORWARD(ERROR_MISALIGNED, x.a.v = address(0x30001); x.len_kv[0] = 99);
    FORWARD(ERROR_MISALIGNED, x.p.type_out = ATTN_F32; x.a.out = address(0x50002));
    FORWARD(ERROR_MISALIGNED, x.a.mask = address(0x40002));
    FORWARD(ERROR_MISALIGNED, x.a.lse = address(0x60001));
    FORWARD(ERROR_MISALIGNED, x.a.sinks = address(0x70002));
    FORWARD(ERROR_MISALIGNED, x.a.slopes = address(0x80002));
    FORWARD(ERROR_MISALIGNED, x.a.len_q = (const int32_t *)address(0xa0001));
    FORWARD(ERROR_MISALIGNED, x.a.len_kv = (const int32_t *)address(0xa0002));
    FORWARD(ERROR_TOO_LARGE, x.a.q = address(UINTPTR_MAX - 1));
    FORWARD(ERROR_TOO_LARGE, x.p.k.row = -8; x.a.k = address(16));
    FORWARD(ERROR_WORKSPACE_TOO_SMALL, x.a.workspace_size = WORKSPACE - 1);
    FORWARD(ERROR_WORKSPACE_MISALIGNED, x.a.workspace = address(0x90020));

    FORWARD(ERROR_OUT_OVERLAPS, x.a.q = x.a.out);
    FORWARD(ERROR_OUT_OVERLAPS, x.a.k = address(0x50000 + 2 * 4 * 16 * 8 * 2 - 2));
    FORWARD(ERROR_OUT_OVERLAPS, x.a.v = address(0x50000 - 2 * 2 * 24 * 8 * 2 + 2));
    FORWARD(ERROR_OUT_OVERLAPS, x.a.mask = address(0x50004));
    FORWARD(ERROR_OUT_OVERLAPS, x.a.lse = address(0x50004));
    FORWARD(ERROR_OUT_OVERLAPS, x.a.sinks = address(0x50000 - 12));
    FORWARD(ERROR_OUT_OVERLAPS, x.a.slopes = address(0x50000));
    FORWARD(ERROR_OUT_OVERLAPS, x.a.out = x.len_q);
    FORWARD(ERROR_OUT_OVERLAPS, x.a.out = x.len_kv);
    FORWARD(ERROR_OUT_OVERLAPS, x.a.workspace = address(0x50000 - 960));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x10000));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x20000));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x30000));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x40000));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x70000));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x80000));
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = (float *)(void *)x.len_kv);
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = (float *)(void *)lengths; x.a.len_q = lengths);
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = (float *)(void *)lengths; x.a.len_kv = lengths);
    FORWARD(ERROR_LSE_OVERLAPS, x.a.lse = address(0x90000));
    FORWARD(ERROR_WORKSPACE_OVERLAPS, x.a.workspace = address(0x10000));
    FORWARD(ERROR_WORKSPACE_OVERLAPS, x.a.workspace = address(0x30000 + 2 * 2 * 24 * 8 * 2 - 64));
    FORWARD(ERROR_WORKSPACE_OVERLAPS, x.a.mask = address(0x90000));
    FORWARD(ERROR_WORKSPACE_OVERLAPS, x.a.sinks = address(0x90000 + WORKSPACE - 4));
}

static void broken_merges(void) {
    asked y = right();
    attn_problem problem;
    attn_args args;
    MERGE(OK, );
    MERGE(OK, x.count = 0);
    MERGE(OK, x.a.q = x.a.k = x.a.v = x.a.mask = x.a.out; x.a.sinks = x.a.slopes = address(3); x.a.len_kv = address(1));
    MERGE(OK, x.a.lse = NULL; x.p.lse.row = 0);
    MERGE(ERROR_COUNT, x.count = -1);
    MERGE(ERROR_NULL_STATES, x.states[2].out = NULL);
    MERGE(ERROR_NULL_STATES, x.states[0].lse = NULL);
    MERGE(ERROR_MISALIGNED, x.states[1].lse = address(0x210002));
    MERGE(ERROR_MISALIGNED, x.a.out = address(0x50001));
    MERGE(ERROR_NULL_OUT, x.a.out = NULL);
    MERGE(ERROR_LEN_Q_RANGE, x.len_q[0] = 17);
    MERGE(ERROR_LSE_STRIDES, x.p.lse.row = 0);
    MERGE(ERROR_WORKSPACE_TOO_SMALL, x.a.workspace_size = 0);
    MERGE(ERROR_WORKSPACE_MISALIGNED, x.a.workspace = address(0x90001));
    MERGE(ERROR_OUT_OVERLAPS, x.a.lse = x.a.out);
    MERGE(ERROR_OUT_OVERLAPS, x.a.out = x.states);
    MERGE(ERROR_OUT_OVERLAPS, x.a.out = x.len_q);
    MERGE(ERROR_LSE_OVERLAPS, x.a.lse = (float *)(void *)x.states);
    MERGE(ERROR_STATE_OVERLAPS, x.a.out = address(0x120000));
    MERGE(ERROR_STATE_OVERLAPS, x.states[2].lse = x.a.lse);
    MERGE(ERROR_STATE_OVERLAPS, x.states[1].out = x.a.lse);
    MERGE(ERROR_STATE_OVERLAPS, x.states[1].out = address(0x50000 - 2 * 4 * 16 * 8 * 4 + 4)); /* f32 is twice as long as the f16 out */
    MERGE(OK, x.states[1].out = address(0x50000 - (4 + 3) * 4 * 16 * 8 * 4));
    MERGE(ERROR_WORKSPACE_OVERLAPS, x.states[1].out = x.a.workspace);
    MERGE(ERROR_TOO_LARGE, x.p.out.batch = INT64_MAX / 3); /* fits in f16, not in f32 */
    attn_problem_check(&y.p, &problem);
    expect_status(attn_merge_check(&problem, NULL, 1, &y.a, WORKSPACE, false, &args), ATTN_ERROR_NULL_STATES, __LINE__, "states NULL");
    expect_status(attn_merge_check(&problem, y.states, INT64_MAX, &y.a, WORKSPACE, false, &args), ATTN_ERROR_TOO_LARGE, __LINE__, "count");
    expect_status(attn_merge_check(&problem, y.states, 3, NULL, WORKSPACE, false, &args), ATTN_ERROR_NULL_ARGS, __LINE__, "args NULL");
    y.a.stamp = 0;
    expect_status(attn_merge_check(&problem, NULL, 0, &y.a, WORKSPACE, false, &args), ATTN_ERROR_UNINITIALISED, __LINE__, "args stamp");
    y = right();
    attn_merge_check(&problem, y.states, 3, &y.a, WORKSPACE, false, &args);
    EXPECT(!args.q && !args.k && !args.v && !args.mask && !args.sinks && !args.slopes && !args.len_kv, "not all NULL");
    EXPECT(args.out == y.a.out && args.lse == y.a.lse && args.workspace == y.a.workspace, "copied");
    expect_status(attn_args_check(&problem, NULL, 0, false, &args), ATTN_ERROR_NULL_ARGS, __LINE__, "args NULL");
    expect_status(attn_problem_check(NULL, &problem), ATTN_ERROR_NULL_PROBLEM, __LINE__, "problem NULL");
}

/* Everything here is legal, if only just. */
static void legal(void) {
    FORWARD(OK, x.p.scale = 0.0f; x.p.softcap = 1e-30f; x.p.offset = INT64_MIN; x.p.left = INT64_MAX; x.p.right = 0);
    FORWARD(OK, x.p.q.batch = x.p.q.head = x.p.q.row = 0; x.p.k = x.p.v = x.p.q; x.p.mask = (attn_mask_strides){ 0, 0, 0, 0 });
    FORWARD(OK, x.p.out.row = -8; x.a.out = address(0x50000 + 15 * 16));
    FORWARD(ERROR_OUT_OVERLAPS, x.p.out.row = -8; x.a.out = address(0x50000 + 15 * 16); x.a.k = address(0x50000));
    FORWARD(OK, x.a.q = x.a.k = x.a.v = address(0x10000)); /* inputs may be the same */
    FORWARD(OK, x.a.q = address(0x10002); x.a.k = address(0x20006); x.a.lse = address(0x60004));
    FORWARD(OK, x.p.lse.row = 0; x.a.lse = NULL);
    FORWARD(OK, x.a.workspace = NULL; x.a.workspace_size = 0);
    FORWARD(OK, x.a.workspace = address(0x50000 - 1024); x.a.workspace_size = 1 << 20); /* what is asked for lies in front of out */
    FORWARD(OK, x.p.type_mask = ATTN_BOOL; x.a.mask = address(0x40001));
    FORWARD(OK, x.p.batch = 0; x.a.q = x.a.k = x.a.v = x.a.mask = NULL; x.a.out = NULL);
    FORWARD(OK, x.p.len_q = 0; x.a.q = x.a.mask = NULL; x.a.out = NULL; x.len_q[0] = x.len_q[1] = 0);
    FORWARD(OK, x.p.len_kv = 0; x.a.k = x.a.v = x.a.mask = NULL; x.len_kv[1] = 0);
    FORWARD(ERROR_NULL_Q, x.p.len_kv = 0; x.a.q = x.a.k = x.a.v = x.a.mask = NULL; x.len_kv[1] = 0);
    FORWARD(OK, x.p.batch = 1; x.p.q.batch = x.p.out.batch = x.p.lse.batch = x.p.mask.batch = INT64_MIN; x.p.k.batch = INT64_MAX);
    FORWARD(OK, x.p.out.head = 0; x.p.out.batch = 8 * 16; x.p.heads_q = x.p.heads_kv = 1; x.p.lse.batch = 16; x.p.lse.head = -1);
    /* q, k, v and out in one packed row of each token; and one element further */
    FORWARD(OK, x.p.q = x.p.k = x.p.v = x.p.out = (attn_strides){ 24 * 96, 8, 96 }; x.a.q = address(0x10000); x.a.k = address(0x10040);
            x.a.v = address(0x10060); x.a.out = address(0x10080));
    FORWARD(ERROR_OUT_OVERLAPS, x.p.q = x.p.k = x.p.v = x.p.out = (attn_strides){ 24 * 96, 8, 96 }; x.a.q = address(0x10000);
            x.a.k = address(0x10040); x.a.v = address(0x10060); x.a.out = address(0x1007e));
    /* out in the part of k's buffer that no length reaches, until one does */
    FORWARD(OK, x.p.k.batch = 2 * 40 * 8; x.p.k.head = 40 * 8; x.p.out.batch = 2 * 40 * 8; x.p.out.head = 40 * 8; x.p.heads_q = 2;
            x.p.lse.batch = 32; x.len_kv[1] = 20; x.a.out = address(0x20000 + 20 * 16));
    FORWARD(ERROR_OUT_OVERLAPS, x.p.k.batch = 2 * 40 * 8; x.p.k.head = 40 * 8; x.p.out.batch = 2 * 40 * 8; x.p.out.head = 40 * 8;
            x.p.heads_q = 2; x.p.lse.batch = 32; x.len_kv[1] = 21; x.a.out = address(0x20000 + 20 * 16));
}

static void unused_strides(void) {
    attn_problem given, p;
    attn_problem_init(&given, ATTN_BLHD, ATTN_F32, 1, 2, 1, 1, 5, 4);
    given.mask = (attn_mask_strides){ 1, 2, 3, 4 };
    EXPECT(attn_problem_check(&given, &p) == ATTN_OK, "decode");
    EXPECT(p.q.batch == 0 && p.q.head == 4 && p.q.row == 0, "q: %" PRId64 " %" PRId64 " %" PRId64, p.q.batch, p.q.head, p.q.row);
    EXPECT(p.k.batch == 0 && p.k.head == 0 && p.k.row == 4, "k: %" PRId64 " %" PRId64 " %" PRId64, p.k.batch, p.k.head, p.k.row);
    EXPECT(p.lse.head == 1 && p.out.head == 4, "lse: %" PRId64 ", out: %" PRId64, p.lse.head, p.out.head);
    EXPECT(p.mask.head == 0 && p.mask.key == 0, "no mask");
    given.type_mask = ATTN_BOOL;
    EXPECT(attn_problem_check(&given, &p) == ATTN_OK, "mask");
    EXPECT(p.mask.batch == 0 && p.mask.head == 2 && p.mask.row == 0 && p.mask.key == 4, "mask");
    given.len_kv = 0;
    EXPECT(attn_problem_check(&given, &p) == ATTN_OK && p.k.row == 0 && p.mask.head == 0 && p.q.head == 4, "no keys");
}

/* Each tensor flush against out and against lse, on both sides, and then an element (of the workspace, 64 bytes) too close. */
static void flush_tensors(void) {
    static const struct {
        const char *name;
        size_t field, bytes, step;
    } tensors[] = { { "q", offsetof(attn_args, q), 2 * 4 * 16 * 8 * 2, 2 },
                    { "k", offsetof(attn_args, k), 2 * 2 * 24 * 8 * 2, 2 },
                    { "v", offsetof(attn_args, v), 2 * 2 * 24 * 6 * 2, 2 },
                    { "mask", offsetof(attn_args, mask), 2 * 4 * 16 * 24 * 4, 4 },
                    { "sinks", offsetof(attn_args, sinks), 4 * 4, 4 },
                    { "slopes", offsetof(attn_args, slopes), 4 * 4, 4 },
                    { "workspace", offsetof(attn_args, workspace), WORKSPACE, 64 } };
    const uint64_t out = 0x50000, out_end = out + 2 * 4 * 16 * 6 * 2, lse = 0x60000, lse_end = lse + 2 * 4 * 16 * 4;
    for (size_t t = 0; t < sizeof tensors / sizeof *tensors; t++) {
        size_t bytes = tensors[t].bytes, step = tensors[t].step;
        uint64_t apart[] = { out - bytes, out_end, lse - bytes, lse_end };
        uint64_t close[] = { out - bytes + step, out_end - step, lse - bytes + step, lse_end - step };
        for (int n = 0; n < 4; n++) {
            asked x = right();
            x.p.dim_v = 6;
            attn_problem_dense(&x.p, ATTN_BHLD);
            void *at = address(apart[n]);
            memcpy((char *)&x.a + tensors[t].field, &at, sizeof at);
            expect_status(forward_status(&x), ATTN_OK, n, tensors[t].name);
            at = address(close[n]);
            memcpy((char *)&x.a + tensors[t].field, &at, sizeof at);
            expect_status(forward_status(&x), n < 2 ? ATTN_ERROR_OUT_OVERLAPS : ATTN_ERROR_LSE_OVERLAPS, n, tensors[t].name);
        }
    }
}

static bool same_strides(attn_strides s, int64_t batch, int64_t head, int64_t row) {
    return s.batch == batch && s.head == head && s.row == row;
}

static void setting_up(void) {
    attn_problem p, before;
    uint32_t stamp = ATTN_STAMP(attn_problem), wrong[] = { 0, stamp - 4, stamp ^ 0x80000000 };
    memset(&p, 0xa5, sizeof p);
    before = p;
    for (int n = 0; n < 3; n++)
        expect_status(attn_problem_setup(&p, wrong[n], ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 1, 1), ATTN_ERROR_UNINITIALISED, __LINE__, "stamp");
    expect_status(attn_problem_setup(&p, stamp + 4, ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 1, 1), ATTN_ERROR_NEWER, __LINE__, "stamp");
    expect_status(attn_problem_setup(NULL, stamp, ATTN_BHLD, ATTN_F32, 1, 1, 1, 1, 1, 1), ATTN_ERROR_NULL_PROBLEM, __LINE__, "NULL");
    expect_status(attn_problem_dense(NULL, ATTN_BHLD), ATTN_ERROR_NULL_PROBLEM, __LINE__, "NULL");
    expect_status(attn_problem_dense(&p, ATTN_BHLD), ATTN_ERROR_UNINITIALISED, __LINE__, "stamp");
    EXPECT(memcmp(&p, &before, sizeof p) == 0, "a wrong stamp changed the struct");

    EXPECT(attn_problem_setup(&p, stamp, ATTN_BHLD, ATTN_BF16, 2, 6, 3, 5, 7, 64) == ATTN_OK, "setup");
    EXPECT(p.stamp == stamp && p.type_q == ATTN_BF16 && p.type_k == ATTN_BF16 && p.type_v == ATTN_BF16 && p.type_out == ATTN_BF16, "types");
    EXPECT(p.batch == 2 && p.heads_q == 6 && p.heads_kv == 3 && p.len_q == 5 && p.len_kv == 7 && p.dim_qk == 64 && p.dim_v == 64, "sizes");
    EXPECT(p.scale == 0.125f && p.softcap == 0 && p.align == ATTN_TOP_LEFT && p.type_mask == ATTN_NONE, "scale %g", (double)p.scale);
    EXPECT(p.offset == 0 && p.left == -1 && p.right == -1 && p.mask.batch == 0 && p.mask.key == 0, "band");
    EXPECT(same_strides(p.q, 6 * 5 * 64, 5 * 64, 64) && same_strides(p.k, 3 * 7 * 64, 7 * 64, 64), "q and k of bhld");
    p.dim_v = 10;
    EXPECT(attn_problem_dense(&p, ATTN_BLHD) == ATTN_OK, "dense");
    EXPECT(same_strides(p.q, 6 * 5 * 64, 64, 6 * 64) && same_strides(p.k, 3 * 7 * 64, 64, 3 * 64), "q and k of blhd");
    EXPECT(same_strides(p.v, 3 * 7 * 10, 10, 3 * 10) && same_strides(p.out, 6 * 5 * 10, 10, 6 * 10), "v and out of blhd");
    EXPECT(same_strides(p.lse, 6 * 5, 5, 1) && p.scale == 0.125f, "lse");
    before = p;
    expect_status(attn_problem_dense(&p, (attn_layout)2), ATTN_ERROR_LAYOUT, __LINE__, "layout");
    EXPECT(memcmp(&p, &before, sizeof p) == 0, "a wrong layout changed the struct");
    expect_status(attn_problem_setup(&p, stamp, (attn_layout)-1, ATTN_F32, 1, 1, 1, 1, 1, 1), ATTN_ERROR_LAYOUT, __LINE__, "layout");
    EXPECT(attn_problem_check(&p, &before) == ATTN_ERROR_UNINITIALISED, "the earlier problem is still there");
}

/* Any sizes at all: no undefined arithmetic, and what is accepted fits. */
static void silly_sizes(void) {
    static const int64_t sizes[] = { INT64_MIN, -1, 0, 1, 2, 3, 1 << 20, INT64_C(1) << 31, INT64_C(1) << 54, INT64_C(1) << 62, INT64_MAX };
    int accepted = 0;
    for (int n = 0; n < 200000; n++) {
        attn_problem p, checked;
        attn_problem_init(&p, EXPECT_PICK(((attn_layout[]){ ATTN_BHLD, ATTN_BLHD })), ATTN_F32, EXPECT_PICK(sizes), EXPECT_PICK(sizes),
                          EXPECT_PICK(sizes), EXPECT_PICK(sizes), EXPECT_PICK(sizes), EXPECT_PICK(sizes));
        int64_t *fields[] = { &p.q.batch, &p.k.head, &p.v.row, &p.out.head, &p.out.row, &p.lse.row, &p.mask.key, &p.offset, &p.dim_v };
        if (expect_between(0, 1)) *EXPECT_PICK(fields) = EXPECT_PICK(sizes);
        if (expect_between(0, 1)) p.type_mask = ATTN_F16;
        if (attn_problem_check(&p, &checked) != ATTN_OK) continue;
        double rows = (double)p.batch * (double)p.heads_q * (double)p.len_q;
        EXPECT(rows * (double)p.dim_qk <= 0x1p55 && rows * (double)p.dim_v <= 0x1p55, "%g rows", rows);
        attn_args args = ATTN_ARGS_INIT, copy;
        args.q = address(0x1000);
        args.k = args.v = address(UINT64_C(1) << 60);
        args.out = address(UINT64_C(1) << 61);
        args.lse = address(UINT64_C(1) << 62);
        if (p.type_mask != ATTN_NONE) args.mask = args.k;
        attn_status status = attn_args_check(&checked, &args, 0, false, &copy);
        EXPECT(status == ATTN_OK || status == ATTN_ERROR_TOO_LARGE || status == ATTN_ERROR_OUT_OVERLAPS ||
                   status == ATTN_ERROR_LSE_OVERLAPS || status == ATTN_ERROR_LSE_STRIDES,
               "%s", attn_status_text(status));
        accepted++;
    }
    EXPECT(accepted > 100, "only %d accepted", accepted);
}

static void texts(void) {
    static const int elsewhere[] = { 1, 4, 42, 43, 44, 45, 46, 47, 51, 52, 54, 55, 56, 57, 58 }; /* of contexts, options, plugins */
    for (size_t n = 0; n < sizeof elsewhere / sizeof *elsewhere; n++) reached[elsewhere[n]] = true;
#define TEXT(name, number, text)                                                                                                           \
    EXPECT(strcmp(attn_status_text(ATTN_##name), text) == 0 && ATTN_##name == (number), "%s", attn_status_text(ATTN_##name));              \
    EXPECT(reached[number], "no check reached %s", #name);
    ATTN_STATUS_LIST(TEXT)
#undef TEXT
    EXPECT(strlen(attn_status_text((attn_status)-1)) > 0 && strlen(attn_status_text(ATTN_STATUS_MAX)) > 0, "unknown codes");
}

int main(int argc, char **argv) {
    expect_begin(argc, argv);
    broken_problems();
    broken_arguments();
    broken_merges();
    legal();
    flush_tensors();
    unused_strides();
    setting_up();
    silly_sizes();
    texts();
    return expect_end();
}
