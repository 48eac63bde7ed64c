/* harness.c: reporting, random numbers, guarded memory and element types for the check programs. */
#include "harness.h"
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

uint64_t check_seed;
char check_note[1024];
static const char *program_name = "check";
static int failures, forced_count;

void check_fail(const char *file, int line, const char *condition, const char *format, ...) {
    va_list list;
    va_start(list, format);
    fprintf(stderr, "%s:%d: failed: %s: ", file, line, condition);
    vfprintf(stderr, format, list);
    va_end(list);
    fprintf(stderr, "\n    seed %llu%s%s\n", (unsigned long long)check_seed, check_note[0] ? ", " : "", check_note);
    if (++failures >= 20) {
        fprintf(stderr, "%s: giving up after %d failures\n", program_name, failures);
        exit(CHECK_EXIT_FAILED);
    }
}

int check_failures(void) { return failures; }

void check_begin(const char *program, int argc, char **argv, uint64_t seed) {
    program_name = program;
    char *end[2] = { "", "" };
    check_seed = argc > 1 ? strtoull(argv[1], &end[0], 10) : seed;
    forced_count = argc > 2 ? (int)strtol(argv[2], &end[1], 10) : 0;
    if (*end[0] || *end[1] || argc > 3) {
        fprintf(stderr, "usage: %s [SEED [COUNT]]\n", program);
        exit(CHECK_EXIT_FAILED);
    }
    setvbuf(stdout, NULL, _IOLBF, 0);
    printf("%s: seed %llu\n", program, (unsigned long long)check_seed);
}

int check_count(int count) {
    const char *scale = getenv("ATTN_CHECK_SCALE");
    if (forced_count > 0) return forced_count;
    double scaled = count * (scale ? atof(scale) : 1.0);
    return scaled < 1 ? 1 : scaled > 1e9 ? 1000000000 : (int)scaled;
}

int check_end(void) {
    printf("%s: %s\n", program_name, failures ? "FAILED" : "ok");
    return failures ? CHECK_EXIT_FAILED : CHECK_EXIT_OK;
}

int check_skip(const char *program, const char *reason) {
    printf("%s: skip: %s\n", program, reason);
    return CHECK_EXIT_SKIPPED;
}

/* ---- random numbers ---- */
check_random check_random_from(uint64_t seed) {
    check_random random;
    for (int n = 0; n < 4; n++) { /* splitmix64 spreads a small seed over the whole state */
        uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        random.state[n] = z ^ (z >> 31);
    }
    return random;
}

static uint64_t rotate(uint64_t x, int by) { return (x << by) | (x >> (64 - by)); }

