/* check_pool.c: the pool of threads by itself (src/cpu/pool.h): every slot once, the host's executor, fork, the floating-point environment,
 * errno, callers side by side, threads and memory given back, and a system that will not give threads. Exit 0: good, 1: what failed is
 * named. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* RTLD_NEXT */
#endif
#include "cpu/pool.h"
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined __x86_64__ || defined __i386__
#include <xmmintrin.h>
#define HAVE_MXCSR 1
#endif

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#ifndef SANITIZED
#define SANITIZED 0
#endif
#if defined __SANITIZE_THREAD__
#define THREAD_SANITIZED 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif

static atomic_int failures;

static void expect(bool good, const char *what) {
    if (good) return;
    fprintf(stderr, "check_pool: failed: %s\n", what);
    atomic_fetch_add(&failures, 1);
}

static void too_long(int number) {
    static const char text[] = "check_pool: failed: still running after its time limit (a hang)\n";
    (void)number;
    if (write(2, text, sizeof text - 1) < 0) _exit(2);
    _exit(1);
}

static attn_pool *pool_of(int threads, const attn_executor *executor) {
    attn_options options = ATTN_OPTIONS_INIT;
    options.threads = threads;
    options.executor = executor;
    attn_pool *pool = NULL;
    expect(attn_pool_open(&pool, &options) == ATTN_OK, "attn_pool_open");
    if (pool == NULL) exit(1);
    return pool;
}

