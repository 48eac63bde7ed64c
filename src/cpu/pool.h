/* pool.h: who runs the tasks of a call: workers, the host's executor, or the calling thread alone. */
#ifndef ATTN_POOL_H
#define ATTN_POOL_H
#include "attn/attn.h"

typedef struct attn_pool attn_pool;

/* `options` as attn_open checked them. Threads that the system will not give are done without. */
attn_status attn_pool_open(attn_pool **pool, const attn_options *options);
void attn_pool_close(attn_pool *pool);
int attn_pool_threads(const attn_pool *pool); /* that may run at once, the caller's included; 1 or more */
const char *attn_pool_name(const attn_pool *pool);

/* Calls task(state, slot) once for every slot < slots, each under the default floating-point environment (the thread's own is put back),
 * and returns when all are done. slots must not exceed attn_pool_threads; slots == 1 runs on the caller without waking anyone. */
void attn_pool_run(attn_pool *pool, attn_job task, void *state, int slots);
#endif