uint64_t check_next(check_random *random) {
    uint64_t *s = random->state, result = rotate(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate(s[3], 45);
    return result;
}

int64_t check_below(check_random *random, int64_t count) { return count < 2 ? 0 : (int64_t)(check_next(random) % (uint64_t)count); }
double check_uniform(check_random *random, double low, double high) {
    return low + (high - low) * ((double)(check_next(random) >> 11) * 0x1p-53);
}
bool check_chance(check_random *random, double probability) { return check_uniform(random, 0, 1) < probability; }
double check_normal(check_random *random) {
    double radius = sqrt(-2 * log(check_uniform(random, 0x1p-53, 1)));
    return radius * cos(6.283185307179586 * check_uniform(random, 0, 1));
}

/* ---- guarded memory ---- */
check_buffer check_buffer_make(size_t size, check_side side) {
    check_buffer buffer = { NULL, size, NULL, 0 };
    size_t page = check_page(), inner = size ? (size + page - 1) / page * page : page;
    buffer.map_size = inner + 2 * page;
    buffer.map = check_pages_take(buffer.map_size);
    if (!buffer.map || !check_pages_allow(buffer.map + page, inner, CHECK_WRITE)) {
        fprintf(stderr, "%s: no memory for a buffer of %zu bytes\n", program_name, size);
        exit(CHECK_EXIT_FAILED);
    }
    buffer.data = buffer.map + page + (side == CHECK_AT_END ? inner - size : 0);
    memset(buffer.map + page, CHECK_FILL, inner);
    return buffer;
}

void check_buffer_free(check_buffer *buffer) {
    if (buffer->map) check_pages_give(buffer->map, buffer->map_size);
    memset(buffer, 0, sizeof *buffer);
}

static void set_access(const check_buffer *buffer, check_access access) {
    if (!buffer->map) return;
    if (!check_pages_allow(buffer->map + check_page(), buffer->map_size - 2 * check_page(), access)) {
        fprintf(stderr, "%s: the protection of a buffer does not change\n", program_name);
        exit(CHECK_EXIT_FAILED);
    }
}
void check_buffer_readonly(const check_buffer *buffer) { set_access(buffer, CHECK_READ); }
void check_buffer_writable(const check_buffer *buffer) { set_access(buffer, CHECK_WRITE); }

/* ---- element types ---- */
typedef struct format {
    int digits, least;
    double highest;
} format; /* digits of the significand; exponent of the smallest subnormal */
static format format_of(attn_type type) {
    if (type == ATTN_F16) return (format){ 11, -24, 65504.0 };
    if (type == ATTN_BF16) return (format){ 8, -133, 0x1.fep127 };
    return (format){ 24, -149, 0x1.fffffep127 };
}

size_t check_size(attn_type type) { return type == ATTN_F32 ? 4 : type == ATTN_F16 || type == ATTN_BF16 ? 2 : type == ATTN_BOOL ? 1 : 0; }

const char *check_type_name(attn_type type) {
    static const char *const names[] = { "none", "f32", "f16", "bf16", "bool" };
    return type >= ATTN_NONE && type <= ATTN_BOOL ? names[type] : "?";
}

double check_lowest(attn_type type) { return -format_of(type).highest; }

double check_ulp(attn_type type, double value) {
    format f = format_of(type);
    int exponent = value == 0 || !isfinite(value) ? f.least : ilogb(value) - (f.digits - 1);
    return ldexp(1, exponent < f.least ? f.least : exponent);
}

double check_round(attn_type type, double value) {
    if (value == 0 || !isfinite(value)) return value;
    if (type == ATTN_F32) return (double)(float)value;
    double unit = check_ulp(type, value), rounded = rint(value / unit) * unit; /* unit is a power of two: both steps but rint are exact */
    return fabs(rounded) > format_of(type).highest ? copysign(INFINITY, value) : rounded;
}

static float float_from(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

double check_load(attn_type type, const void *element) {
    uint16_t half;
    float value;
    if (type == ATTN_BOOL) return *(const unsigned char *)element != 0;
    if (type == ATTN_F32) {
        memcpy(&value, element, sizeof value);
        return (double)value;
    }
    memcpy(&half, element, sizeof half);
    if (type == ATTN_BF16) return (double)float_from((uint32_t)half << 16);
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, rest = half & 0x7fff;
    if (rest >= 0x7c00) return (double)float_from(sign | 0x7f800000 | (rest & 0x3ff) << 13);
    return (double)float_from(sign | rest << 13) * 0x1p112; /* the same bits with the wider exponent's bias made good */
}

static uint16_t half_bits(double rounded) {
    uint16_t sign = signbit(rounded) ? 0x8000 : 0;
    double size = fabs(rounded);
    if (isnan(rounded)) return 0x7e00;
    if (isinf(rounded)) return (uint16_t)(sign | 0x7c00);
    if (size < 0x1p-14) return (uint16_t)(sign | (uint16_t)(size * 0x1p24));
    int exponent = ilogb(size);
    return (uint16_t)(sign | (uint16_t)((exponent + 14) * 1024 + (int)ldexp(size, 10 - exponent)));
}

void check_store(attn_type type, void *element, double value) {
    double rounded = type == ATTN_BOOL ? value : check_round(type, value);
    float single = (float)rounded;
    uint32_t bits;
    uint16_t half;
    memcpy(&bits, &single, sizeof bits);
    switch (type) {
    case ATTN_F32:
        memcpy(element, &bits, 4);
        break;
    case ATTN_BF16:
        half = (uint16_t)(bits >> 16);
        memcpy(element, &half, 2);
        break;
    case ATTN_F16:
        half = half_bits(rounded);
        memcpy(element, &half, 2);
        break;
    default:
        *(unsigned char *)element = value != 0;
        break;
    }
}

/* ---- tensors ---- */
void check_tensor_place(check_tensor *tensor, check_side side) {
    int64_t low = 0, high = 1;
    bool empty = false;
    for (int axis = 0; axis < 4; axis++) {
        int64_t reach = (tensor->size[axis] - 1) * tensor->stride[axis];
        if (tensor->size[axis] == 0)
            empty = true;
        else if (reach < 0)
            low += reach;
        else
            high += reach;
    }
    size_t element = check_size(tensor->type);
    tensor->buffer = check_buffer_make(empty ? 0 : (size_t)(high - low) * element, side);
    tensor->base = tensor->buffer.data + (empty ? 0 : (size_t)-low * element);
}

unsigned char *check_at(const check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e) {
    const int64_t *stride = tensor->stride;
    return tensor->base + (b * stride[0] + h * stride[1] + i * stride[2] + e * stride[3]) * (int64_t)check_size(tensor->type);
}
double check_get(const check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e) {
    return check_load(tensor->type, check_at(tensor, b, h, i, e));
}
void check_set(check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e, double value) {
    check_store(tensor->type, check_at(tensor, b, h, i, e), value);
}

/* ---- contexts ---- */
int check_isas(char names[CHECK_ISAS][16]) {
    attn_context *context = NULL;
    attn_description description = ATTN_DESCRIPTION_INIT;
    int count = 0;
    CHECK_OK(attn_open(&context, NULL), "open");
    if (!context) exit(check_end());
    CHECK_OK(attn_describe(context, &description), "describe");
    for (const char *at = description.isas; at && *at && count < CHECK_ISAS;) {
        size_t length = strcspn(at, " ");
        CHECK(length > 0 && length < 16, "isas '%s' is a list of short names with single spaces", description.isas);
        snprintf(names[count++], 16, "%.*s", (int)length, at);
        at += length + (at[length] == ' ');
    }
    CHECK(count > 0 && !strcmp(names[0], "scalar"), "isas '%s' begins with scalar", description.isas);
    attn_close(context);
    return count;
}

attn_precision check_precision = ATTN_EXACT;

static attn_context *open_with(const attn_options *options) {
    attn_context *context = NULL;
    attn_status status = attn_open(&context, options);
    CHECK(status == ATTN_OK && context, "open (isa %s): %s", options->isa ? options->isa : "default", attn_status_text(status));
    if (!context) exit(check_end());
    return context;
}

attn_context *check_open(const char *isa, int threads, int passes, int64_t chunk) {
    attn_options options = ATTN_OPTIONS_INIT;
    options.isa = isa;
    options.threads = threads;
    options.passes = passes;
    options.chunk = chunk;
    options.precision = check_precision;
    return open_with(&options);
}

static void run_serially(void *host, attn_job job, void *state, size_t count) {
    (void)host;
    while (count-- > 0) job(state, count);
}

attn_context *check_open_serial(const char *isa, int threads, int passes, int64_t chunk) {
    attn_executor executor = { run_serially, NULL, threads };
    attn_options options = ATTN_OPTIONS_INIT;
    options.isa = isa;
    options.passes = passes;
    options.chunk = chunk;
    options.executor = &executor;
    options.precision = check_precision;
    return open_with(&options);
}

attn_context *check_open_reference(void) {
    attn_options options = ATTN_OPTIONS_INIT;
    options.device = ATTN_REFERENCE;
    options.threads = 1;
    return open_with(&options);
}

attn_explanation check_explain(attn_context *context, const attn_problem *problem) {
    attn_explanation explanation = ATTN_EXPLANATION_INIT;
    CHECK_OK(attn_explain(context, problem, &explanation), "explain");
    CHECK(explanation.weight_error >= 0 && explanation.weight_error <= 0x1p-8, "weight_error %g", explanation.weight_error);
    return explanation;
}

bool check_rounds(const char *isa) {
    attn_problem problem;
    attn_options options = ATTN_OPTIONS_INIT;
    options.isa = isa;
    options.threads = 1;
    options.precision = ATTN_FAST;
    attn_context *context = open_with(&options);
    attn_problem_init(&problem, ATTN_BHLD, ATTN_BF16, 1, 1, 1, 1000, 1000, 64);
    bool rounds = check_explain(context, &problem).weight_error > 0;
    attn_close(context);
    return rounds;
}
