/* check_plugin.c: devices that are libraries of their own: which are taken for one, what is said of others, that a plugin's calls, memory
 * and failures pass through, and that no pointer of its memory is looked behind. Also what every device has: alloc, copy, wait, index. */
#include "attn/attn.h"
#include "expect.h"
#include "plugins/stand_in.h"
#include <dlfcn.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LEN = 5, HEADS = 2, DIM = 4 };

static attn_status open_cuda(attn_context **context, int index, const char *isa) {
    attn_options options = ATTN_OPTIONS_INIT;
    options.device = ATTN_CUDA;
    options.index = index;
    options.isa = isa;
    return attn_open(context, &options);
}

/* In a child, since a plugin that was found stays. */
static void in_child(void (*check)(const char *folder), const char *folder) {
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        setenv("ATTN_PLUGINS", folder, 1);
        expect_failures = 0;
        check(folder);
        fflush(NULL);
        _exit(expect_failures == 0 ? 0 : 1);
    }
    int status = 1;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0, "plugins in %s", folder);
}

static void refused(const char *folder) {
    attn_context *context = (attn_context *)&folder;
    EXPECT(strcmp(attn_failure(), "") == 0, "a failure before any: %s", attn_failure());
    EXPECT(open_cuda(&context, 0, NULL) == ATTN_ERROR_PLUGIN && context == NULL, "%s", folder);
    EXPECT(strstr(attn_failure(), "libattn_cuda.so") != NULL, "%s: %s", folder, attn_failure());
    EXPECT(open_cuda(&context, 0, NULL) == ATTN_ERROR_PLUGIN, "%s, again", folder);
    attn_options options = ATTN_OPTIONS_INIT;
    EXPECT(attn_open(&context, &options) == ATTN_OK, "the CPU after %s", folder);
    attn_close(context);
}

static stand_in_counts *stand_in_of(const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/libattn_cuda.so", folder);
    void *library = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library != NULL ? dlsym(library, "stand_in") : NULL;
    EXPECT(symbol != NULL, "%s", path);
    if (symbol == NULL) exit(1);
    return symbol;
}

static void memory(attn_context *context, stand_in_counts *counts) {
    void *taken = context;
    char text[] = "some bytes", back[sizeof text];
    EXPECT(attn_alloc(context, 0, &taken) == ATTN_OK && taken == NULL && counts->held == 0, "0 bytes");
    EXPECT(attn_alloc(context, sizeof text, &taken) == ATTN_OK && taken != NULL && counts->held == 1, "some bytes");
    EXPECT(attn_copy(context, taken, text, sizeof text) == ATTN_OK && attn_copy(context, back, taken, sizeof text) == ATTN_OK, "copy");
    EXPECT(memcmp(text, back, sizeof text) == 0 && attn_wait(context) == ATTN_OK, "what was copied");
    attn_free(context, taken);
    attn_free(context, NULL);
    EXPECT(counts->held == 0, "%d held", counts->held);
}

/* What has no elements may point anywhere: the device does not get to see it, nor a call that writes nothing. */
static void empty(attn_context *context, const stand_in_counts *counts, attn_problem problem, attn_args args) {
    const attn_state state = { args.out, args.out };
    const int before = counts->forwards;
    problem.len_kv = 0;
    problem.type_mask = ATTN_BOOL;
    args.mask = args.k;
    EXPECT(attn_forward(context, &problem, &args) == ATTN_OK && counts->forwards == before + 1, "no keys");
    EXPECT(counts->args.k == NULL && counts->args.v == NULL && counts->args.mask == NULL && counts->args.q == args.q, "what it is given");
    problem.len_q = 0;
    EXPECT(attn_forward(context, &problem, &args) == ATTN_OK && attn_merge(context, &problem, &state, 1, &args) == ATTN_OK, "no rows");
    problem.len_q = LEN, problem.batch = 0;
    EXPECT(attn_forward(context, &problem, &args) == ATTN_OK && attn_merge(context, &problem, &state, 1, &args) == ATTN_OK, "no batch");
    EXPECT(counts->forwards == before + 1, "%d calls of nothing", counts->forwards - before - 1);
}

/* Pointers of the device's memory: addresses that this process cannot read. */
static void calls(attn_context *context, stand_in_counts *counts) {
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    char *far = (char *)(uintptr_t)0x7000;
    int stream;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, HEADS, HEADS, LEN, LEN, DIM);
    args.q = far, args.k = far + 0x1000, args.v = far + 0x2000, args.out = far + 0x3000;
    args.len_q = (const int32_t *)(const void *)(far + 0x4000), args.len_kv = (const int32_t *)(const void *)(far + 0x5000);
    args.stream = &stream;
    EXPECT(attn_forward(context, &problem, &args) == ATTN_OK && counts->forwards == 1, "forward");
    EXPECT(counts->args.q == args.q && counts->args.len_kv == args.len_kv && counts->args.stream == &stream, "its arguments");
    EXPECT(counts->args.workspace != NULL && counts->args.workspace_size >= LEN && counts->held == 1, "a workspace of the device's");
    empty(context, counts, problem, args);
    attn_state states[2] = { { (float *)(void *)far, (float *)(void *)(far + 0x1000) }, { (float *)(void *)far, (float *)(void *)far } };
    EXPECT(attn_merge(context, &problem, states, 2, &args) == ATTN_OK && counts->states == 2, "merge");
    EXPECT(attn_explain(context, &problem, &explanation) == ATTN_OK && strcmp(explanation.kernel, "stand-in") == 0, "explain");
    EXPECT(strcmp(explanation.device, "cuda") == 0, "the device is %s", explanation.device);
}

