/* pool.c: runs the tasks of one call side by side (pool.h). Threads come from the pthreadpool library, survive fork by being made anew in
 * the child, and are asked for in such a way that a system that will not give them costs speed and nothing else. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "pool.h"
#include "system.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#ifdef ATTN_HAVE_PTHREADPOOL /* threads of POSIX; without the library nothing of them is needed */
#include <pthread.h>
#include <pthreadpool.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#include <sys/syscall.h>
#endif
#endif

/* Worker threads as of one process: fork copies this but not the threads. */
typedef struct crew {
    unsigned generation;
    struct crew *before; /* of the parent process: its threads are not here, so it can neither work nor be taken down */
#ifdef ATTN_HAVE_PTHREADPOOL
    pthreadpool_t workers; /* NULL: the caller alone */
    uint32_t flags;
#endif
    int threads;
} crew;

struct attn_pool {
    attn_executor executor; /* run NULL: none */
    int threads;
    _Atomic(crew *) crew; /* NULL where no thread but the caller's is wanted */
};

/* One call of attn_pool_run. `published` and `finished` order the memory of caller and workers by the rules of C11, whoever runs the tasks.
 */
typedef struct batch {
    attn_job task;
    void *state;
    atomic_int published, finished;
} batch;

static void run_task(void *state, size_t slot) {
    batch *work = state;
    (void)atomic_load_explicit(&work->published, memory_order_acquire);
    int error = errno;
    attn_environment caller;
    attn_environment_enter(&caller);
    work->task(work->state, slot);
    attn_environment_leave(&caller);
    errno = error;
    atomic_fetch_add_explicit(&work->finished, 1, memory_order_release);
}

#ifdef ATTN_HAVE_PTHREADPOOL
enum { most_threads = 1024 };

static atomic_uint process_generation;

static void enter_child(void) { atomic_fetch_add_explicit(&process_generation, 1, memory_order_relaxed); }

/* Two threads that come here at once register twice, which counts a fork twice: no harm. */
static bool watch_forks(void) {
    static atomic_bool watching;
    if (atomic_load(&watching)) return true;
    if (!attn_watch_forks(NULL, NULL, enter_child)) return false;
    atomic_store(&watching, true);
    return true;
}

static int usable_cpus(void) {
    int count = 0;
#ifdef __linux__
    for (size_t most = 1024; count == 0 && most <= 1 << 20; most *= 2) { /* the kernel's own mask may be longer than 1024 */
        cpu_set_t *set = CPU_ALLOC(most);
        if (set == NULL) break;
        if (sched_getaffinity(0, CPU_ALLOC_SIZE(most), set) == 0) count = CPU_COUNT_S(CPU_ALLOC_SIZE(most), set);
        CPU_FREE(set);
        if (count == 0 && errno != EINVAL) break;
    }
#endif
    if (count < 1) {
        long online = sysconf(_SC_NPROCESSORS_ONLN);
        count = online < 1 ? 1 : online > most_threads ? most_threads : (int)online;
    }
    return count > most_threads ? most_threads : count;
}

static void sleep_briefly(void) { nanosleep(&(struct timespec){ 0, 20000 }, NULL); }

