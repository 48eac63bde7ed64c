/* timing.c: times one problem and sets it against the machine's ceilings, measured in the same process before, between and after the runs.
 */
#include "bench.h"
#include "mirror.h"
#include "convert.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RUNS_LEAST = 5, RUNS_MOST = 1 << 20, DECODE_ROWS = 16 /* up to here K and V are taken to come from memory, not from a cache */ };
static const double copies_least = 256e6, copies_most = 1e9, fresh_seconds = 2;

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double attn_cli_median(const double *values, int count) {
    double *sorted = malloc((size_t)count * sizeof *sorted);
    if (!sorted) return values[0];
    memcpy(sorted, values, (size_t)count * sizeof *sorted);
    qsort(sorted, (size_t)count, sizeof *sorted, by_value);
    double middle = count % 2 ? sorted[count / 2] : 0.5 * (sorted[count / 2 - 1] + sorted[count / 2]);
    free(sorted);
    return middle;
}

/* ---- ceilings: one more is a line more ---- */
#define ALL_TYPES (1u << ATTN_F32 | 1u << ATTN_F16 | 1u << ATTN_BF16)
static const ceiling_kind kinds[] = {
    { ATTN_DRAM_READ, "dram_read", "DRAM read", "GB/s", 0 },
    { ATTN_FMA_F32, "fma_f32", "f32 multiply-add", "GFLOP/s", ALL_TYPES },
    { ATTN_DOT_BF16, "dot_bf16", "bf16 dot", "GFLOP/s", 1u << ATTN_BF16 },
};
enum { KINDS = sizeof kinds / sizeof *kinds };
_Static_assert(KINDS <= (int)CEILINGS_MOST, "room for every ceiling");

int attn_cli_ceilings(const ceiling_kind **all) {
    *all = kinds;
    return KINDS;
}

bool attn_cli_ceiling(attn_context *context, const ceiling_kind *kind, double *value) {
    attn_status status = attn_measure(context, kind->ceiling, value);
    if (status == ATTN_OK) return true;
    *value = 0;
    return status == ATTN_ERROR_CEILING || status == ATTN_ERROR_ISA || attn_cli_ok(status);
}

static bool measure(attn_context *context, ceilings *known, int i) {
    double value, *samples = known->sample[i];
    if (known->absent[i]) return true;
    if (!attn_cli_ceiling(context, &kinds[i], &value)) return false;
    known->absent[i] = !(value > 0);
    if (known->absent[i]) return true;
    if (known->count[i] == CEILING_SAMPLES) memmove(samples, samples + 1, (CEILING_SAMPLES - 1) * sizeof *samples), known->count[i]--;
    samples[known->count[i]++] = value;
    known->measured_at[i] = attn_cli_seconds();
    return true;
}

/* Starts a case: forgets all samples but the newest, and measures again what is not fresh. */
static bool begin(attn_context *context, ceilings *known, int i) {
    int count = known->count[i];
    if (count > 0) known->sample[i][0] = known->sample[i][count - 1], known->count[i] = 1;
    if (count > 0 && attn_cli_seconds() - known->measured_at[i] < fresh_seconds) return true;
    known->count[i] = 0;
    return measure(context, known, i);
}

/* Seconds that each ceiling lets the work take, and the one that binds: bytes against operations at the fastest arithmetic there is. */
static void set_floor(const ceilings *known, const workload *w, timing *t) {
    int memory = -1, arithmetic = -1;
    for (int i = 0; i < KINDS; i++) {
        const double *samples = known->sample[i];
        double least = samples[0], most = samples[0];
        t->value[i] = t->spread[i] = 0;
        if (known->count[i] == 0) continue;
        for (int n = 1; n < known->count[i]; n++) {
            if (samples[n] < least) least = samples[n];
            if (samples[n] > most) most = samples[n];
        }
        t->value[i] = attn_cli_median(samples, known->count[i]);
        t->spread[i] = most / least - 1;
        if (kinds[i].types == 0)
            memory = i;
        else if ((kinds[i].types >> w->problem.type_k & 1) && (arithmetic < 0 || t->value[i] > t->value[arithmetic]))
            arithmetic = i;
    }
    double reading = memory < 0 ? 0 : t->bytes / t->value[memory], counting = arithmetic < 0 ? 0 : t->operations / t->value[arithmetic];
    t->ceiling = reading > counting || arithmetic < 0 ? memory : arithmetic;
    t->floor = reading > counting ? reading : counting;
}

/* The ceilings that may bind: several where they lie close together. */
static bool binds(const workload *w, const timing *t, int i) {
    if (t->value[i] <= 0 || (kinds[i].types && !(kinds[i].types >> w->problem.type_k & 1))) return false;
    return (kinds[i].types ? t->operations : t->bytes) / t->value[i] * 1.5 >= t->floor;
}

static bool measure_binding(attn_context *context, ceilings *known, const workload *w, timing *t) {
    set_floor(known, w, t);
    for (int i = 0; i < KINDS; i++)
        if (binds(w, t, i) && !measure(context, known, i)) return false;
    return true;
}

/* ---- work ---- */
static double tensor_bytes(attn_type type, int64_t batch, int64_t heads, int64_t length, int64_t dim) {
    return (double)attn_cli_size(type) * (double)batch * (double)heads * (double)length * (double)dim;
}

static void count_work(const workload *w, timing *t) {
    const attn_problem *p = &w->problem;
    t->bytes = tensor_bytes(p->type_q, p->batch, p->heads_q, p->len_q, p->dim_qk) +
               tensor_bytes(p->type_k, p->batch, p->heads_kv, p->len_kv, p->dim_qk) +
               tensor_bytes(p->type_v, p->batch, p->heads_kv, p->len_kv, p->dim_v) +
               tensor_bytes(p->type_out, p->batch, p->heads_q, p->len_q, p->dim_v);
    t->operations = 2.0 * (double)(p->dim_qk + p->dim_v) * attn_cli_pairs(p, &w->args) * (double)p->heads_q;
}

