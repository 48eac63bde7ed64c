/* check_cuda.c: what is the CUDA device's own: the same bits in every run and by every way to call it, streams, graphs, pointers, contexts,
 * threads, memory that is not there. Whether results are right is for attn check. Each check runs in a process of its own: the first call
 * may be the captured one, and a fault ends all of CUDA in a process. Without a GPU: a skip. */
#include "device.h"
#include "checks.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RUNS = 100 };

/* Each kind in turn, in both precisions. */
static void every_kind(void (*one)(calling *c)) {
    for (int precision = ATTN_EXACT; precision <= ATTN_FAST; precision++) {
        attn_context *context = device_open((attn_precision)precision, 0);
        for (int i = 0; i < device_kinds_count; i++) {
            calling c;
            device_make(&c, context, &device_kinds[i]);
            one(&c);
            device_free(&c);
        }
        attn_close(context);
    }
}

/* ---- the same bits ---- */
/* Each kind has the kernel that it is there for, and writes all of the first sequence, which is whole. */
static void one_runs(calling *c) {
    attn_description about = ATTN_DESCRIPTION_INIT;
    attn_explanation plan = ATTN_EXPLANATION_INIT;
    const attn_problem *p = &c->problem;
    const int64_t rows = p->heads_q * p->len_q, bytes = rows * p->dim_v * (p->type_out == ATTN_F32 ? 4 : 2);
    CHECK_OK(attn_describe(c->context, &about), "describe");
    CHECK_OK(attn_explain(c->context, p, &plan), "explain");
    if (strcmp(about.isa, "sm90") == 0) CHECK(strcmp(plan.kernel, c->kind->kernel) == 0, "%s runs %s", c->kind->name, plan.kernel);
    CHECK(plan.workspace == c->args.workspace_size, "%s: %zu bytes, not %zu", c->kind->name, plan.workspace, c->args.workspace_size);
    results r = device_run(c);
    int64_t spoilt = 0;
    for (int64_t i = 0; i + 1 < bytes; i += 2) spoilt += r.bytes[i] == 0xff && r.bytes[i + 1] == 0xff;
    CHECK(p->type_out == ATTN_F32 || spoilt == 0, "%s: %lld numbers of out were not written", c->kind->name, (long long)spoilt);
    free(r.bytes);
}
static void runs(void) { every_kind(one_runs); }

static void one_again(calling *c) {
    results want = device_run(c);
    for (int i = 1; i < RUNS; i++) {
        device_start(c, NULL);
        device_compare(c, &want, "again");
    }
    free(want.bytes);
}
static void again(void) { every_kind(one_again); }

static attn_args sequence_args(const calling *c, int64_t b) {
    const attn_problem *p = &c->problem;
    const int64_t size = p->type_q == ATTN_F32 ? 4 : 2;
    attn_args a = c->args;
    a.q = (const char *)a.q + b * p->q.batch * size;
    a.k = (const char *)a.k + b * p->k.batch * size;
    a.v = (const char *)a.v + b * p->v.batch * size;
    a.out = (char *)a.out + b * p->out.batch * size;
    a.lse += b * p->lse.batch;
    if (a.len_q != NULL) a.len_q += b;
    if (a.len_kv != NULL) a.len_kv += b;
    a.workspace = NULL; /* the context's own */
    return a;
}

static void one_alone(calling *c) {
    results want = device_run(c);
    attn_problem problem = c->problem;
    problem.batch = 1;
    device_spoil(c, NULL);
    for (int64_t b = 0; b < c->problem.batch; b++) {
        attn_args args = sequence_args(c, b);
        CHECK_OK(attn_forward(c->context, &problem, &args), c->kind->name);
    }
    device_compare(c, &want, "each sequence alone");
    free(want.bytes);
}
static void alone(void) { every_kind(one_alone); }

/* General in one pass and in two; the others have but one way. */
static void passes(void) {
    attn_context *context[] = { device_open(ATTN_EXACT, 1), device_open(ATTN_EXACT, 2) };
    for (int i = 0; i < device_kinds_count; i++) {
        calling c;
        device_make(&c, context[1], &device_kinds[i]);
        results want = device_run(&c);
        c.context = context[0];
        device_start(&c, NULL);
        device_compare(&c, &want, "one pass");
        free(want.bytes);
        device_free(&c);
    }
    attn_close(context[0]);
    attn_close(context[1]);
}

