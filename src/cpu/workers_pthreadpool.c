/* workers_pthreadpool.c: workers (workers.h) by the pthreadpool library, asked for in such a way that a system that will not give threads
 * costs speed and nothing else. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* syscall */
#endif
#include "system.h"
#include "workers.h"
#include <pthreadpool.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

struct attn_workers {
    pthreadpool_t pool;
    uint32_t flags;
};

const char attn_workers_name[] = "pthreadpool";

static void sleep_briefly(void) { nanosleep(&(struct timespec){ 0, 20000 }, NULL); }

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
        if (!attn_thread_start(&probes[granted].thread, wait_at_gate, &probes[granted])) break;
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
static bool make_pool(pthreadpool_t *workers, int threads) {
    *workers = NULL;
    birth *record = calloc(1, sizeof *record);
    if (record == NULL) return false;
    record->threads = (size_t)threads;
    atomic_init(&record->state, birth_awaited);
    pthread_t midwife;
    if (!attn_thread_start(&midwife, give_birth, record)) return free(record), true;
    double deadline =
        attn_seconds() + 4.0 + 0.25 * threads / attn_usable_cpus(); /* each worker spins for up to 0.06 s before its first task */
    while (atomic_load(&record->state) == birth_awaited && attn_seconds() < deadline) sleep_briefly();
    int expected = birth_awaited;
    if (atomic_compare_exchange_strong(&record->state, &expected, birth_abandoned)) return pthread_detach(midwife), true;
    pthread_join(midwife, NULL);
    *workers = record->workers;
    free(record);
    return *workers != NULL;
}

static bool make_by(attn_workers *workers, int wanted, int *threads) {
    workers->flags = wanted > attn_usable_cpus() ? PTHREADPOOL_FLAG_YIELD_WORKERS : 0; /* spinning helps only those who have a CPU each */
    int granted = grantable_threads(wanted); /* the midwife counts like the caller, who is one of the `wanted` */
    if (granted < 0 || (granted > 1 && !make_pool(&workers->pool, granted))) return false;
    if (workers->pool != NULL) *threads = granted;
    return true;
}

bool attn_workers_make(attn_workers **made, int wanted, int *threads) {
    *made = NULL;
    *threads = 1;
    attn_workers *workers = calloc(1, sizeof *workers);
    if (workers == NULL || !make_by(workers, wanted, threads)) return free(workers), false;
    if (workers->pool == NULL) return free(workers), true;
    *made = workers;
    return true;
}

void attn_workers_end(attn_workers *workers) {
    pthreadpool_destroy(workers->pool);
    free(workers);
}

void attn_workers_run(attn_workers *workers, attn_job task, void *state, size_t slots) {
    pthreadpool_parallelize_1d(workers->pool, task, state, slots, workers->flags);
}
