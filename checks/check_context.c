/* check_context.c: what holds for a context on every device: it can be used in the child of a fork whatever other threads were doing with
 * it, gives back threads and memory, describes itself, and its calls leave errno and the floating-point environment as they found them. */
#include "attn/attn.h"
#include "expect.h"
#include <dirent.h>
#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#if defined __SANITIZE_THREAD__
#define THREAD_SANITIZED 1
#elif defined __has_feature
#if __has_feature(thread_sanitizer)
#define THREAD_SANITIZED 1
#endif
#endif

enum { HEADS = 4, LEN_Q = 3, LEN_KV = 600, DIM = 16 };
static float q[HEADS * LEN_Q * DIM], k[HEADS * LEN_KV * DIM], v[HEADS * LEN_KV * DIM];

static const char *name_of(attn_device device) { return device == ATTN_CPU ? "cpu" : "reference"; }

static attn_context *context_of(attn_device device, int threads) {
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *context = NULL;
    options.device = device;
    options.threads = threads;
    attn_status status = attn_open(&context, &options);
    EXPECT(status == ATTN_OK, "attn_open on %s: %s", name_of(device), attn_status_text(status));
    if (context == NULL) exit(1);
    return context;
}

static attn_problem problem_of(int64_t len_kv) {
    attn_problem problem;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, HEADS, HEADS, LEN_Q, len_kv, DIM);
    return problem;
}

static attn_status forward(attn_context *context, int64_t len_kv, float *out) {
    attn_problem problem = problem_of(len_kv);
    attn_args args = ATTN_ARGS_INIT;
    args.q = q, args.k = k, args.v = v, args.out = out;
    return attn_forward(context, &problem, &args);
}

/* ---- fork while another thread is in a call, and grows the context's workspace ---- */
#ifndef THREAD_SANITIZED
static atomic_bool stop;
static atomic_long calls;

static void *call_often(void *context) {
    float out[HEADS * LEN_Q * DIM];
    for (int64_t n = 0; !atomic_load(&stop); n++, atomic_fetch_add(&calls, 1))
        EXPECT(forward(context, 1 + n * 37 % LEN_KV, out) == ATTN_OK, "a call beside a fork");
    return NULL;
}

static bool child_succeeds(pid_t child) {
    int status;
    for (int waited = 0; waited < 2000; waited++) {
        if (waitpid(child, &status, WNOHANG) == child) return WIFEXITED(status) && WEXITSTATUS(status) == 0;
        nanosleep(&(struct timespec){ 0, 5000000 }, NULL);
    }
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return false;
}

static void check_fork(attn_device device) {
    attn_context *context = context_of(device, 2);
    float before[HEADS * LEN_Q * DIM], now[HEADS * LEN_Q * DIM];
    EXPECT(forward(context, LEN_KV, before) == ATTN_OK, "before the fork");
    pthread_t thread;
    atomic_store(&stop, false);
    atomic_store(&calls, 0);
    EXPECT(pthread_create(&thread, NULL, call_often, context) == 0, "a thread for the check itself");
    for (int n = 0; n < 40; n++) {
        pid_t child = fork();
        if (child == 0) {
            bool good = forward(context, LEN_KV, now) == ATTN_OK && memcmp(before, now, sizeof now) == 0;
            attn_context *another = NULL;
            good = good && attn_open(&another, NULL) == ATTN_OK && forward(another, LEN_KV, now) == ATTN_OK;
            attn_close(another);
            attn_close(context);
            _exit(good ? 0 : 1);
        }
        EXPECT(child > 0 && child_succeeds(child), "%s: the child of a fork beside a call in another thread", name_of(device));
    }
    atomic_store(&stop, true);
    pthread_join(thread, NULL);
    EXPECT(atomic_load(&calls) > 0, "the other thread was never there");
    EXPECT(forward(context, LEN_KV, now) == ATTN_OK && memcmp(before, now, sizeof now) == 0, "%s: the parent after forks", name_of(device));
    attn_close(context);
}
#else
static void check_fork(attn_device device) {
    printf("skipped: fork on %s (ThreadSanitizer has no threads in the child)\n", name_of(device));
}
#endif

/* ---- threads come and go with their context ---- */
static int threads_alive(void) {
    int count = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL) return -1;
    for (struct dirent *entry; (entry = readdir(tasks)) != NULL;) count += entry->d_name[0] != '.';
    closedir(tasks);
    return count;
}

static void check_given_back(attn_device device) {
    float out[HEADS * LEN_Q * DIM];
    attn_close(context_of(device, 2));
    int before = threads_alive(), after = -1;
    if (before < 0) {
        printf("skipped: threads of %s given back (no /proc here)\n", name_of(device));
        return;
    }
    for (int n = 0; n < 300; n++) {
        attn_context *context = context_of(device, 2);
        EXPECT(forward(context, 64, out) == ATTN_OK, "a call");
        attn_close(context);
    }
    for (int n = 0; n < 2000 && (n == 0 || after > before); n++) { /* a joined thread is listed a moment longer */
        after = threads_alive();
        nanosleep(&(struct timespec){ 0, 1000000 }, NULL);
    }
    /* Fewer: a thread of check_fork was still listed before. */
    EXPECT(after <= before, "%s: %d threads before 300 contexts, %d after", name_of(device), before, after);
}