/* ---- streams and graphs ---- */
static cudaStream_t stream(void) {
    cudaStream_t s;
    CHECK_CUDA(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking));
    return s;
}

static cudaGraphExec_t captured(const calling *c, cudaStream_t s) {
    cudaGraph_t graph;
    cudaGraphExec_t exec;
    CHECK_CUDA(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal));
    device_start(c, s);
    CHECK_CUDA(cudaStreamEndCapture(s, &graph));
    CHECK_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    CHECK_CUDA(cudaGraphDestroy(graph));
    return exec;
}

static void replay(const calling *c, cudaGraphExec_t exec, cudaStream_t s, const char *what) {
    results plain = device_run(c);
    for (int i = 0; i < 3; i++) {
        device_spoil(c, s);
        CHECK_CUDA(cudaGraphLaunch(exec, s));
        device_compare(c, &plain, what);
    }
    free(plain.bytes);
}

/* The first call of the kernels in this process is the captured one. Lengths are read when the graph runs, not when it was made. */
static void one_captured(calling *c) {
    cudaStream_t s = stream();
    cudaGraphExec_t exec = captured(c, s);
    replay(c, exec, s, "a graph");
    for (int64_t b = 0; c->args.len_kv != NULL && b < c->problem.batch; b++) {
        const int32_t other = (int32_t)(c->problem.len_kv - 100 - b);
        CHECK_CUDA(cudaMemcpy((void *)(uintptr_t)&c->args.len_kv[b], &other, sizeof other, cudaMemcpyHostToDevice));
    }
    if (c->args.len_kv != NULL) replay(c, exec, s, "a graph with other lengths");
    CHECK_CUDA(cudaGraphExecDestroy(exec));
    CHECK_CUDA(cudaStreamDestroy(s));
}
static void graphs(void) { every_kind(one_captured); }

typedef struct thread_work {
    const calling *c;
    const results *want;
} thread_work;

static void *in_thread(void *given) {
    const thread_work *w = given;
    cudaStream_t s = stream();
    for (int i = 0; i < RUNS; i++) device_start(w->c, s);
    CHECK_CUDA(cudaStreamSynchronize(s));
    CHECK_CUDA(cudaStreamDestroy(s));
    return NULL;
}

/* Two threads with a stream each, on one context. */
static void streams(void) {
    attn_context *context = device_open(ATTN_EXACT, 0);
    for (int i = 0; i < device_kinds_count; i++) {
        calling c[2];
        results want[2];
        pthread_t threads[2];
        thread_work work[2];
        for (int n = 0; n < 2; n++) {
            device_make(&c[n], context, &device_kinds[(i + n) % device_kinds_count]);
            want[n] = device_run(&c[n]);
            work[n] = (thread_work){ &c[n], &want[n] };
        }
        for (int n = 0; n < 2; n++) CHECK(pthread_create(&threads[n], NULL, in_thread, &work[n]) == 0, "thread");
        for (int n = 0; n < 2; n++) CHECK(pthread_join(threads[n], NULL) == 0, "thread");
        for (int n = 0; n < 2; n++) {
            device_compare(&c[n], &want[n], "beside another stream");
            free(want[n].bytes);
            device_free(&c[n]);
        }
    }
    attn_close(context);
}

static void CUDART_CB doze(void *given) {
    (void)given;
    usleep(200000);
}

/* A call returns while its stream still waits for what was asked before, and has touched nothing by then. */
static void one_waits(calling *c) {
    results want = device_run(c), early = { malloc(want.size), want.size };
    cudaStream_t s = stream();
    attn_args args = c->args;
    device_spoil(c, s);
    CHECK_CUDA(cudaStreamSynchronize(s));
    args.stream = s;
    CHECK_CUDA(cudaLaunchHostFunc(s, doze, NULL));
    CHECK_OK(attn_forward(c->context, &c->problem, &args), c->kind->name);
    CHECK(cudaStreamQuery(s) == cudaErrorNotReady, "%s: the call waited for its stream", c->kind->name);
    CHECK_CUDA(cudaMemcpy(early.bytes, c->args.out, c->tensors[DEVICE_OUT].size, cudaMemcpyDeviceToHost));
    CHECK(cudaStreamQuery(s) == cudaErrorNotReady, "%s: too slow to tell", c->kind->name);
    for (size_t i = 0; i < c->tensors[DEVICE_OUT].size; i++) CHECK(early.bytes[i] == 0xff, "%s: out was written early", c->kind->name);
    device_compare(c, &want, "after its stream");
    CHECK_CUDA(cudaStreamDestroy(s));
    free(early.bytes);
    free(want.bytes);
}
static void waits(void) { every_kind(one_waits); }

