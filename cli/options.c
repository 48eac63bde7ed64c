/* options.c: the options that several sub-commands share, and the parsing of numbers and words in them. */
#include "options.h"
#include "convert.h"
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool attn_cli_int_parse(const char *text, int64_t *value) {
    char *end;
    if (*text != '-' && (*text < '0' || *text > '9')) return false;
    errno = 0;
    long long number = strtoll(text, &end, 10);
    *value = number;
    return end != text && *end == 0 && errno == 0;
}

bool attn_cli_real_parse(const char *text, double *value) {
    char *end;
    if (*text == 0 || *text == ' ' || (*text >= '\t' && *text <= '\r')) return false;
    *value = strtod(text, &end);
    return end != text && *end == 0;
}

const char *attn_cli_device(attn_device device) {
    static const char *const names[] = { [ATTN_CPU] = "cpu", [ATTN_REFERENCE] = "reference", [ATTN_CUDA] = "cuda" };
    return names[device];
}

/* NAME or NAME:INDEX */
static bool device_parse(const char *text, attn_device *device, int *index) {
    const size_t name = strcspn(text, ":");
    int64_t number = 0;
    if (text[name] != 0 && (!attn_cli_int_parse(text + name + 1, &number) || number < 0 || number > INT_MAX)) return false;
    *index = (int)number;
    for (*device = ATTN_CPU; *device <= ATTN_CUDA; ++*device)
        if (strlen(attn_cli_device(*device)) == name && strncmp(text, attn_cli_device(*device), name) == 0) return true;
    return false;
}

const char *attn_cli_precision(attn_precision precision) { return precision == ATTN_FAST ? "fast" : "exact"; }
const char *attn_cli_align(attn_align align) { return align == ATTN_BOTTOM_RIGHT ? "bottom-right" : "top-left"; }

static bool align_parse(const char *text, attn_align *align) {
    *align = strcmp(text, "bottom-right") == 0 ? ATTN_BOTTOM_RIGHT : ATTN_TOP_LEFT;
    return strcmp(text, attn_cli_align(*align)) == 0;
}

/* ---- the device ---- */
enum { KEY_DEVICE = 1000, KEY_ISA, KEY_PRECISION, KEY_THREADS, KEY_PASSES, KEY_CHUNK };

static const struct argp_option device_options[] = {
    { "device", KEY_DEVICE, "DEVICE", 0, "cpu (the default), reference, or cuda; cuda:1 for the second of several", 10 },
    { "isa", KEY_ISA, "ISA", 0,
      "Instruction set: scalar, avx2, avx512, avx512bf16, amx, neon, neonbf16, general, sm90; without it the best there is", 10 },
    { "precision", KEY_PRECISION, "WORD", 0, "exact (the default), or fast: probabilities may be rounded to 16 bits", 10 },
    { "threads", KEY_THREADS, "N", 0, "Threads; 0, the default: one for each CPU", 10 },
    { "passes", KEY_PASSES, "P", 0, "Force 1 or 2 passes; 0, the default: the plan decides (the bits are the same)", 10 },
    { "chunk", KEY_CHUNK, "N", 0, "Keys to a chunk; 0: the library's default", 10 },
    { 0 },
};

