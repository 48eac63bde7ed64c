/* workers_pthreads.c: workers (workers.h) by threads, locks and conditions of POSIX alone. A call's slots are taken one by one by whoever
 * is awake, the caller among them: a worker that is late, or that the system does not run, holds nobody up. */
#include "system.h"
#include "workers.h"
#include <stdatomic.h>
#include <stdlib.h>

struct attn_workers {
    pthread_mutex_t turn; /* the caller who has the workers */
    attn_job task;        /* of that call, with its state: read only by who has taken a slot of it */
    void *state;
    atomic_int untaken, undone; /* slots of that call */
    atomic_uint calls;          /* changes when there is something to do */
    atomic_bool over;

    pthread_mutex_t lock; /* held to fall asleep and to wake */
    pthread_cond_t called, finished;
    atomic_int asleep; /* workers */

    double patience; /* seconds to look for the next thing to happen before falling asleep */
    int count;
    pthread_t threads[];
};

const char attn_workers_name[] = "pthreads";

static inline void pause_briefly(void) {
#if defined __x86_64__ || defined __i386__
    __builtin_ia32_pause();
#elif defined __aarch64__
    __asm__ volatile("yield");
#endif
}

/* A thread that has fallen asleep needs the kernel and tens of microseconds to come back, as long as a small call takes. */
static bool comes_soon(const attn_workers *workers, bool (*has_come)(const attn_workers *, unsigned), unsigned seen) {
    if (has_come(workers, seen)) return true;
    if (workers->patience == 0.0) return false;
    double until = attn_seconds() + workers->patience;
    do {
        for (int i = 0; i < 32; ++i) {
            if (has_come(workers, seen)) return true;
            pause_briefly();
        }
    } while (attn_seconds() < until);
    return false;
}

static bool is_called(const attn_workers *workers, unsigned seen) { return atomic_load(&workers->calls) != seen; }

static bool is_done(const attn_workers *workers, unsigned seen) {
    (void)seen;
    return atomic_load(&workers->undone) == 0;
}

static void take_slots(attn_workers *workers) {
    int slots = atomic_load(&workers->untaken);
    while (slots > 0) {
        if (!atomic_compare_exchange_weak(&workers->untaken, &slots, slots - 1)) continue;
        workers->task(workers->state, (size_t)slots - 1);
        if (atomic_fetch_sub(&workers->undone, 1) == 1) {
            pthread_mutex_lock(&workers->lock); /* the caller may be about to fall asleep */
            pthread_cond_signal(&workers->finished);
            pthread_mutex_unlock(&workers->lock);
        }
        slots = atomic_load(&workers->untaken);
    }
}

static void *work(void *state) {
    attn_workers *workers = state;
    for (unsigned seen = 0; !atomic_load(&workers->over); seen = atomic_load(&workers->calls), take_slots(workers)) {
        if (comes_soon(workers, is_called, seen)) continue;
        pthread_mutex_lock(&workers->lock);
        atomic_fetch_add(&workers->asleep, 1); /* before the last look: who calls after that look sees it */
        while (!is_called(workers, seen)) pthread_cond_wait(&workers->called, &workers->lock);
        atomic_fetch_sub(&workers->asleep, 1);
        pthread_mutex_unlock(&workers->lock);
    }
    return NULL;
}

static void wake(attn_workers *workers, int most) {
    atomic_fetch_add(&workers->calls, 1);
    int asleep = atomic_load(&workers->asleep);
    if (asleep == 0 || most == 0) return;
    pthread_mutex_lock(&workers->lock);
    if (asleep <= most)
        pthread_cond_broadcast(&workers->called);
    else
        for (int i = 0; i < most; ++i) pthread_cond_signal(&workers->called);
    pthread_mutex_unlock(&workers->lock);
}

void attn_workers_run(attn_workers *workers, attn_job task, void *state, size_t slots) {
    int cancellable;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellable); /* a caller who left in here would leave the workers its dead stack */
    pthread_mutex_lock(&workers->turn);
    workers->task = task;
    workers->state = state;
    atomic_store(&workers->undone, (int)slots);
    atomic_store(&workers->untaken, (int)slots);
    wake(workers, (int)slots - 1);
    take_slots(workers);
    if (!comes_soon(workers, is_done, 0)) {
        pthread_mutex_lock(&workers->lock);
        while (!is_done(workers, 0)) pthread_cond_wait(&workers->finished, &workers->lock);
        pthread_mutex_unlock(&workers->lock);
    }
    pthread_mutex_unlock(&workers->turn);
    pthread_setcancelstate(cancellable, NULL);
}

void attn_workers_end(attn_workers *workers) {
    atomic_store(&workers->over, true);
    wake(workers, workers->count);
    for (int i = 0; i < workers->count; ++i) pthread_join(workers->threads[i], NULL);
    pthread_cond_destroy(&workers->finished);
    pthread_cond_destroy(&workers->called);
    pthread_mutex_destroy(&workers->lock);
    pthread_mutex_destroy(&workers->turn);
    free(workers);
}

static bool prepare(attn_workers *workers) {
    if (pthread_mutex_init(&workers->turn, NULL) != 0) return false;
    if (pthread_mutex_init(&workers->lock, NULL) == 0) {
        if (pthread_cond_init(&workers->called, NULL) == 0) {
            if (pthread_cond_init(&workers->finished, NULL) == 0) return true;
            pthread_cond_destroy(&workers->called);
        }
        pthread_mutex_destroy(&workers->lock);
    }
    pthread_mutex_destroy(&workers->turn);
    return false;
}

bool attn_workers_make(attn_workers **made, int wanted, int *threads) {
    *made = NULL;
    *threads = 1;
    attn_workers *workers = calloc(1, sizeof *workers + ((size_t)wanted - 1) * sizeof *workers->threads);
    if (workers == NULL || !prepare(workers)) return free(workers), false;
    atomic_init(&workers->untaken, 0);
    atomic_init(&workers->undone, 0);
    atomic_init(&workers->calls, 0);
    atomic_init(&workers->asleep, 0);
    atomic_init(&workers->over, false);
    workers->patience = wanted > attn_usable_cpus() ? 0.0 : 2e-4; /* looking helps only those who have a CPU each */
    while (workers->count < wanted - 1 && attn_thread_start(&workers->threads[workers->count], work, workers)) ++workers->count;
    *threads = workers->count + 1;
    if (workers->count > 0)
        *made = workers;
    else
        attn_workers_end(workers);
    return true;
}
