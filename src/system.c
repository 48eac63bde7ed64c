/* system.c: the operating system's part (system.h), for POSIX and for Windows. */
#ifndef _POSIX_C_SOURCE
#define _POSIX_C_SOURCE 200809L /* posix_memalign, clock_gettime */
#endif
#include "system.h"
#include <stdint.h>
#include <stdlib.h>

#ifdef _WIN32
#define WIN32_LEAN_AND_MEAN
#include <windows.h>
#include <malloc.h>
#ifdef __x86_64__
#include <xmmintrin.h>
#endif

_Static_assert(sizeof(SRWLOCK) == sizeof(attn_lock), "a lock has room for just an SRWLOCK");

static SRWLOCK *words(attn_lock *lock) { return (SRWLOCK *)(void *)lock; }

void *attn_memory_take(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
void attn_memory_give(void *memory) { _aligned_free(memory); }

bool attn_lock_make(attn_lock *lock) { return InitializeSRWLock(words(lock)), true; }
void attn_lock_unmake(attn_lock *lock) { (void)lock; }
void attn_lock_take(attn_lock *lock) { AcquireSRWLockExclusive(words(lock)); }
bool attn_lock_try(attn_lock *lock) { return TryAcquireSRWLockExclusive(words(lock)) != 0; }
void attn_lock_give(attn_lock *lock) { ReleaseSRWLockExclusive(words(lock)); }

bool attn_watch_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    (void)before, (void)in_parent, (void)in_child;
    return true; /* nothing forks here */
}

/* The C libraries of Windows neither reset nor put back the control register of SSE. */
void attn_environment_enter(attn_environment *before) {
    fegetenv(&before->saved);
#ifdef __x86_64__
    before->control = _mm_getcsr();
    _mm_setcsr(0x1f80);
    fesetenv(FE_PC64_ENV); /* what the mathematics of mingw-w64 count on; FE_DFL_ENV keeps 53 bits */
#else
    fesetenv(FE_DFL_ENV);
#endif
}

void attn_environment_leave(const attn_environment *before) {
    fesetenv(&before->saved);
#ifdef __x86_64__
    _mm_setcsr(before->control);
#endif
}

double attn_seconds(void) {
    LARGE_INTEGER now, rate;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&rate);
    return (double)now.QuadPart / (double)rate.QuadPart;
}
#else
#include <time.h>

void *attn_memory_take(size_t alignment, size_t bytes) {
    void *memory = NULL;
    return posix_memalign(&memory, alignment, bytes) == 0 ? memory : NULL;
}
void attn_memory_give(void *memory) { free(memory); }

bool attn_lock_make(attn_lock *lock) { return pthread_mutex_init(&lock->mutex, NULL) == 0; }
void attn_lock_unmake(attn_lock *lock) { pthread_mutex_destroy(&lock->mutex); }
void attn_lock_take(attn_lock *lock) { pthread_mutex_lock(&lock->mutex); }
bool attn_lock_try(attn_lock *lock) { return pthread_mutex_trylock(&lock->mutex) == 0; }
void attn_lock_give(attn_lock *lock) { pthread_mutex_unlock(&lock->mutex); }

bool attn_watch_forks(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
    return pthread_atfork(before, in_parent, in_child) == 0;
}

/* glibc's environments leave some bits of FPCR as they are. One of them (AHP) makes f16 a format without infinity and NaN. */
#ifdef __aarch64__
static unsigned control(void) {
    uint64_t bits;
    __asm__ volatile("mrs %0, fpcr" : "=r"(bits));
    return (unsigned)bits;
}
static void set_control(unsigned bits) {
    if (bits != control()) __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)bits));
}
#else
static unsigned control(void) { return 0; }
static void set_control(unsigned bits) { (void)bits; }
#endif

void attn_environment_enter(attn_environment *before) {
    before->control = control();
    fegetenv(&before->saved);
    fesetenv(FE_DFL_ENV);
    set_control(0);
}
void attn_environment_leave(const attn_environment *before) {
    fesetenv(&before->saved);
    set_control(before->control);
}

double attn_seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}
#endif