static int threads_alive(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

/* A joined thread is listed a moment longer. */
static bool threads_return_to(int count) {
    for (int i = 0; i < 2000; ++i) {
        if (threads_alive() == count) return true;
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    return false;
}

/* ---- slots ---- */
enum { most_slots = 64 };
typedef struct tally {
    atomic_int runs[most_slots], busy[most_slots];
    int plain[most_slots]; /* not atomic: the pool must order it for the caller */
    atomic_bool clash;
} tally;

static void count_slot(void *state, size_t slot) {
    tally *t = state;
    if (atomic_exchange(&t->busy[slot], 1)) atomic_store(&t->clash, true);
    atomic_fetch_add(&t->runs[slot], 1);
    t->plain[slot] += (int)slot + 1;
    atomic_store(&t->busy[slot], 0);
    errno = ENOTTY;
}

static bool tally_is(const tally *t, int slots, int runs) {
    for (int i = 0; i < most_slots; ++i) {
        int want = i < slots ? runs : 0;
        if (t->runs[i] != want || t->plain[i] != want * (i + 1)) return false;
    }
    return !t->clash;
}

static void check_slots(void) {
    for (int threads = 1; threads <= 5; ++threads) {
        attn_pool *pool = pool_of(threads, NULL);
        int got = attn_pool_threads(pool);
        expect(got >= 1 && got <= threads, "threads: between 1 and what was asked for");
        expect(strcmp(attn_pool_name(pool), got > 1 ? CHECK_WORKERS : "none") == 0, "name of the pool");
        for (int slots = 0; slots <= got; ++slots) {
            tally t = { 0 };
            errno = EDOM;
            for (int i = 0; i < 200; ++i) attn_pool_run(pool, count_slot, &t, slots);
            expect(errno == EDOM, "errno after attn_pool_run");
            expect(tally_is(&t, slots, 200), "every slot runs exactly once, and its writes are seen");
        }
        attn_pool_close(pool);
    }
    attn_pool *all = pool_of(0, NULL);
    expect(attn_pool_threads(all) >= 1 && attn_pool_threads(all) <= 1024, "threads 0: one for each CPU");
    attn_pool_close(all);
    attn_pool_close(NULL);
}

/* ---- the host's executor ---- */
typedef struct host {
    int calls;
    size_t most;
} host;

static void run_backwards(void *state, attn_job job, void *work, size_t count) {
    host *h = state;
    ++h->calls;
    if (count > h->most) h->most = count;
    for (size_t i = count; i-- > 0;) job(work, i);
    errno = ENOTTY;
}

static void check_executor(void) {
    for (int cap = 0; cap <= 9; cap += 3) {
        host h = { 0, 0 };
        attn_executor executor = { run_backwards, &h, 7 };
        attn_pool *pool = pool_of(cap, &executor);
        int threads = cap == 0 || cap > 7 ? 7 : cap;
        memset(&executor, 0, sizeof executor); /* it was copied */
        expect(attn_pool_threads(pool) == threads, "executor: its threads, capped by the options");
        expect(strcmp(attn_pool_name(pool), "executor") == 0, "executor: name");
        tally t = { 0 };
        errno = EDOM;
        attn_pool_run(pool, count_slot, &t, threads);
        expect(errno == EDOM, "executor: errno");
        expect(h.calls == 1 && h.most == (size_t)threads && tally_is(&t, threads, 1), "executor: runs every slot");
        tally one = { 0 };
        attn_pool_run(pool, count_slot, &one, 1);
        expect(h.calls == 1 && tally_is(&one, 1, 1), "executor: one slot wakes nobody");
        attn_pool_close(pool);
    }
}

/* ---- the floating-point environment ---- */
static volatile float smallest = 1.5e-42f; /* subnormal */
static volatile double one = 1.0, third = 3.0;

static void set_strange_environment(void) {
    fesetround(FE_UPWARD);
#ifdef HAVE_MXCSR
    _mm_setcsr(_mm_getcsr() | 0x8040u); /* flush to zero, denormals are zero */
#endif
    feclearexcept(FE_ALL_EXCEPT);
    feraiseexcept(FE_OVERFLOW);
}

/* Emulators such as valgrind keep only a part of it. */
static bool environment_is_strange(void) {
    bool strange = fegetround() == FE_UPWARD && fetestexcept(FE_OVERFLOW | FE_DIVBYZERO) == FE_OVERFLOW;
#ifdef HAVE_MXCSR
    strange = strange && (_mm_getcsr() & 0x8040u) == 0x8040u;
#endif
    return strange;
}

static bool environment_is_default(void) {
    double up = one / third;
    return fegetround() == FE_TONEAREST && smallest * 1.0f != 0.0f && fetestexcept(FE_OVERFLOW) == 0 && up < 0x1.5555555555556p-2;
}

static void test_environment(void *state, size_t slot) {
    atomic_int *bad = state;
    (void)slot;
    if (!environment_is_default()) atomic_fetch_add(bad, 1);
    set_strange_environment();
    feraiseexcept(FE_DIVBYZERO);
}

static void check_environment(void) {
    fenv_t before;
    fegetenv(&before);
    set_strange_environment(); /* workers inherit it */
    bool keeps = environment_is_strange();
    attn_pool *pool = pool_of(3, NULL);
    atomic_int bad = 0;
    for (int slots = 1; slots <= attn_pool_threads(pool); ++slots)
        for (int i = 0; i < 50; ++i) attn_pool_run(pool, test_environment, &bad, slots);
    bool kept = environment_is_strange();
    fesetenv(&before);
    attn_pool_close(pool);
    expect(bad == 0, "tasks run under the default floating-point environment");
    if (!keeps)
        printf("check_pool: skipped: the caller's floating-point environment (this machine does not keep one)\n");
    else
        expect(kept, "the caller's rounding, flush to zero and sticky flags are put back");
}

/* ---- callers side by side ---- */
typedef struct caller {
    attn_pool *pool;
    atomic_bool *stop;
    int rounds, done;
    pthread_t thread;
} caller;

static void *call_often(void *state) {
    caller *c = state;
    int slots = attn_pool_threads(c->pool);
    for (int i = 0; c->stop ? !atomic_load(c->stop) : i < c->rounds; ++i) {
        tally t = { 0 };
        attn_pool_run(c->pool, count_slot, &t, slots);
        if (!tally_is(&t, slots, 1)) return NULL;
        ++c->done;
    }
    return NULL;
}

static void check_concurrent_callers(void) {
    attn_pool *pool = pool_of(3, NULL);
    caller callers[3];
    pthread_t threads[3];
    for (int i = 0; i < 3; ++i) {
        callers[i] = (caller){ .pool = pool, .rounds = 300 };
        expect(pthread_create(&threads[i], NULL, call_often, &callers[i]) == 0, "a thread for the check itself");
    }
    for (int i = 0; i < 3; ++i) {
        pthread_join(threads[i], NULL);
        expect(callers[i].done == 300, "calls on one pool from several threads");
    }
    attn_pool_close(pool);
}

/* ---- a caller who is cancelled ---- */
static void cancel_caller(void *state, size_t slot) {
    caller *c = state;
    struct timespec from, now;
    (void)slot;
    pthread_cancel(c->thread); /* whoever runs this; the others are still at work then */
    clock_gettime(CLOCK_MONOTONIC, &from);
    do clock_gettime(CLOCK_MONOTONIC, &now); /* sleep would be the caller's end */
    while ((double)(now.tv_sec - from.tv_sec) + 1e-9 * (double)(now.tv_nsec - from.tv_nsec) < 0.02);
}

static void *call_and_go(void *state) {
    caller *c = state;
    c->thread = pthread_self();
    attn_pool_run(c->pool, cancel_caller, c, attn_pool_threads(c->pool));
    c->done = 1;
    pthread_testcancel();
    return NULL;
}

static void check_cancelled_caller(void) {
    attn_pool *pool = pool_of(3, NULL);
    for (int i = 0; i < 5; ++i) {
        caller c = { .pool = pool };
        pthread_t thread;
        void *result = NULL;
        expect(pthread_create(&thread, NULL, call_and_go, &c) == 0, "a thread for the check itself");
        pthread_join(thread, &result);
        expect(c.done == 1 && result == PTHREAD_CANCELED, "a cancelled caller first finishes its call");
    }
    caller next = { .pool = pool, .rounds = 20 };
    call_often(&next);
    expect(next.done == 20, "the pool works after a caller was cancelled");
    attn_pool_close(pool);
}

/* ---- fork ---- */
static bool works_here(attn_pool *pool) {
    caller callers[2] = { { .pool = pool, .rounds = 20 }, { .pool = pool, .rounds = 20 } };
    pthread_t second; /* both find at once that the threads are gone */
    if (pthread_create(&second, NULL, call_often, &callers[1]) != 0) return false;
    call_often(&callers[0]);
    pthread_join(second, NULL);
    return callers[0].done == 20 && callers[1].done == 20;
}

static bool child_succeeds(pid_t child, double seconds) {
    for (double waited = 0; waited < seconds; waited += 0.005) {
        int status;
        if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    return false;
}

static void check_fork(void) {
#ifdef THREAD_SANITIZED
    printf("check_pool: skipped: fork (ThreadSanitizer does not support threads in the child)\n");
    (void)works_here, (void)child_succeeds;
#else
    attn_pool *pool = pool_of(3, NULL);
    atomic_bool stop = false;
    caller busy = { .pool = pool, .stop = &stop };
    pthread_t thread;
    expect(pthread_create(&thread, NULL, call_often, &busy) == 0, "a thread for the check itself");
    for (int i = 0; i < 10; ++i) {
        pid_t child = fork();
        if (child == 0) {
            alarm(0);
            if (!works_here(pool)) _exit(1);
            pid_t grandchild = fork();
            if (grandchild == 0) _exit(works_here(pool) ? 0 : 1);
            bool good = child_succeeds(grandchild, 8.0) && works_here(pool);
            attn_pool_close(pool);
            _exit(good && threads_return_to(1) ? 0 : 1);
        }
        expect(child > 0 && child_succeeds(child, 10.0), "a pool in the child of fork, while the parent is at work");
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    expect(busy.done > 0 && works_here(pool), "the parent's pool after fork");
    attn_pool_close(pool);
#endif
}

/* ---- what is taken is given back ---- */
static long resident_pages(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (f == NULL) return 0;
    if (fscanf(f, "%ld %ld", &size, &resident) != 2) resident = 0;
    fclose(f);
    return resident;
}

static void open_and_close(int cycles) {
    for (int i = 0; i < cycles; ++i) {
        attn_pool *pool = pool_of(2, NULL);
        tally t = { 0 };
        attn_pool_run(pool, count_slot, &t, attn_pool_threads(pool));
        attn_pool_close(pool);
    }
}

static void check_given_back(void) {
    open_and_close(50);
    int threads = threads_alive();
    long pages = resident_pages();
    open_and_close(1000);
    if (threads < 0)
        printf("check_pool: skipped: thread count after 1000 pools (no /proc here)\n");
    else
        expect(threads_return_to(threads), "threads are joined: 1000 pools leave none");
    const char *preloaded = getenv("LD_PRELOAD");
    if (SANITIZED || pages == 0 || (preloaded != NULL && strstr(preloaded, "vgpreload") != NULL))
        printf("check_pool: skipped: resident memory after 1000 pools (sanitizer, valgrind, or no /proc)\n");
    else
        expect((resident_pages() - pages) * sysconf(_SC_PAGESIZE) < 1 << 20, "1000 pools leave less than 1 MB");
}

/* ---- threads that the system will not give ---- */
#if !SANITIZED && defined __GLIBC__                                   /* others may be linked statically */
static atomic_int created, fail_from = 1 << 30, fail_until = 1 << 30; /* calls fail_from <= n < fail_until fail */
static atomic_int alive, most_alive = 1 << 30;
static atomic_bool held; /* new threads do not get to run */

typedef struct start {
    void *(*body)(void *);
    void *argument;
} start;

static void *count_life(void *state) {
    start own = *(start *)state;
    free(state);
    while (atomic_load(&held)) nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    void *result = own.body(own.argument);
    atomic_fetch_sub(&alive, 1);
    return result;
}

/* Stands before the C library's, for this program and all libraries in it. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
    union {
        void *object;
        int (*call)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    } real = { dlsym(RTLD_NEXT, "pthread_create") };
    int n = atomic_fetch_add(&created, 1);
    start *own = malloc(sizeof *own);
    if (own == NULL || (n >= fail_from && n < fail_until) || atomic_load(&alive) >= most_alive) return free(own), EAGAIN;
    *own = (start){ body, argument };
    atomic_fetch_add(&alive, 1);
    int error = real.call(thread, attributes, count_life, own);
    if (error != 0) free(own), atomic_fetch_sub(&alive, 1);
    return error;
}

/* A system with room for so many more threads: they are used, and found out without waiting for what does not come. */
static void check_shortage(int room) {
    time_t before = time(NULL);
    most_alive = atomic_load(&alive) + room;
    attn_pool *pool = pool_of(5, NULL);
    int threads = attn_pool_threads(pool);
    tally t = { 0 };
    attn_pool_run(pool, count_slot, &t, threads);
#if defined ATTN_HAVE_PTHREADPOOL
    int expected = room > 1 ? room : 1; /* while it is made, a thread stands in for the caller */
#elif defined ATTN_HAVE_PTHREADS
    int expected = room + 1;
#else
    int expected = 1; /* the build has no threads of its own */
#endif
    expect(threads == expected && tally_is(&t, threads, 1), "a limit on threads: the pool uses what there is");
    attn_pool_close(pool);
    most_alive = 1 << 30;
    expect(time(NULL) - before < 3, "a limit on threads: opening takes no longer");
}

static void check_refusal(int from, int until) {
    atomic_store(&created, 0);
    fail_from = from;
    fail_until = until;
    attn_pool *pool = pool_of(3, NULL);
    int threads = attn_pool_threads(pool), calls = atomic_load(&created);
    fail_from = fail_until = 1 << 30;
    tally t = { 0 };
    attn_pool_run(pool, count_slot, &t, threads);
    expect(threads >= 1 && threads <= 3 && tally_is(&t, threads, 1), "threads refused: the pool works with fewer");
    expect(from >= calls || threads < 3, "threads refused: no more are claimed than there are");
    attn_pool_close(pool);
}

/* Threads that the system gives but does not run hold no call up. pthreadpool's callers wait for all of its threads. */
static void check_held(void) {
#ifdef ATTN_HAVE_PTHREADS
    atomic_store(&held, true);
    attn_pool *pool = pool_of(3, NULL);
    tally t = { 0 };
    for (int i = 0; i < 20; ++i) attn_pool_run(pool, count_slot, &t, 3);
    expect(attn_pool_threads(pool) == 3 && tally_is(&t, 3, 20), "workers that do not run: the caller does it all");
    atomic_store(&held, false);
    for (int i = 0; i < 20; ++i) attn_pool_run(pool, count_slot, &t, 3);
    expect(tally_is(&t, 3, 40), "workers that come late");
    attn_pool_close(pool);
#endif
}

static void check_refusals(void) {
    check_held();
    for (int room = 0; room < 5; ++room) check_shortage(room);
    for (int n = 0; n < 8; ++n) {
        check_refusal(n, n + 1);              /* one call fails */
        if (n < 4) check_refusal(n, 1 << 30); /* all fail from then on */
    }
}
#else
static void check_refusals(void) {
    printf("check_pool: skipped: refused threads (pthread_create cannot be replaced under this sanitizer or system)\n");
}
#endif

int main(void) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* nothing waits in a buffer that fork would copy */
    signal(SIGALRM, too_long);
    alarm(240);
    check_slots();
    check_executor();
    check_environment();
    check_concurrent_callers();
    check_cancelled_caller();
    check_fork();
    check_given_back();
    check_refusals();
    if (failures == 0) printf("check_pool: good\n");
    return failures != 0;
}