static error_t parse_device(int key, char *arg, struct argp_state *state) {
    attn_options *options = state->input;
    int64_t number = 0;
    switch (key) {
    case KEY_DEVICE:
        if (!device_parse(arg, &options->device, &options->index))
            argp_error(state, "--device %s: must be cpu, reference or cuda, or one with its number, as cuda:1", arg);
        return 0;
    case KEY_ISA:
        options->isa = arg;
        return 0;
    case KEY_PRECISION:
        options->precision = strcmp(arg, "fast") == 0 ? ATTN_FAST : ATTN_EXACT;
        if (strcmp(arg, attn_cli_precision(options->precision)) != 0) argp_error(state, "--precision %s: must be exact or fast", arg);
        return 0;
    case KEY_THREADS:
        if (!attn_cli_int_parse(arg, &number) || number < 0 || number > 1024)
            argp_error(state, "--threads %s: must be between 0 (all) and 1024", arg);
        options->threads = (int)number;
        return 0;
    case KEY_PASSES:
        if (!attn_cli_int_parse(arg, &number) || number < 0 || number > 2) argp_error(state, "--passes %s: must be 0, 1 or 2", arg);
        options->passes = (int)number;
        return 0;
    case KEY_CHUNK:
        if (!attn_cli_int_parse(arg, &number) || number < 0) argp_error(state, "--chunk %s: must be 0 or a positive number of keys", arg);
        options->chunk = number;
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

const struct argp attn_cli_device_argp = { device_options, parse_device, NULL, NULL, NULL, NULL, NULL };

attn_context *attn_cli_open(const attn_options *options) {
    attn_context *context;
    attn_status status = attn_open(&context, options);
    if (status == ATTN_OK) return context;
    if (status == ATTN_ERROR_ISA && options->isa)
        attn_cli_error("--isa %s: %s", options->isa, attn_status_text(status));
    else
        attn_cli_ok(status);
    return NULL;
}

void attn_cli_device_text(const attn_options *options, char *text, size_t size) {
    char number[64], unit[16] = "";
    if (options->index != 0) snprintf(unit, sizeof unit, ":%d", options->index);
    snprintf(text, size, "%s%s%s%s%s%s", options->device != ATTN_CPU ? " --device " : "",
             options->device != ATTN_CPU ? attn_cli_device(options->device) : "", unit, options->isa ? " --isa " : "",
             options->isa ? options->isa : "", options->precision == ATTN_FAST ? " --precision fast" : "");
    const struct {
        const char *name;
        int64_t value;
    } numbers[] = { { "threads", options->threads }, { "passes", options->passes }, { "chunk", options->chunk } };
    for (int i = 0; i < 3; i++) {
        if (numbers[i].value == 0) continue;
        snprintf(number, sizeof number, " --%s %lld", numbers[i].name, (long long)numbers[i].value);
        strncat(text, number, size - strlen(text) - 1);
    }
}

/* ---- the problem ---- */
static const char *set_causal(problem_options *o, const char *text) {
    o->has_causal = o->causal = true;
    if (!text || strcmp(text, "true") == 0) return NULL;
    if (strcmp(text, "false") == 0) return o->causal = false, NULL;
    o->has_align = true;
    return align_parse(text, &o->align) ? NULL : "must be top-left or bottom-right";
}

static bool side_parse(const char *text, size_t length, int64_t *side) {
    char number[32];
    if (length == 0 || length >= sizeof number) return false;
    memcpy(number, text, length);
    number[length] = 0;
    return attn_cli_int_parse(number, side) && *side >= ATTN_UNBOUNDED;
}

static const char *set_window(problem_options *o, const char *text) {
    const char *comma = strchr(text, ',');
    o->has_window = true;
    if (!comma || !side_parse(text, (size_t)(comma - text), &o->left) || !side_parse(comma + 1, strlen(comma + 1), &o->right))
        return "must be LEFT,RIGHT: numbers of keys, or -1 for no bound";
    return NULL;
}

static const char *set_real(float *value, const char *text) {
    double number;
    if (!attn_cli_real_parse(text, &number)) return "must be a number";
    *value = (float)number;
    return NULL;
}

const char *attn_cli_problem_option(problem_options *o, const char *key, const char *text) {
    if (strcmp(key, "causal") == 0) return set_causal(o, text);
    if (strcmp(key, "window") == 0) return set_window(o, text);
    if (strcmp(key, "scale") == 0) return o->has_scale = true, set_real(&o->scale, text);
    if (strcmp(key, "softcap") == 0) return o->has_softcap = true, set_real(&o->softcap, text);
    if (strcmp(key, "align") == 0) return o->has_align = true, align_parse(text, &o->align) ? NULL : "must be top-left or bottom-right";
    if (strcmp(key, "offset") == 0) return o->has_offset = true, attn_cli_int_parse(text, &o->offset) ? NULL : "must be a 64-bit number";
    if (strcmp(key, "type-out") == 0)
        return o->has_type_out = true, attn_cli_type_parse(text, &o->type_out) ? NULL : "must be f32, f16 or bf16";
    if (strcmp(key, "layout") != 0) return "no such option";
    o->has_layout = true;
    o->layout = strcmp(text, "blhd") == 0 ? ATTN_BLHD : ATTN_BHLD;
    return strcmp(text, o->layout == ATTN_BLHD ? "blhd" : "bhld") == 0 ? NULL : "must be bhld or blhd";
}

static const struct argp_option problem_argp_options[] = {
    { "causal", 1, "ALIGN", OPTION_ARG_OPTIONAL, "Row i sees no key past the diagonal; ALIGN is top-left (the default) or bottom-right",
      5 },
    { "align", 2, "ALIGN", 0, "Where the diagonal of --causal, --window and slopes ends: top-left (the default) or bottom-right", 5 },
    { "offset", 3, "N", 0, "Moves the diagonal N keys to the right", 5 },
    { "window", 4, "L,R", 0, "Row i sees L keys left and R keys right of the diagonal; -1: no bound", 5 },
    { "scale", 5, "X", 0, "Factor on q.k; without it 1/sqrt(dim_qk)", 5 },
    { "softcap", 6, "X", 0, "Scores become X tanh(score/X); 0: none", 5 },
    { "layout", 7, "LAYOUT", 0, "bhld (the default) or blhd: batch, head, length, dim", 5 },
    { "type-out", 8, "TYPE", 0, "f32, f16 or bf16; without it that of q", 5 },
    { 0 },
};

static error_t parse_problem(int key, char *arg, struct argp_state *state) {
    if (key < 1 || key > 8) return ARGP_ERR_UNKNOWN;
    const char *name = problem_argp_options[key - 1].name;
    const char *rule = attn_cli_problem_option(state->input, name, arg);
    if (rule) argp_error(state, "--%s %s: %s", name, arg, rule);
    return 0;
}

const struct argp attn_cli_problem_argp = { problem_argp_options, parse_problem, NULL, NULL, NULL, NULL, NULL };

void attn_cli_problem_merge(problem_options *o, const problem_options *more) {
    if (!o->has_causal) o->has_causal = more->has_causal, o->causal = more->causal;
    if (!o->has_align) o->has_align = more->has_align, o->align = more->align;
    if (!o->has_offset) o->has_offset = more->has_offset, o->offset = more->offset;
    if (!o->has_window) o->has_window = more->has_window, o->left = more->left, o->right = more->right;
    if (!o->has_scale) o->has_scale = more->has_scale, o->scale = more->scale;
    if (!o->has_softcap) o->has_softcap = more->has_softcap, o->softcap = more->softcap;
    if (!o->has_layout) o->has_layout = more->has_layout, o->layout = more->layout;
    if (!o->has_type_out) o->has_type_out = more->has_type_out, o->type_out = more->type_out;
}

void attn_cli_problem_apply(const problem_options *o, attn_problem *problem) {
    if (o->has_align) problem->align = o->align;
    if (o->has_offset) problem->offset = o->offset;
    if (o->has_window) problem->left = o->left, problem->right = o->right;
    if (o->has_causal) { /* with a window, causal closes its right side */
        if (o->causal)
            problem->right = 0;
        else if (!o->has_window)
            problem->right = ATTN_UNBOUNDED;
    }
    if (o->has_scale) problem->scale = o->scale;
    if (o->has_softcap) problem->softcap = o->softcap;
    if (o->has_type_out) problem->type_out = o->type_out;
}

/* ---- shapes ---- */
static bool take_size(const char **text, char after, int64_t *size) {
    char *end;
    if (**text < '0' || **text > '9') return false;
    errno = 0;
    *size = strtoll(*text, &end, 10);
    if (errno != 0 || (after && *end != after)) return false;
    *text = end + (after ? 1 : 0);
    return true;
}

bool attn_cli_shape_parse(const char *text, shape_option *s) {
    memset(s, 0, sizeof *s);
    bool good = take_size(&text, ',', &s->batch) && take_size(&text, 0, &s->heads_q);
    s->heads_kv = s->heads_q;
    if (good && *text == '/') text++, good = take_size(&text, 0, &s->heads_kv);
    good =
        good && *text++ == ',' && take_size(&text, ',', &s->len_q) && take_size(&text, ',', &s->len_kv) && take_size(&text, 0, &s->dim_qk);
    s->dim_v = s->dim_qk;
    if (good && *text == '/') text++, good = take_size(&text, 0, &s->dim_v);
    if (!good || *text == 0) return good;
    if (strncmp(text, ",causal", 7) != 0) return false;
    s->causal = true;
    text += 7;
    return *text == 0 || (*text == '=' && align_parse(text + 1, &s->align));
}
