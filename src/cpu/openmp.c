/* openmp.c: an executor's run on the threads of the host's own OpenMP library, by the entry point that compilers call for a parallel
 * region. */
#include "attn/attn.h"
#include <stdatomic.h>
#include <string.h>

typedef void parallel_region(void (*body)(void *), void *region, unsigned threads, unsigned flags);

typedef struct region {
    attn_job job;
    void *state;
    size_t count;
    atomic_size_t next;
} region;

/* OpenMP may give fewer threads than were asked for, one inside another region: those that it gives take the jobs one by one. */
static void take_jobs(void *state) {
    region *r = state;
    for (size_t i; (i = atomic_fetch_add(&r->next, 1)) < r->count;) r->job(r->state, i);
}

void attn_run_openmp(void *host, attn_job job, void *state, size_t count) {
    region r = { .job = job, .state = state, .count = count };
    atomic_init(&r.next, 0);
    parallel_region *run;
    memcpy(&run, &host, sizeof run); /* ISO C converts no object pointer to a function's */
    run(take_jobs, &r, (unsigned)count, 0);
}