/* ---- errno and the floating-point environment ---- */
static bool as_left(const char *what) {
    int error = errno, rounding = fegetround(), raised = fetestexcept(FE_ALL_EXCEPT);
    errno = EXDEV;
    fesetround(FE_TONEAREST);
    EXPECT(error == EXDEV, "errno after %s: %d", what, error);
    EXPECT(rounding == FE_DOWNWARD && raised == 0, "floating-point environment after %s: rounding %#x, raised %#x", what, rounding, raised);
    fesetround(FE_DOWNWARD);
    feclearexcept(FE_ALL_EXCEPT);
    return true;
}

static void check_quiet(attn_device device) {
    float out[HEADS * LEN_Q * DIM], lse[HEADS * LEN_Q] = { 0 };
    attn_problem problem = problem_of(LEN_KV);
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    attn_description description = ATTN_DESCRIPTION_INIT;
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *context = NULL;
    attn_state state = { v, lse };
    attn_args args = ATTN_ARGS_INIT;
    size_t bytes;
    args.out = out;
    options.device = device;
    options.threads = 2;
    errno = EXDEV;
    fesetround(FE_DOWNWARD);
    feclearexcept(FE_ALL_EXCEPT);
    bool good = attn_open(&context, &options) == ATTN_OK && as_left("attn_open");
    good = good && attn_workspace(context, &problem, &bytes) == ATTN_OK && as_left("attn_workspace");
    good = good && attn_explain(context, &problem, &explanation) == ATTN_OK && as_left("attn_explain");
    good = good && attn_describe(context, &description) == ATTN_OK && as_left("attn_describe");
    good = good && attn_reserve(context, &problem) == ATTN_OK && as_left("attn_reserve");
    good = good && forward(context, LEN_KV, out) == ATTN_OK && as_left("attn_forward");
    good = good && attn_merge(context, &problem, &state, 1, &args) == ATTN_OK && as_left("attn_merge");
    attn_close(context);
    as_left("attn_close");
    fesetround(FE_TONEAREST);
    EXPECT(good, "%s: a call failed", name_of(device));
}

/* ---- what a context says of itself ---- */
static void check_said(attn_device device) {
    attn_context *context = context_of(device, 2);
    attn_problem problem = problem_of(LEN_KV);
    attn_explanation e = ATTN_EXPLANATION_INIT;
    attn_description d = ATTN_DESCRIPTION_INIT;
    size_t bytes = 0;
    problem.right = 0;
    EXPECT(attn_describe(context, &d) == ATTN_OK && attn_explain(context, &problem, &e) == ATTN_OK, "describe and explain");
    EXPECT(attn_workspace(context, &problem, &bytes) == ATTN_OK && bytes == e.workspace, "%zu and %zu bytes", bytes, e.workspace);
    EXPECT(strcmp(d.device, name_of(device)) == 0 && strcmp(e.device, d.device) == 0 && strcmp(e.isa, d.isa) == 0, "%s %s", d.device,
           d.isa);
    EXPECT(d.threads >= 1 && d.threads <= 2 && e.threads >= 1 && e.threads <= d.threads, "%d and %d threads", d.threads, e.threads);
    EXPECT(strstr(d.isas, d.isa) != NULL && strcmp(d.pool, d.threads > 1 ? CHECK_WORKERS : "none") == 0, "%s of %s; %s", d.isa, d.isas,
           d.pool);
    EXPECT(e.operations == 4.0 * DIM * HEADS * (1 + 2 + 3), "%g operations", e.operations);
    EXPECT(e.bytes == 4.0 * HEADS * DIM * (2 * LEN_Q + 2 * LEN_KV), "%g bytes", e.bytes);
    EXPECT(e.passes >= 1 && e.passes <= 2 && e.jobs >= 1 && e.rows >= 1 && e.chunk >= 1 && e.chunks >= 1, "counts");
    EXPECT(e.kernel[0] != 0 && e.reason[0] != 0 && memchr(e.reason, 0, sizeof e.reason) != NULL, "kernel and reason");
    if (device == ATTN_REFERENCE) {
        double rate = -1.0;
        EXPECT(attn_measure(context, ATTN_DRAM_READ, &rate) == ATTN_ERROR_CEILING && rate == -1.0, "a ceiling of the reference: %g", rate);
        EXPECT(e.passes == 1 && e.chunk == LEN_KV && strcmp(e.kernel, "reference") == 0, "%d %s", e.passes, e.kernel);
    }
    attn_close(context);
}

int main(int argc, char **argv) {
    setvbuf(stdout, NULL, _IOLBF, 0); /* nothing waits in a buffer that fork would copy */
    expect_begin(argc, argv);
    for (size_t n = 0; n < sizeof q / sizeof *q; n++) q[n] = (float)expect_between(-99, 99) / 64.0f;
    for (size_t n = 0; n < sizeof k / sizeof *k; n++) k[n] = (float)expect_between(-99, 99) / 64.0f;
    for (size_t n = 0; n < sizeof v / sizeof *v; n++) v[n] = (float)expect_between(-99, 99) / 64.0f;
    for (int device = ATTN_CPU; device <= ATTN_REFERENCE; device++) {
        check_fork((attn_device)device);
        check_given_back((attn_device)device);
        check_quiet((attn_device)device);
        check_said((attn_device)device);
    }
    return expect_end();
}
