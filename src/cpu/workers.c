/* workers.c: what both kinds of workers need of the system: the number of CPUs, and threads that leave the host's signals alone. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* sched_getaffinity */
#endif
#include "workers.h"
#include <errno.h>
#include <signal.h>
#include <unistd.h>
#ifdef __linux__
#include <sched.h>
#endif

int attn_usable_cpus(void) {
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
        count = online < 1 ? 1 : online > ATTN_MOST_THREADS ? ATTN_MOST_THREADS : (int)online;
    }
    return count > ATTN_MOST_THREADS ? ATTN_MOST_THREADS : count;
}

bool attn_thread_start(pthread_t *thread, void *(*body)(void *), void *state) {
    static const int kept[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT, SIGPROF };
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) sigdelset(&blocked, kept[i]);
    pthread_sigmask(SIG_BLOCK, &blocked, &before); /* a new thread inherits this */
    bool started = pthread_create(thread, NULL, body, state) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return started;
}
