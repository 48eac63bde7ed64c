/* check_inject.c: memory and threads that the system will not give. This program's own malloc and pthread_create stand before the C
 * library's and can be told to fail: every allocation in turn, and all from one on. A call then succeeds or says so, crashes never, leaks
 * nothing and writes nothing; with the caller's workspace a call does not allocate in the first place. */
#include "harness.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) || __has_feature(memory_sanitizer)
#define SANITIZED 1
#endif
#endif
#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#endif

#if defined SANITIZED
int main(void) { return check_skip("check_inject", "sanitizers have a malloc of their own"); }
#elif !defined __GLIBC__
int main(void) { return check_skip("check_inject", "made for glibc's malloc"); }
#else
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

/* ---- the stand-ins ---- */
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *memory, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

typedef struct tap {
    atomic_long calls; /* since armed */
    atomic_long fail;  /* number of the first call that fails; -1: none */
    atomic_bool all;   /* and all after it */
} tap;
static tap memory = { 0, -1, false }, threads = { 0, -1, false };
static atomic_bool armed;
static atomic_long live; /* blocks handed out and not yet given back */

static bool refuse(tap *t) {
    if (!atomic_load(&armed)) return false;
    long number = atomic_fetch_add(&t->calls, 1), fail = atomic_load(&t->fail);
    return fail >= 0 && (number == fail || (number > fail && atomic_load(&t->all)));
}

static void *out_of_memory(void) {
    errno = ENOMEM;
    return NULL;
}

static void *counted(void *block) {
    if (block) atomic_fetch_add(&live, 1);
    return block;
}