/* Copies of k and v, so that together they are larger than the last cache; the first is the workload's own. */
typedef struct copies {
    char *memory;
    size_t k_bytes, v_bytes, step; /* of one copy; to the next */
    const void *k, *v;             /* the first */
    int count;
    attn_args host;
    mirror *mirrors; /* [count]: each copy with all else on the device, where that has memory of its own; or NULL */
} copies;

static double last_cache(void) {
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (bytes <= 0) bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
    return bytes > 0 ? (double)bytes : 32e6;
}

static bool make_copies(const workload *w, copies *c) {
    const attn_problem *p = &w->problem;
    c->k = w->args.k;
    c->v = w->args.v;
    c->k_bytes = (size_t)tensor_bytes(p->type_k, p->batch, p->heads_kv, p->len_kv, p->dim_qk);
    c->v_bytes = (size_t)tensor_bytes(p->type_v, p->batch, p->heads_kv, p->len_kv, p->dim_v);
    c->step = (c->k_bytes + 63) / 64 * 64 + (c->v_bytes + 63) / 64 * 64;
    c->count = 1;
    if (p->len_q > DECODE_ROWS || c->step == 0) return true;
    double want = 4 * last_cache(), each = (double)c->step;
    if (want < copies_least) want = copies_least;
    if (want > copies_most) want = copies_most;
    while (each * c->count < want && each * (c->count + 1) <= copies_most) c->count++;
    c->memory = attn_cli_memory(c->step * (size_t)(c->count - 1));
    for (int i = 0; c->memory && i < c->count - 1; i++) {
        memcpy(c->memory + (size_t)i * c->step, c->k, c->k_bytes);
        memcpy(c->memory + (size_t)i * c->step + (c->step - (c->v_bytes + 63) / 64 * 64), c->v, c->v_bytes);
    }
    return c->memory != NULL;
}

static bool make_mirrors(attn_context *context, workload *w, copies *c) {
    if (!attn_cli_remote(context)) return true;
    c->mirrors = calloc((size_t)c->count, sizeof *c->mirrors);
    for (int i = 0; c->mirrors != NULL && i < c->count; i++)
        if (!attn_cli_mirror_make(&c->mirrors[i], context, &w->problem, &w->args)) return false;
    return c->mirrors != NULL;
}

static void free_copies(copies *c) {
    for (int i = 0; c->mirrors != NULL && i < c->count; i++) attn_cli_mirror_free(&c->mirrors[i]);
    free(c->mirrors);
    free(c->memory);
}

static void use_copy(workload *w, const copies *c, int64_t n) {
    int i = (int)(n % c->count);
    if (c->mirrors != NULL) {
        w->args = c->mirrors[i].args;
        return;
    }
    w->args.k = i ? c->memory + (size_t)(i - 1) * c->step : c->k;
    w->args.v = i ? c->memory + (size_t)i * c->step - (c->v_bytes + 63) / 64 * 64 : c->v;
}

enum { DEVICE_CALLS = 16 }; /* a device works while calls are made: of one call its start would be most */

/* Adds runs to `times` until `seconds` have gone by and there are at least `least`. */
static bool time_runs(attn_context *context, workload *w, const copies *c, double seconds, int64_t least, double *times, int64_t *count) {
    double begun = attn_cli_seconds(), now = begun;
    while ((now - begun < seconds || *count < least) && *count < RUNS_MOST) {
        const int calls = c->mirrors != NULL ? DEVICE_CALLS : 1;
        attn_status status = ATTN_OK;
        double from = attn_cli_seconds();
        for (int i = 0; i < calls && status == ATTN_OK; i++) {
            use_copy(w, c, *count * calls + i);
            status = attn_forward(context, &w->problem, &w->args);
        }
        if (status == ATTN_OK) status = attn_wait(context);
        now = attn_cli_seconds();
        if (!attn_cli_ok(status)) return false;
        times[(*count)++] = (now - from) / calls;
    }
    return true;
}

static bool time_all(attn_context *context, workload *w, const copies *c, ceilings *known, double seconds, double *times, timing *t) {
    for (int i = 0; i < KINDS; i++)
        if (!begin(context, known, i)) return false;
    set_floor(known, w, t);
    if (t->floor <= 0 && t->bytes > 0) return attn_cli_ok(ATTN_ERROR_CEILING); /* a device without any */
    if (!time_runs(context, w, c, 0.5 * seconds, (RUNS_LEAST + 1) / 2, times, &t->runs) || !measure_binding(context, known, w, t))
        return false;
    return time_runs(context, w, c, 0.5 * seconds, RUNS_LEAST, times, &t->runs) && measure_binding(context, known, w, t);
}

bool attn_cli_time(attn_context *context, workload *w, ceilings *known, double seconds, timing *t) {
    copies c = { 0 };
    memset(t, 0, sizeof *t);
    count_work(w, t);
    double *times = malloc(RUNS_MOST * sizeof *times);
    c.host = w->args;
    bool good = times && make_copies(w, &c) && make_mirrors(context, w, &c) && attn_cli_ok(attn_reserve(context, &w->problem));
    if (good) good = time_all(context, w, &c, known, seconds, times, t);
    if (good) {
        t->copies = c.count;
        t->median = attn_cli_median(times, (int)t->runs);
        set_floor(known, w, t);
        t->share = t->floor / t->median;
    }
    w->args = c.host;
    free_copies(&c);
    free(times);
    return good;
}
