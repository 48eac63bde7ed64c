/* check_bits.c: a row's bits depend on its problem, inputs and kernel, and on nothing else: not on threads, passes, who runs them, whose
 * workspace, what ran before, the batch around it, or the caller's floating-point environment (which comes back as it was). */
#include "harness.h"
#include <fenv.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined __x86_64__ || defined __i386__
#include <xmmintrin.h>
#endif

static const char *isa;
static attn_precision precision;

static void note(const check_case *c, const char *what) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s%s, %s", isa, precision == ATTN_FAST ? " fast" : "", what);
    check_case_note(c, prefix);
}

/* ---- ways to run ---- */
/* The host's own threads in the meanest order: backwards, and the odd ones on a second thread at the same time, which rounds up and flushes
 * subnormals: whose thread a task runs on must not show, and it must leave it so. */
typedef struct half {
    attn_job job;
    void *state;
    size_t count, first;
} half;
static int executor_calls, executor_spoilt, region_calls;

/* The control register itself: fenv_t leaves it out (Windows, SSE) or bits of it (glibc, 64-bit ARM). */
static unsigned control(void) {
#if defined __x86_64__ || defined __i386__
    return _mm_getcsr();
#elif defined __aarch64__
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return (unsigned)bits;
#else
    return 0;
#endif
}

static void set_control(unsigned bits) {
#if defined __x86_64__ || defined __i386__
    _mm_setcsr(bits);
#elif defined __aarch64__
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)bits));
#else
    (void)bits;
#endif
}

#if defined __x86_64__ || defined __i386__
enum { FLUSH = 0x8040, OTHER_F16 = 0 }; /* FTZ, DAZ */
#elif defined __aarch64__
enum { FLUSH = 1 << 24 | 1 << 19, OTHER_F16 = 1 << 26 | 1 << 25 }; /* FZ, FZ16; AHP, DN */
#else
enum { FLUSH = 0, OTHER_F16 = 0 };
#endif

static void spoil(void) {
    fesetround(FE_UPWARD);
    set_control(control() | FLUSH);
}

typedef struct kept {
    fenv_t environment;
    unsigned control;
} kept;

static void keep(kept *k) {
    fegetenv(&k->environment);
    k->control = control();
}

static void put_back(const kept *k) {
    fesetenv(&k->environment);
    set_control(k->control);
}

static void run_tasks(const half *h) {
    for (size_t n = h->count; n-- > 0;)
        if (n % 2 == h->first) h->job(h->state, n);
}

static void *run_spoilt(void *at) {
    spoil();
    run_tasks(at);
    if (fegetround() != FE_UPWARD) executor_spoilt++;
    return NULL;
}

static void run_backwards(void *host, attn_job job, void *state, size_t count) {
    half odd = { job, state, count, 1 }, even = { job, state, count, 0 };
    pthread_t thread;
    ++*(int *)host;
    bool other = pthread_create(&thread, NULL, run_spoilt, &odd) == 0;
    run_tasks(&even);
    if (other)
        pthread_join(thread, NULL);
    else
        run_tasks(&odd);
}

/* In the place of OpenMP's GOMP_parallel: two threads, whatever was asked for, and the other one spoilt. */
typedef struct region {
    void (*body)(void *);
    void *state;
} region;

static void *enter_region(void *at) {
    region *r = at;
    spoil();
    r->body(r->state);
    if (fegetround() != FE_UPWARD) executor_spoilt++;
    return NULL;
}

static void parallel_region(void (*body)(void *), void *state, unsigned threads, unsigned flags) {
    region other = { body, state };
    pthread_t thread;
    CHECK(threads > 1 && flags == 0, "a parallel region of %u threads with flags %u", threads, flags);
    region_calls++;
    bool started = pthread_create(&thread, NULL, enter_region, &other) == 0;
    body(state);
    if (started) pthread_join(thread, NULL);
}

static void (*const gomp_parallel)(void (*)(void *), void *, unsigned, unsigned) = parallel_region;

enum { NONE, BACKWARDS, OPENMP };

static attn_executor executor_of(int kind, int threads) {
    attn_executor executor = { run_backwards, &executor_calls, threads };
    if (kind == OPENMP) {
        executor.run = attn_run_openmp;
        memcpy(&executor.host, &gomp_parallel, sizeof executor.host);
    }
    return executor;
}

typedef struct way {
    int threads, passes, executor;
    bool workspace;
} way;
static const way ways[] = { { 1, 0, NONE, false },       { 1, 1, NONE, true },    { 1, 2, NONE, false },      { 2, 0, NONE, false },
                            { 2, 1, NONE, false },       { 2, 2, NONE, true },    { 3, 0, NONE, false },      { 3, 2, NONE, false },
                            { 5, 1, NONE, true },        { 5, 2, NONE, false },   { 8, 0, NONE, true },       { 16, 2, NONE, false },
                            { 64, 0, BACKWARDS, false }, { 64, 2, NONE, true },   { 3, 0, BACKWARDS, false }, { 7, 2, BACKWARDS, true },
                            { 16, 1, BACKWARDS, false }, { 6, 0, OPENMP, false }, { 16, 2, OPENMP, true } };
