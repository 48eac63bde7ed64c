/* check_threads.c: many contexts at once, one context from many threads at once (with its own workspace and with the callers'), and a
 * context on both sides of a fork. Meant for the thread sanitizer as much as for the results. */
#include "harness.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifndef _WIN32
#include <sys/wait.h>
#endif

#if defined __has_feature
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZER 1
#endif
#endif
#ifdef __SANITIZE_THREAD__
#define THREAD_SANITIZER 1
#endif

enum { CALLERS = 5 };
/* What one thread does; it counts what went wrong and leaves reporting to the main thread. */
typedef struct caller {
    attn_context *shared; /* NULL: opens its own */
    const char *isa;
    check_case c;
    check_bits right;
    int rounds, pool_threads;
    bool workspace;
    atomic_int *start; /* threads that are not yet at the line */
    int bad_status, bad_bits;
} caller;

static void one_round(caller *me, attn_context *context) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_description description = ATTN_DESCRIPTION_INIT;
    size_t bytes;
    check_case_clear(&me->c);
    me->bad_status += attn_workspace(context, &me->c.problem, &bytes) != ATTN_OK;
    if (!me->workspace) me->bad_status += attn_reserve(context, &me->c.problem) != ATTN_OK;
    me->bad_status += attn_explain(context, &me->c.problem, &explanation) != ATTN_OK;
    me->bad_status += attn_describe(context, &description) != ATTN_OK;
    me->bad_status += attn_forward(context, &me->c.problem, &me->c.args) != ATTN_OK;
    check_bits now = check_bits_take(&me->c);
    me->bad_bits += memcmp(now.data, me->right.data, now.size) != 0;
    check_bits_free(&now);
}

static void *call(void *at) {
    caller *me = at;
    atomic_fetch_sub(me->start, 1);
    while (atomic_load(me->start) > 0) usleep(50);
    for (int n = 0; n < me->rounds; n++) {
        attn_context *context = me->shared;
        attn_options options = ATTN_OPTIONS_INIT;
        options.isa = me->isa;
        options.threads = me->pool_threads;
        if (!context && attn_open(&context, &options) != ATTN_OK) {
            me->bad_status++;
            continue;
        }
        one_round(me, context);
        if (!me->shared) attn_close(context);
    }
    return NULL;
}

static void prepare(caller *me, int number, attn_context *context, check_random *random) {
    static const attn_type types[] = { ATTN_F32, ATTN_F16, ATTN_BF16 };
    check_case_init(&me->c, types[number % 3], 1, 4, 2, number % 2 ? 1 : 20, 300 + 400 * number,
                    32); /* sizes that make the workspace grow */
    me->c.problem.right = number == 2 ? 0 : ATTN_UNBOUNDED;
    check_case_build(&me->c, random, CHECK_NORMAL, CHECK_AT_END);
    check_case_forward(&me->c, context);
    me->right = check_bits_take(&me->c);
    if (me->workspace) check_case_workspace(&me->c, context, CHECK_AT_END);
}

/* All callers at once. `shared`: on one context, of `pool_threads`; else each opens and closes its own, again and again. */
static void together(const char *isa, bool shared, bool workspaces, int pool_threads, int rounds) {
    caller callers[CALLERS];
    pthread_t threads[CALLERS];
    check_random random = check_random_from(check_seed);
    atomic_int start = CALLERS;
    attn_context *context = check_open(isa, pool_threads, 0, 0), *single = check_open(isa, 1, 0, 0);
    memset(callers, 0, sizeof callers);
    for (int n = 0; n < CALLERS; n++) {
        callers[n].workspace = workspaces && n != 1; /* one with the context's own among those with theirs */
        prepare(&callers[n], n, shared ? context : single, &random);
        callers[n].shared = shared ? context : NULL;
        callers[n].isa = isa;
        callers[n].rounds = rounds;
        callers[n].pool_threads = pool_threads;
        callers[n].start = &start;
    }
    for (int n = 0; n < CALLERS; n++) {
        if (pthread_create(&threads[n], NULL, call, &callers[n])) {
            fprintf(stderr, "check_threads: no thread\n");
            exit(CHECK_EXIT_FAILED);
        }
    }
    for (int n = 0; n < CALLERS; n++) pthread_join(threads[n], NULL);
    for (int n = 0; n < CALLERS; n++) {
        CHECK(!callers[n].bad_status && !callers[n].bad_bits,
              "isa %s, caller %d (%s context, %s workspace): %d bad statuses, %d other results", isa, n, shared ? "shared" : "own",
              workspaces ? "callers'" : "context's", callers[n].bad_status, callers[n].bad_bits);
        check_bits_free(&callers[n].right);
        check_case_free(&callers[n].c);
    }
    attn_close(context);
    attn_close(single);
}

#if !defined THREAD_SANITIZER && !defined _WIN32
/* The child uses the parent's context, then closes it; the parent goes on. */
static void across_fork(const char *isa) {
    attn_context *context = check_open(isa, 3, 2, 0);
    check_random random = check_random_from(check_seed);
    caller me = { .workspace = false };
    prepare(&me, 3, context, &random);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        alarm(60);
        one_round(&me, context);
        attn_close(context);
        _exit(me.bad_bits || me.bad_status ? CHECK_EXIT_FAILED : CHECK_EXIT_OK);
    }
    one_round(&me, context);
    int status = 0;
    CHECK(child > 0 && waitpid(child, &status, 0) == child, "fork");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child after a fork: status %x", (unsigned)status);
    CHECK(!me.bad_bits && !me.bad_status, "the parent after a fork: %d bad statuses, %d other results", me.bad_status, me.bad_bits);
    attn_close(context);
    check_bits_free(&me.right);
    check_case_free(&me.c);
}
#endif

int main(int argc, char **argv) {
    char isas[CHECK_ISAS][16];
    check_begin("check_threads", argc, argv, 1);
    int count = check_isas(isas), rounds = check_count(30);
    for (int n = 0; n < count; n++) {
        together(isas[n], true, false, 1, rounds);
        together(isas[n], true, false, 3, rounds);
        together(isas[n], true, true, 1, rounds);
        together(isas[n], true, true, 3, rounds);
        together(isas[n], false, false, 1, rounds);
    }
    together(isas[count - 1], false, false, 2, rounds < 3 ? rounds : 3);
#ifdef _WIN32
    printf("check_threads: skip: fork: this system has none\n");
#elif !defined THREAD_SANITIZER
    for (int n = 0; n < count; n++) across_fork(isas[n]);
#endif
    return check_end();
}