static void failing(attn_context *context, stand_in_counts *counts) {
    attn_problem problem;
    attn_args args = ATTN_ARGS_INIT;
    attn_context *other;
    double rate;
    char *far = (char *)(uintptr_t)0x7000;
    attn_problem_init(&problem, ATTN_BHLD, ATTN_F32, 1, HEADS, HEADS, LEN, LEN, DIM);
    args.q = far, args.k = far, args.v = far, args.out = far + 0x3000;
    for (attn_status status = ATTN_ERROR_DRIVER; status <= ATTN_ERROR_HOST_POINTER; status++) {
        counts->fails = status;
        EXPECT(attn_forward(context, &problem, &args) == status, "forward: %d", status);
        EXPECT(strcmp(attn_failure(), "the stand-in was told to fail") == 0, "%s", attn_failure());
        EXPECT(attn_wait(context) == status && attn_copy(context, &rate, &rate, 1) == status, "wait, copy: %d", status);
        EXPECT(attn_measure(context, ATTN_DRAM_READ, &rate) == status && open_cuda(&other, 0, NULL) == status && other == NULL, "%d",
               status);
    }
    counts->fails = ATTN_OK;
    EXPECT(open_cuda(&other, 2, NULL) == ATTN_ERROR_INDEX && open_cuda(&other, -1, NULL) == ATTN_ERROR_INDEX, "index");
    EXPECT(open_cuda(&other, 0, "avx2") == ATTN_ERROR_ISA, "isa");
}

static void taken(const char *folder) {
    attn_context *context;
    EXPECT(open_cuda(&context, 1, NULL) == ATTN_OK, "%s: %s", folder, attn_failure());
    stand_in_counts *counts = stand_in_of(folder);
    EXPECT(counts->index == 1, "index %d", counts->index);
    memory(context, counts);
    calls(context, counts);
    failing(context, counts);
    attn_close(context);
    EXPECT(counts->held == 0 && counts->closed == 1, "%d held, %d closed", counts->held, counts->closed);
}

/* The plugin itself, where it was built: on a machine with a GPU it opens, elsewhere it says in the driver's words why not. */
static void itself(const char *folder) {
    attn_context *context;
    attn_status status = open_cuda(&context, 0, NULL);
    EXPECT(status == ATTN_OK || (status == ATTN_ERROR_DRIVER && strstr(attn_failure(), "CUDA") != NULL), "%s: %s: %s", folder,
           attn_status_text(status), attn_failure());
    if (status == ATTN_OK) EXPECT(open_cuda(&context, 1 << 20, NULL) == ATTN_ERROR_INDEX, "a GPU of a great number");
}

static void every_device(attn_device device) {
    attn_options options = ATTN_OPTIONS_INIT;
    attn_context *context;
    void *memory = NULL;
    char text[] = "some bytes";
    options.device = device;
    options.index = 1;
    EXPECT(attn_open(&context, &options) == ATTN_ERROR_INDEX && context == NULL, "device %d has one unit", device);
    options.index = 0;
    EXPECT(attn_open(&context, &options) == ATTN_OK, "device %d", device);
    EXPECT(attn_alloc(context, sizeof text, &memory) == ATTN_OK && (uintptr_t)memory % 256 == 0, "alloc on device %d", device);
    EXPECT(attn_copy(context, memory, text, sizeof text) == ATTN_OK && memcmp(memory, text, sizeof text) == 0, "copy on device %d", device);
    EXPECT(attn_copy(context, NULL, text, 1) == ATTN_ERROR_NULL_RESULT && attn_copy(context, memory, NULL, 1) == ATTN_ERROR_NULL_RESULT,
           "NULL");
    EXPECT(attn_copy(context, NULL, NULL, 0) == ATTN_OK && attn_wait(context) == ATTN_OK, "nothing on device %d", device);
    EXPECT(attn_alloc(context, 1, NULL) == ATTN_ERROR_NULL_RESULT && attn_alloc(NULL, 1, &memory) == ATTN_ERROR_NULL_CONTEXT, "NULL");
    EXPECT(attn_wait(NULL) == ATTN_ERROR_NULL_CONTEXT && attn_copy(NULL, text, text, 1) == ATTN_ERROR_NULL_CONTEXT, "NULL");
    void *none = text;
    EXPECT(attn_alloc(context, SIZE_MAX, &none) == ATTN_ERROR_OUT_OF_MEMORY && none == NULL, "more than there is, on device %d", device);
    attn_free(context, memory);
    attn_free(NULL, NULL);
    attn_close(context);
}

int main(void) {
    static const char *const others[] = { "nowhere", "no_library", "no_entry", "wrong_abi", "wrong_size", "wrong_name" };
    char folder[4096];
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        snprintf(folder, sizeof folder, "%s/%s", CHECK_PLUGINS, others[i]);
        in_child(refused, folder);
    }
    in_child(taken, CHECK_PLUGINS "/good");
#ifdef CHECK_CUDA
    in_child(itself, CHECK_CUDA);
#else
    (void)itself;
#endif
    every_device(ATTN_CPU);
    every_device(ATTN_REFERENCE);
    return expect_end();
}