enum { WAYS = sizeof ways / sizeof *ways };
static attn_context *contexts[WAYS];

static void open_ways(void) {
    for (int n = 0; n < WAYS; n++) {
        kept before;
        attn_executor executor = executor_of(ways[n].executor, ways[n].threads);
        attn_options options = ATTN_OPTIONS_INIT;
        options.isa = isa;
        options.precision = precision;
        options.passes = ways[n].passes;
        options.threads = ways[n].executor ? 0 : ways[n].threads;
        options.executor = ways[n].executor ? &executor : NULL;
        keep(&before);
        if (n % 2) spoil(); /* threads are born with the environment of who makes them */
        attn_status status = attn_open(&contexts[n], &options);
        put_back(&before);
        CHECK_OK(status, "open");
        memset(&executor, 0, sizeof executor); /* it was copied */
        if (!contexts[n]) exit(check_end());
    }
}

static void run_way(check_case *c, int n) {
    char what[64];
    snprintf(what, sizeof what, "threads %d passes %d%s%s", ways[n].threads, ways[n].passes,
             (const char *[]){ "", " executor", " OpenMP" }[ways[n].executor], ways[n].workspace ? " own workspace" : "");
    note(c, what);
    if (ways[n].workspace) check_case_workspace(c, contexts[n], CHECK_AT_START);
    check_case_forward(c, contexts[n]);
    c->args.workspace = NULL;
    c->args.workspace_size = 0;
}

static void same_in_every_way(check_case *c) {
    run_way(c, 0);
    check_bits bits = check_bits_take(c);
    for (int n = 1; n < WAYS; n++) {
        run_way(c, n);
        check_bits_same(&bits, c, "another way to run");
    }
    run_way(c, 0);
    check_bits_same(&bits, c, "once more");
    check_bits_free(&bits);
}

static void any_problem(check_random *random) {
    check_case c;
    check_case_random(&c, random, 1e6);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    same_in_every_way(&c);
    check_case_free(&c);
}

/* Few jobs and long keys, where the plan cuts keys into chunks for two passes. */
static void long_keys(check_random *random) {
    static const int64_t lens_kv[] = { 2047, 2048, 2049, 5000, 9001 };
    static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    check_case c;
    attn_type type = CHECK_PICK(random, types);
    int64_t len_kv = CHECK_PICK(random, lens_kv);
    check_case_init(&c, type, 1, 4, 1, 1 + check_below(random, 3), len_kv, 32);
    c.problem.align = ATTN_BOTTOM_RIGHT;
    if (check_chance(random, 0.5)) c.problem.right = 0;
    if (check_chance(random, 0.3)) c.problem.left = 1500;
    c.with_len_kv = check_chance(random, 0.3);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    same_in_every_way(&c);
    check_case_free(&c);
}

/* Products too small for float32, and a -0 that weighs all: sums that are -0, which folding would make +0. */
static void signed_zeros(check_random *random) {
    check_case c;
    check_case_init(&c, ATTN_BF16, 1, 1, 1, 1 + check_below(random, 80), 32 + 32 * check_below(random, 3), 1);
    if (check_chance(random, 0.5)) c.problem.type_v = ATTN_F32;
    c.problem.type_out = ATTN_F32;
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    for (int64_t i = 0; i < c.problem.len_q; i++) check_set(&c.q, 0, 0, i, 0, 1);
    for (int64_t j = 0; j < c.problem.len_kv; j++) {
        const bool last = j == c.problem.len_kv - 1;
        check_set(&c.k, 0, 0, j, 0, last ? 80 : 0);
        check_set(&c.v, 0, 0, j, 0, last ? -0.0 : -0x1p-60);
    }
    same_in_every_way(&c);
    check_case_free(&c);
}

/* ---- the batch around a row ---- */
static int same_rows(const check_case *c, const check_bits *bits, int64_t b) {
    const attn_problem *p = &c->problem;
    size_t row = (size_t)p->dim_v * check_size(p->type_out);
    for (int64_t h = 0; h < p->heads_q; h++) {
        for (int64_t i = 0; i < check_len_q(c, b); i++) {
            const unsigned char *now = check_at(&c->out, b, h, i, 0), *lse = check_at(&c->lse, b, h, i, 0);
            if (memcmp(now, bits->data + (now - c->out.buffer.data), row)) return 0;
            if (memcmp(lse, bits->data + c->out.buffer.size + (lse - c->lse.buffer.data), 4)) return 0;
        }
    }
    return 1;
}

