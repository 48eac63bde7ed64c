/* workers.h: threads that wait for a pool's tasks (pool.c): by the pthreadpool library (workers_pthreadpool.c), or where that is not used
 * by the library itself (workers_pthreads.c). For systems with the threads of POSIX. */
#ifndef ATTN_WORKERS_H
#define ATTN_WORKERS_H
#include "attn/attn.h"
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

enum { ATTN_MOST_THREADS = 1024 };

int attn_usable_cpus(void); /* that this process may run on; at most ATTN_MOST_THREADS */

/* Signals of the host are for the host's threads: all that can be blocked are, but those that a thread brings on itself, and profiling.
 * false where the system gives no thread. */
bool attn_thread_start(pthread_t *thread, void *(*body)(void *), void *state);

/* None of these survives a fork: in the child only memory is left of it, in a state that nothing can be made of. */
typedef struct attn_workers attn_workers;
extern const char attn_workers_name[]; /* attn_description.pool */

/* So many that `wanted` tasks, 2 or more, run at once, the caller's included, or as many as the system gives: *threads. *made is NULL where
 * that is the caller alone. false where memory is out. */
bool attn_workers_make(attn_workers **made, int wanted, int *threads);
void attn_workers_end(attn_workers *workers);

/* Calls task(state, slot) once for every slot < slots and returns when all are done. Callers side by side take turns. */
void attn_workers_run(attn_workers *workers, attn_job task, void *state, size_t slots);
#endif