void *malloc(size_t size) { return refuse(&memory) ? out_of_memory() : counted(__libc_malloc(size)); }
void *calloc(size_t count, size_t size) { return refuse(&memory) ? out_of_memory() : counted(__libc_calloc(count, size)); }
void *memalign(size_t alignment, size_t size) { return refuse(&memory) ? out_of_memory() : counted(__libc_memalign(alignment, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void **result, size_t alignment, size_t size) {
    int error = errno;
    void *block = memalign(alignment, size);
    errno = error;
    if (block) *result = block;
    return block ? 0 : ENOMEM;
}
void free(void *block) {
    if (block) atomic_fetch_sub(&live, 1);
    __libc_free(block);
}
void *realloc(void *block, size_t size) {
    if (refuse(&memory)) return out_of_memory();
    void *grown = __libc_realloc(block, size);
    return block ? grown : counted(grown);
}

typedef int create_function(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
static create_function *real_create;
int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *argument) {
    if (refuse(&threads)) return EAGAIN;
    return real_create(thread, attributes, routine, argument);
}

static void arm(long memory_fail, long thread_fail, bool all) {
    atomic_store(&memory.calls, 0);
    atomic_store(&threads.calls, 0);
    atomic_store(&memory.fail, memory_fail);
    atomic_store(&threads.fail, thread_fail);
    atomic_store(&memory.all, all);
    atomic_store(&threads.all, all);
    errno = 4321;
    atomic_store(&armed, true);
}

static void disarm(void) {
    int error = errno;
    atomic_store(&armed, false);
    CHECK(error == 4321, "errno became %d", error);
}

/* ---- the problem they all run ---- */
static check_case fixture;
static check_bits right;

static void make_fixture(void) {
    check_random random = check_random_from(check_seed);
    check_case_init(&fixture, ATTN_F16, 1, 4, 2, 3, 700, 24);
    check_case_build(&fixture, &random, CHECK_NORMAL, CHECK_AT_END);
    attn_context *context = check_open(NULL, 1, 2, 0);
    check_case_forward(&fixture, context);
    right = check_bits_take(&fixture);
    attn_close(context);
}

static void works(attn_context *context, const char *what) {
    check_case_forward(&fixture, context);
    check_bits_same(&right, &fixture, what);
}

static void expect_untouched(const char *what) {
    for (size_t n = 0; n < fixture.out.buffer.size; n++) {
        if (fixture.out.buffer.data[n] != CHECK_FILL) {
            CHECK(0, "%s: byte %zu of out was written", what, n);
            return;
        }
    }
}

/* ---- memory ---- */
static void fail_open(int wanted, attn_device device) {
    attn_options options = ATTN_OPTIONS_INIT;
    options.threads = wanted;
    options.passes = 2;
    options.device = device;
    attn_close(check_open(NULL, wanted, 2, 0)); /* what is kept from a first time on does not count as a leak */
    for (int all = 0; all < 2; all++) {
        for (long n = 0;; n++) {
            attn_context *context = (attn_context *)&options; /* not NULL, to see it set */
            long before = atomic_load(&live);
            arm(n, -1, all);
            attn_status status = attn_open(&context, &options);
            disarm();
            bool reached = atomic_load(&memory.calls) > n;
            CHECK(status == ATTN_OK || status == ATTN_ERROR_OUT_OF_MEMORY, "open without allocation %ld: %s", n, attn_status_text(status));
            CHECK((status == ATTN_OK) == (context != NULL), "open without allocation %ld: status %d, context %p", n, (int)status,
                  (void *)context);
            if (status == ATTN_OK && device == ATTN_CPU) works(context, "opened short of memory");
            if (status == ATTN_OK) attn_close(context);
            if (wanted == 1)
                CHECK(atomic_load(&live) == before, "open without allocation %ld leaks %ld blocks", n, atomic_load(&live) - before);
            if (!reached) break;
            CHECK(n < 10000, "open never stops allocating");
            if (n >= 10000) break;
        }
    }
}

typedef enum verb { FORWARD, RESERVE, MERGE } verb;
static attn_status do_verb(attn_context *context, verb what) {
    if (what == FORWARD) return attn_forward(context, &fixture.problem, &fixture.args);
    if (what == MERGE) return attn_merge(context, &fixture.problem, NULL, 0, &fixture.args);
    return attn_reserve(context, &fixture.problem);
}

static void fail_verb(verb what, int wanted, attn_device device) {
    static const char *const names[] = { "forward", "reserve", "merge" };
    attn_options options = ATTN_OPTIONS_INIT;
    options.threads = wanted;
    options.passes = 2;
    options.device = device;
    for (int all = 0; all < 2; all++) {
        for (long n = 0; n < 100; n++) {
            attn_context *context = NULL;
            CHECK_OK(attn_open(&context, &options), "open");
            if (!context) return;
            check_case_clear(&fixture);
            arm(n, -1, all);
            attn_status status = do_verb(context, what);
            disarm();
            bool reached = atomic_load(&memory.calls) > n;
            CHECK(status == ATTN_OK || (reached && status == ATTN_ERROR_OUT_OF_MEMORY), "%s without allocation %ld: %s", names[what], n,
                  attn_status_text(status));
            if (status == ATTN_OK && what == FORWARD && device == ATTN_CPU) check_bits_same(&right, &fixture, "short of memory");
            if (status != ATTN_OK || what == RESERVE) expect_untouched(names[what]);
            if (device == ATTN_CPU) works(context, "after a failure");
            attn_close(context);
            if (!reached) break;
        }
    }
}

/* After reserve, and with the caller's workspace, nothing is allocated and no thread made. */
static void no_allocation(const char *isa, int wanted, int passes) {
    attn_context *context = check_open(isa, wanted, passes, 0);
    for (int reserved = 0; reserved < 2; reserved++) {
        if (reserved)
            CHECK_OK(attn_reserve(context, &fixture.problem), "reserve");
        else
            check_case_workspace(&fixture, context, CHECK_AT_END);
        check_case_clear(&fixture);
        for (int what = FORWARD; what <= MERGE; what++) {
            arm(0, 0, true);
            attn_status status = do_verb(context, (verb)what);
            disarm();
            if (what == RESERVE && !reserved) continue; /* it grows the context's own, whatever the caller has */
            CHECK(status == ATTN_OK, "call %d: %s", what, attn_status_text(status));
            CHECK(atomic_load(&memory.calls) == 0 && atomic_load(&threads.calls) == 0,
                  "call %d (isa %s, threads %d, passes %d): %ld allocations, %ld threads", what, isa, wanted, passes,
                  atomic_load(&memory.calls), atomic_load(&threads.calls));
        }
        fixture.args.workspace = NULL;
        fixture.args.workspace_size = 0;
    }
    attn_close(context);
}

/* ---- threads ---- */
/* All thread creations from number n on fail: the context works with what there is. */
static void fail_threads(long n) {
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *context = NULL;
    attn_description description = ATTN_DESCRIPTION_INIT;
    options.threads = 3;
    options.passes = 2;
    alarm(60); /* a hang ends the program */
    arm(-1, n, true);
    attn_status status = attn_open(&context, &options);
    disarm();
    CHECK(status == ATTN_OK && context, "open with %ld thread creations: %s", n, attn_status_text(status));
    if (!context) return;
    CHECK_OK(attn_describe(context, &description), "describe");
    CHECK(description.threads >= 1 && description.threads <= 3, "threads %d", description.threads);
    if (n == 0) CHECK(description.threads == 1, "threads %d where none could be made", description.threads);
    works(context, "short of threads");
    attn_close(context);
    alarm(0);
}

int main(int argc, char **argv) {
    char isas[CHECK_ISAS][16];
    check_begin("check_inject", argc, argv, 1);
    void *symbol = dlsym(RTLD_NEXT, "pthread_create");
    memcpy(&real_create, &symbol, sizeof real_create); /* ISO C has no conversion for it */
    int isa_count = check_isas(isas);
    make_fixture();
    attn_context *context = check_open(NULL, 1, 0, 0);
    arm(-1, -1, false);
    works(context, "counting");
    disarm();
    CHECK(atomic_load(&memory.calls) > 0, "this malloc is never called: nothing is injected");
    attn_close(context);
    fail_open(1, ATTN_CPU);
    fail_open(3, ATTN_CPU);
    fail_open(1, ATTN_REFERENCE);
    for (int what = FORWARD; what <= MERGE; what++) {
        fail_verb((verb)what, 1, ATTN_CPU);
        fail_verb((verb)what, 3, ATTN_CPU);
        fail_verb((verb)what, 1, ATTN_REFERENCE);
    }
    for (int n = 0; n < isa_count; n++)
        for (int passes = 0; passes <= 2; passes++)
            for (int wanted = 1; wanted <= 3; wanted += 2) no_allocation(isas[n], wanted, passes);
    for (long n = 0; n < 6; n++) fail_threads(n);
    check_bits_free(&right);
    check_case_free(&fixture);
    return check_end();
}
#endif