/* Each sequence alone (a batch of one, found by moved pointers) against all of them in one call. */
static void each_alone(check_case *c) {
    note(c, "alone");
    attn_context *context = contexts[3];
    check_case_forward(c, context);
    check_bits bits = check_bits_take(c);
    check_case_clear(c);
    for (int64_t b = 0; b < c->problem.batch; b++) {
        attn_problem p = c->problem;
        attn_args args = c->args;
        p.batch = 1;
        args.q = check_at(&c->q, b, 0, 0, 0);
        args.k = check_at(&c->k, b, 0, 0, 0);
        args.v = check_at(&c->v, b, 0, 0, 0);
        args.out = check_at(&c->out, b, 0, 0, 0);
        args.lse = (float *)(void *)check_at(&c->lse, b, 0, 0, 0);
        if (args.mask) args.mask = check_at(&c->mask, b, 0, 0, 0);
        if (args.len_q) args.len_q += b;
        if (args.len_kv) args.len_kv += b;
        CHECK_OK(attn_forward(context, &p, &args), "forward");
        CHECK(same_rows(c, &bits, b), "sequence %d alone has other bits than in its batch", (int)b);
    }
    check_bits_free(&bits);
}

static void alone(check_random *random) {
    check_case c;
    do check_case_random(&c, random, 1e6);
    while (c.problem.batch < 2 || !c.with_lse);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    each_alone(&c);
    check_case_free(&c);
}

/* Room for more keys than there are: len_kv as an argument below the problem's, against a problem of exactly that many. */
static void capacity(check_random *random) {
    check_case c;
    static const int64_t actual[] = { 1, 15, 100, 511, 512, 513, 1000 };
    int64_t len = CHECK_PICK(random, actual);
    check_case_init(&c, check_chance(random, 0.5) ? ATTN_F32 : ATTN_BF16, 2, 4, 2, 1 + check_below(random, 20),
                    len + check_below(random, 600), 24);
    c.problem.align = ATTN_BOTTOM_RIGHT;
    if (check_chance(random, 0.5)) c.problem.right = 0;
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "capacity");
    int32_t lengths[2] = { (int32_t)len, (int32_t)len };
    c.args.len_kv = lengths;
    for (int n = 0; n < WAYS; n += 5) {
        c.args.len_kv = lengths;
        check_case_forward(&c, contexts[n]);
        check_bits bits = check_bits_take(&c);
        int64_t room = c.problem.len_kv;
        c.args.len_kv = NULL;
        c.problem.len_kv = len;
        check_case_forward(&c, contexts[n]);
        check_bits_same(&bits, &c, "room for more keys");
        c.problem.len_kv = room;
        check_bits_free(&bits);
    }
    check_case_free(&c);
}

/* ---- the caller's floating-point environment ---- */
enum { MODES = 7 };
static const char *const mode_names[MODES] = {
    "round up", "round down", "round to zero", "FTZ and DAZ", "flags set", "traps on", "f16 without NaN, default NaN"
};

