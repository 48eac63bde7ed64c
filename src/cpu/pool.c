/* pool.c: runs the tasks of one call side by side (pool.h): by workers (workers.h), which survive fork by being made anew in the child, or
 * by the host's executor. */
#include "pool.h"
#include "system.h"
#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#ifdef ATTN_HAVE_WORKERS
#include "workers.h"
#endif

/* Worker threads as of one process: fork copies this but not the threads. */
typedef struct crew {
    unsigned generation;
    struct crew *before; /* of the parent process: its threads are not here, so it can neither work nor be taken down */
#ifdef ATTN_HAVE_WORKERS
    attn_workers *workers; /* NULL: the caller alone */
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

#ifdef ATTN_HAVE_WORKERS
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

/* NULL when memory is out. */
static crew *crew_create(int wanted) {
    crew *made = calloc(1, sizeof *made);
    if (made == NULL) return NULL;
    made->generation = atomic_load_explicit(&process_generation, memory_order_relaxed);
    if (!attn_workers_make(&made->workers, wanted, &made->threads)) return free(made), NULL;
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
    if (old->workers != NULL) attn_workers_end(old->workers);
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
    pool->threads = wanted > 0 ? wanted : attn_usable_cpus();
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
        attn_workers_run(current->workers, run_task, work, (size_t)slots);
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
#ifdef ATTN_HAVE_WORKERS
    if (pool->threads > 1) return attn_workers_name;
#endif
    return "none";
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