/* ---- pointers ---- */
static void one_refuses(calling *c) {
    static double host[16];
    const size_t places[] = { offsetof(attn_args, q),     offsetof(attn_args, k),      offsetof(attn_args, v),
                              offsetof(attn_args, out),   offsetof(attn_args, lse),    offsetof(attn_args, mask),
                              offsetof(attn_args, sinks), offsetof(attn_args, slopes), offsetof(attn_args, len_q),
                              offsetof(attn_args, len_kv) };
    void *pointer = host;
    device_spoil(c, NULL);
    results before = device_results(c);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        attn_args args = c->args;
        if (places[i] == offsetof(attn_args, mask) && !c->kind->masked) continue; /* has a status of its own */
        memcpy((char *)&args + places[i], &pointer, sizeof pointer);
        const attn_status status = attn_forward(c->context, &c->problem, &args);
        CHECK(status == ATTN_ERROR_HOST_POINTER, "%s: pointer %zu: %s", c->kind->name, i, attn_status_text(status));
    }
    device_compare(c, &before, "refused calls");
    free(before.bytes);
}
static void refuses(void) { every_kind(one_refuses); }

/* Rows that overlap each other are legal in inputs, if of no use: key j is elements 8 j to 8 j + dim - 1 of one line of numbers. */
static void overlapping_rows(void) {
    attn_context *context = device_open(ATTN_EXACT, 0);
    for (int i = 0; i < device_kinds_count; i++) {
        kind one = device_kinds[i];
        calling c;
        one.batch = one.heads_kv = 1;
        one.lengths = false;
        device_make(&c, context, &one);
        c.problem.k.row = c.problem.v.row = c.problem.q.row = 8;
        c.args.workspace = NULL;
        device_start(&c, NULL);
        free(device_results(&c).bytes);
        device_free(&c);
    }
    attn_close(context);
}

/* ---- */
typedef struct check {
    const char *name;
    void (*run)(void);
} check;

static const check checks[] = { { "runs", runs },
                                { "again", again },
                                { "alone", alone },
                                { "passes", passes },
                                { "graphs", graphs },
                                { "streams", streams },
                                { "waits", waits },
                                { "refuses", refuses },
                                { "overlapping_rows", overlapping_rows },
                                { "merges", check_merges },
                                { "contexts", check_contexts },
                                { "holes", check_holes } };

static int in_child(int (*run)(void (*)(void)), void (*one)(void)) {
    int status;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const int code = run(one);
        fflush(NULL);
        _exit(code);
    }
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : CHECK_EXIT_FAILED;
}

static int here(void (*one)(void)) {
    one();
    return check_failures() != 0 ? CHECK_EXIT_FAILED : CHECK_EXIT_OK;
}

static int any_device(void (*one)(void)) {
    (void)one;
    attn_context *context = device_open(ATTN_EXACT, 0);
    if (context == NULL) return CHECK_EXIT_SKIPPED;
    attn_close(context);
    return check_failures() != 0 ? CHECK_EXIT_FAILED : CHECK_EXIT_OK;
}

/* check_cuda: all; check_cuda NAME: one, in this process, for tools that watch it; check_cuda -- PROGRAM ARGUMENT...: that program. */
int main(int argc, char **argv) {
    check_begin(argv[0], 1, argv, 1);
    const int code = in_child(any_device, NULL);
    if (code != CHECK_EXIT_OK) return code;
    if (argc > 2 && strcmp(argv[1], "--") == 0) {
        fflush(NULL);
        execvp(argv[2], argv + 2);
        perror(argv[2]);
        return CHECK_EXIT_FAILED;
    }
    int failed = 0, known = 0;
    for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
        if (argc > 1 && strcmp(argv[1], checks[i].name) != 0) continue;
        const bool good = (argc > 1 ? here(checks[i].run) : in_child(here, checks[i].run)) == CHECK_EXIT_OK;
        printf("%s: %s\n", checks[i].name, good ? "good" : "FAILED");
        failed += !good;
        known++;
    }
    if (known == 0) printf("no check of the name %s\n", argv[1]);
    printf("%d failed\n", failed);
    return failed != 0 || known == 0 ? CHECK_EXIT_FAILED : CHECK_EXIT_OK;
}