static void enter_mode(int mode) {
    static const int rounding[] = { FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    feclearexcept(FE_ALL_EXCEPT); /* a flag that the library raises is then seen */
    if (mode < 3) fesetround(rounding[mode]);
    if (mode == 3) set_control(control() | FLUSH);
    if (mode == 6) set_control(control() | OTHER_F16);
    if (mode == 4) feraiseexcept(FE_INVALID | FE_DIVBYZERO);
#ifdef __GLIBC__
    if (mode == 5) feenableexcept(FE_ALL_EXCEPT);
#endif
}

typedef struct seen {
    int rounding, flags, traps;
    unsigned control;
} seen;
static seen look(void) {
    seen s = { fegetround(), fetestexcept(FE_ALL_EXCEPT), 0, control() };
#ifdef __GLIBC__
    s.traps = fegetexcept();
#endif
    return s;
}

static void in_all_modes(check_case *c) {
    for (int n = 0; n < WAYS; n += 4) {
        note(c, "environment");
        check_case_forward(c, contexts[n]);
        check_bits bits = check_bits_take(c);
        for (int mode = 0; mode < MODES; mode++) {
            kept before;
            size_t bytes;
            attn_explanation explanation = ATTN_EXPLANATION_INIT;
            check_case_clear(c);
            keep(&before);
            enter_mode(mode);
            seen mine = look();
            attn_status status = attn_workspace(contexts[n], &c->problem, &bytes);
            if (status == ATTN_OK) status = attn_explain(contexts[n], &c->problem, &explanation);
            if (status == ATTN_OK) status = attn_reserve(contexts[n], &c->problem);
            if (status == ATTN_OK) status = attn_merge(contexts[n], &c->problem, NULL, 0, &c->args);
            if (status == ATTN_OK) status = attn_forward(contexts[n], &c->problem, &c->args);
            seen after = look();
            put_back(&before);
            CHECK(status == ATTN_OK, "%s: %s", mode_names[mode], attn_status_text(status));
            CHECK(mine.rounding == after.rounding && mine.flags == after.flags && mine.traps == after.traps &&
                      mine.control == after.control,
                  "%s: left rounding %d flags %x traps %x control %x, was %d %x %x %x", mode_names[mode], after.rounding,
                  (unsigned)after.flags, (unsigned)after.traps, after.control, mine.rounding, (unsigned)mine.flags, (unsigned)mine.traps,
                  mine.control);
            check_bits_same(&bits, c, mode_names[mode]);
        }
        check_bits_free(&bits);
    }
}

static void environment(check_random *random) {
    check_case c;
    check_case_random(&c, random, 1e6);
    check_case_build(&c, random, check_chance(random, 0.5) ? CHECK_NORMAL : CHECK_TINY, CHECK_AT_END);
    in_all_modes(&c);
    check_case_free(&c);
    check_case_init(&c, ATTN_F16, 1, 2, 1, 1 + check_below(random, 40), 30, 20);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    memcpy(check_at(&c.v, 0, 0, 7, 3), &(uint16_t){ 0x7e00 }, 2); /* NaN, infinity */
    memcpy(check_at(&c.v, 0, 0, 7, 4), &(uint16_t){ 0x7c00 }, 2);
    in_all_modes(&c);
    check_case_free(&c);
}

/* ---- fast ---- */
static void many_rows(check_case *c, check_random *random) {
    static const attn_type types[] = { ATTN_BF16, ATTN_BF16, ATTN_F16 };
    check_case_init(c, CHECK_PICK(random, types), 2, 4, 2, 40 + check_below(random, 60), 300 + check_below(random, 800), 40);
    c->problem.align = ATTN_BOTTOM_RIGHT;
    if (check_chance(random, 0.5)) c->problem.right = 0;
    c->with_len_q = c->with_len_kv = check_chance(random, 0.5);
}

/* Rounded weights are the same bits in every way to run and in every batch. */
static void rounded(check_random *random) {
    check_case c;
    many_rows(&c, random);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    same_in_every_way(&c);
    each_alone(&c);
    check_case_free(&c);
}

/* Where the library says that no weight is rounded, fast is exact. */
static void unrounded(check_random *random, attn_context *fast, attn_context *exact) {
    check_case c;
    if (check_chance(random, 0.4))
        many_rows(&c, random);
    else
        check_case_random(&c, random, 1e6);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "unrounded");
    check_case_forward(&c, fast);
    if (c.weight_error == 0) {
        check_bits bits = check_bits_take(&c);
        check_case_forward(&c, exact);
        check_bits_same(&bits, &c, "fast without rounding");
        check_bits_free(&bits);
    }
    check_case_free(&c);
}

static void all_fast(uint64_t first, int count) {
    const bool rounds = check_rounds(isa);
    attn_context *exact = check_open(isa, 1, 0, 0);
    check_precision = precision = ATTN_FAST;
    attn_context *fast = check_open(isa, 1, 0, 0);
    if (rounds) open_ways();
    for (int n = 0; n < count; n++) {
        check_seed = first + (uint64_t)n;
        check_random random = check_random_from(check_seed);
        if (rounds) rounded(&random);
        for (int k = 0; k < 4; k++) unrounded(&random, fast, exact);
    }
    for (int n = 0; rounds && n < WAYS; n++) attn_close(contexts[n]);
    attn_close(exact);
    attn_close(fast);
    check_precision = precision = ATTN_EXACT;
}

static void all_exact(uint64_t first, int count) {
    open_ways();
    for (int n = 0; n < count; n++) {
        check_seed = first + (uint64_t)n;
        check_random random = check_random_from(check_seed);
        for (int k = 0; k < 3; k++) any_problem(&random);
        long_keys(&random);
        signed_zeros(&random);
        alone(&random);
        capacity(&random);
        environment(&random);
    }
    for (int n = 0; n < WAYS; n++) attn_close(contexts[n]);
}

int main(int argc, char **argv) {
    char isas[CHECK_ISAS][16];
    check_begin("check_bits", argc, argv, 1);
    int isa_count = check_isas(isas);
    uint64_t first = check_seed;
    for (int m = 0; m < isa_count; m++) {
        isa = isas[m];
        all_exact(first, check_count(12));
        all_fast(first, check_count(6));
    }
    CHECK(executor_calls > 0 && region_calls > 0, "an executor was never called");
    CHECK(executor_spoilt == 0, "a task left its thread's rounding changed, %d times", executor_spoilt);
    return check_end();
}