/* Signals of the host are for the host's threads; what a thread brings on itself, and profiling, stays as it is. */
static bool start_thread(pthread_t *thread, void *(*body)(void *), void *state) {
    static const int kept[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) sigdelset(&blocked, kept[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before); /* a new thread inherits this */
    bool started = pthread_create(thread, NULL, body, state) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}

/* ---- how many threads the system grants at once ---- */
typedef struct gate {
    pthread_mutex_t lock;
    pthread_cond_t opened;
    bool open;
} gate;

typedef struct probe {
    gate *gate;
    pthread_t thread;
    long id; /* the kernel's, 0 where it is not known */
} probe;

static void *wait_at_gate(void *state) {
    probe *self = state;
#ifdef __linux__
    self->id = syscall(SYS_gettid);
#endif
    pthread_mutex_lock(&self->gate->lock);
    while (!self->gate->open) pthread_cond_wait(&self->gate->opened, &self->gate->lock);
    pthread_mutex_unlock(&self->gate->lock);
    return NULL;
}

/* A joined thread still counts against the system's limits for a moment; where the limit was met exactly, that moment matters. */
static void await_departure(const probe *probes, int count) {
#ifdef __linux__
    double deadline = attn_seconds() + 1.0;
    for (int i = 0; i < count; ++i)
        while (probes[i].id > 0 && syscall(SYS_tgkill, (long)getpid(), probes[i].id, 0L) == 0 && attn_seconds() < deadline) sleep_briefly();
#else
    (void)probes, (void)count;
#endif
}

/* Up to `wanted`; -1 when memory is out. */
static int grantable_threads(int wanted) {
    probe *probes = calloc((size_t)wanted, sizeof *probes);
    if (probes == NULL) return -1;
    gate door = { PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, false };
    int granted = 0;
    for (; granted < wanted; ++granted) {
        probes[granted].gate = &door;
        if (!start_thread(&probes[granted].thread, wait_at_gate, &probes[granted])) break;
    }
    pthread_mutex_lock(&door.lock);
    door.open = true;
    pthread_cond_broadcast(&door.opened);
    pthread_mutex_unlock(&door.lock);
    for (int i = 0; i < granted; ++i) pthread_join(probes[i].thread, NULL);
    await_departure(probes, granted);
    pthread_cond_destroy(&door.opened);
    pthread_mutex_destroy(&door.lock);
    free(probes);
    return granted;
}

/* ---- making the workers ----
 * pthreadpool_create waits for good when one of its threads does not come to be, so a thread of its own calls it, and one that has not come
 * back long after it should have is left behind with what it holds. */
typedef struct birth {
    size_t threads;
    pthreadpool_t workers;
    atomic_int state;
} birth;

enum { birth_awaited, birth_done, birth_abandoned };

static void no_task(void *state, size_t index) { (void)state, (void)index; }

static void *give_birth(void *state) {
    birth *self = state;
    self->workers = pthreadpool_create(self->threads);
    /* New workers spin until their first task. This one sends them to sleep. */
    if (self->workers != NULL) pthreadpool_parallelize_1d(self->workers, no_task, NULL, self->threads, PTHREADPOOL_FLAG_YIELD_WORKERS);
    int expected = birth_awaited;
    if (!atomic_compare_exchange_strong(&self->state, &expected, birth_done)) {
        if (self->workers != NULL) pthreadpool_destroy(self->workers);
        free(self);
    }
    return NULL;
}

/* false when memory is out; *workers is NULL when the threads did not come. */
static bool make_workers(pthreadpool_t *workers, int threads) {
    *workers = NULL;
    birth *record = calloc(1, sizeof *record);
    if (record == NULL) return false;
    record->threads = (size_t)threads;
    atomic_init(&record->state, birth_awaited);
    pthread_t midwife;
    if (!start_thread(&midwife, give_birth, record)) return free(record), true;
    double deadline = attn_seconds() + 4.0 + 0.25 * threads / usable_cpus(); /* each worker spins for up to 0.06 s before its first task */
    while (atomic_load(&record->state) == birth_awaited && attn_seconds() < deadline) sleep_briefly();
    int expected = birth_awaited;
    if (atomic_compare_exchange_strong(&record->state, &expected, birth_abandoned)) return pthread_detach(midwife), true;
    pthread_join(midwife, NULL);
    *workers = record->workers;
    free(record);
    return *workers != NULL;
}

/* NULL when memory is out. */
static crew *crew_create(int wanted) {
    crew *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->generation = atomic_load_explicit(&process_generation, memory_order_relaxed);
    made->flags = wanted > usable_cpus() ? PTHREADPOOL_FLAG_YIELD_WORKERS : 0; /* spinning helps only those who have a CPU each */
    int granted = grantable_threads(wanted); /* the midwife counts like the caller, who is one of the `wanted` */
    made->threads = granted > 1 ? granted : 1;
    bool enough = granted >= 0;
    if (granted > 1) enough = make_workers(&made->workers, granted);
    if (!enough) return free(made), NULL;
    if (made->workers == NULL) made->threads = 1;
    return made;
}

/* A crew of the parent process cannot be taken down, only kept where leak checkers still see it. */
static void crew_destroy(crew *old) {
    static _Atomic(crew *) stranded;
    if (old->generation != atomic_load_explicit(&process_generation, memory_order_relaxed) && old->workers != NULL) {
        old->before = atomic_load(&stranded);
        while (!atomic_compare_exchange_weak(&stranded, &old->before, old)) {}
        return;
    }
    if (old->workers != NULL) pthreadpool_destroy(old->workers);
    free(old);
}

/* This process's crew; NULL when memory is out. No lock, since a thread that is not in the child may have held it at the fork. */
static crew *crew_of(attn_pool *pool) {
    crew *current = atomic_load_explicit(&pool->crew, memory_order_acquire);
    if (current == NULL || current->generation == atomic_load_explicit(&process_generation, memory_order_relaxed)) return current;
    crew *made = crew_create(pool->threads);
    if (made == NULL) return NULL;
    made->before = current;
    if (atomic_compare_exchange_strong(&pool->crew, &current, made)) return made;
    crew_destroy(made);
    return current;
}

static attn_status open_threads(attn_pool *pool, int wanted) {
    pool->threads = wanted > 0 ? wanted : usable_cpus();
    if (pool->threads == 1) return ATTN_OK;
    if (!watch_forks()) return ATTN_ERROR_OUT_OF_MEMORY;
    crew *made = crew_create(pool->threads);
    if (made == NULL) return ATTN_ERROR_OUT_OF_MEMORY;
    pool->threads = made->threads;
    atomic_store(&pool->crew, made);
    return ATTN_OK;
}

static void close_threads(attn_pool *pool) {
    for (crew *old = atomic_load(&pool->crew), *before; old != NULL; old = before) {
        before = old->before;
        crew_destroy(old);
    }
}

static void run_threads(attn_pool *pool, batch *work, int slots) {
    crew *current = crew_of(pool);
    if (current == NULL || current->workers == NULL)
        for (int slot = 0; slot < slots; ++slot) run_task(work, (size_t)slot);
    else
        pthreadpool_parallelize_1d(current->workers, run_task, work, (size_t)slots, current->flags);
}
#else
static attn_status open_threads(attn_pool *pool, int wanted) {
    (void)wanted;
    pool->threads = 1;
    return ATTN_OK;
}

static void close_threads(attn_pool *pool) { (void)pool; }

static void run_threads(attn_pool *pool, batch *work, int slots) {
    (void)pool;
    for (int slot = 0; slot < slots; ++slot) run_task(work, (size_t)slot);
}
#endif

static attn_status pool_open(attn_pool **pool, const attn_options *options) {
    attn_pool *made = calloc(1, sizeof *made);
    if (made == NULL) return ATTN_ERROR_OUT_OF_MEMORY;
    atomic_init(&made->crew, NULL);
    attn_status status = ATTN_OK;
    if (options->executor != NULL) {
        made->executor = *options->executor;
        made->threads = options->threads > 0 && options->threads < made->executor.threads ? options->threads : made->executor.threads;
    } else {
        status = open_threads(made, options->threads);
    }
    if (status != ATTN_OK) return free(made), status;
    *pool = made;
    return ATTN_OK;
}

attn_status attn_pool_open(attn_pool **pool, const attn_options *options) {
    int error = errno;
    *pool = NULL;
    attn_status status = pool_open(pool, options);
    errno = error;
    return status;
}

void attn_pool_close(attn_pool *pool) {
    if (pool == NULL) return;
    int error = errno;
    close_threads(pool);
    free(pool);
    errno = error;
}

int attn_pool_threads(const attn_pool *pool) { return pool->threads; }

const char *attn_pool_name(const attn_pool *pool) {
    if (pool->executor.run != NULL) return "executor";
    return pool->threads > 1 ? "pthreadpool" : "none";
}

void attn_pool_run(attn_pool *pool, attn_job task, void *state, int slots) {
    if (slots < 1) return;
    int error = errno;
    batch work = { .task = task, .state = state };
    atomic_init(&work.finished, 0);
    atomic_store_explicit(&work.published, 1, memory_order_release);
    if (slots == 1)
        run_task(&work, 0);
    else if (pool->executor.run != NULL)
        pool->executor.run(pool->executor.host, run_task, &work, (size_t)slots);
    else
        run_threads(pool, &work, slots);
    (void)atomic_load_explicit(&work.finished, memory_order_acquire);
    errno = error;
}
