/* system.h: what the library asks of the operating system beyond C11, in one form for all of them: aligned memory, locks, news of forks,
 * the floating-point environment, a clock. Where threads and forks cannot be had, the answers are those of a system that never forks. */
#ifndef ATTN_SYSTEM_H
#define ATTN_SYSTEM_H
#include <fenv.h>
#include <stdbool.h>
#include <stddef.h>
#ifndef _WIN32
#include <pthread.h>
#endif

/* alignment: a power of two. NULL where memory is out. What was taken here is given back here. */
void *attn_memory_take(size_t alignment, size_t bytes);
void attn_memory_give(void *memory); /* NULL is fine */

typedef struct attn_lock {
#ifdef _WIN32
    void *word; /* an SRWLOCK: the header that declares it brings thousands of names */
#else
    pthread_mutex_t mutex;
#endif
} attn_lock;
#ifdef _WIN32
#define ATTN_LOCK_INIT                                                                                                                     \
    { NULL }
#else
#define ATTN_LOCK_INIT                                                                                                                     \
    { PTHREAD_MUTEX_INITIALIZER }
#endif
bool attn_lock_make(attn_lock *lock); /* false where memory is out */
void attn_lock_unmake(attn_lock *lock);
void attn_lock_take(attn_lock *lock);
bool attn_lock_try(attn_lock *lock);
void attn_lock_give(attn_lock *lock);

/* From now on every fork calls `before` and `in_parent` in the parent and `in_child` in the child. false where memory is out. */
bool attn_watch_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void));

/* The calling thread's floating-point environment. Between enter and leave: round to nearest, subnormals kept, nothing raised, nothing
 * traps. */
typedef struct attn_environment {
    fenv_t saved;
    unsigned control; /* what fenv_t may leave out: the control register of SSE, or of 64-bit ARM */
} attn_environment;
void attn_environment_enter(attn_environment *before);
void attn_environment_leave(const attn_environment *before);

double attn_seconds(void); /* from some moment on, never backwards */
#endif
