/* info.c: attn info: what this build and this machine have. */
#include "bench.h"
#include "options.h"
#include "report.h"
#include <stdio.h>
#include <string.h>

typedef struct info_options {
    attn_options device;
    bool measure, json;
} info_options;

enum { KEY_MEASURE = 300, KEY_JSON };

static const struct argp_option options[] = {
    { "measure", KEY_MEASURE, NULL, 0, "Measure the machine's ceilings (some seconds)", 1 },
    { "json", KEY_JSON, NULL, 0, "Report as one JSON object", 1 },
    { 0 },
};

static error_t parse(int key, char *arg, struct argp_state *state) {
    info_options *o = state->input;
    (void)arg;
    if (key == ARGP_KEY_INIT)
        state->child_inputs[0] = &o->device;
    else if (key == KEY_MEASURE)
        o->measure = true;
    else if (key == KEY_JSON)
        o->json = true;
    else
        return ARGP_ERR_UNKNOWN;
    return 0;
}

static const struct argp_child children[] = { { &attn_cli_device_argp, 0, "The device:", 10 }, { 0 } };
static const struct argp argp = {
    options, parse, NULL, "Tells the version, the devices, instruction sets and threads, and the machine's ceilings.", children, NULL, NULL
};

static json_t *isa_array(const char *isas) {
    json_t *array = json_array();
    while (isas && *isas) {
        size_t length = strcspn(isas, " ");
        if (length) json_array_append_new(array, json_stringn(isas, length));
        isas += length + (isas[length] == ' ');
    }
    return array;
}

/* One device with its default options; NULL where this build has none. */
static json_t *json_device(attn_device device) {
    attn_options defaults = ATTN_OPTIONS_INIT;
    attn_description d = ATTN_DESCRIPTION_INIT;
    attn_context *context;
    json_t *json = NULL;
    defaults.device = device;
    if (attn_open(&context, &defaults) != ATTN_OK) return NULL;
    if (attn_describe(context, &d) == ATTN_OK)
        json = json_pack("{s:s?,s:s?,s:o,s:i,s:s?}", "device", d.device, "isa", d.isa, "isas", isa_array(d.isas), "threads", d.threads,
                         "pool", d.pool);
    attn_close(context);
    return json;
}

static bool measure(attn_context *context, double *values) {
    const ceiling_kind *kinds;
    bool any = false;
    for (int i = 0, count = attn_cli_ceilings(&kinds); i < count; i++) {
        if (!attn_cli_ceiling(context, &kinds[i], &values[i])) return false;
        any |= values[i] > 0;
    }
    return any || attn_cli_ok(ATTN_ERROR_CEILING);
}

static json_t *json_ceilings(const double *values) { /* bytes and operations a second */
    const ceiling_kind *kinds;
    json_t *json = json_object();
    for (int i = 0, count = attn_cli_ceilings(&kinds); i < count; i++)
        if (values[i] > 0) json_object_set_new(json, kinds[i].name, json_real(values[i]));
    return json;
}

static void print_ceilings(const double *values) {
    const ceiling_kind *kinds;
    for (int i = 0, count = attn_cli_ceilings(&kinds); i < count; i++)
        if (values[i] > 0) printf("%-9s %.1f %s\n", kinds[i].name, values[i] * 1e-9, kinds[i].unit);
}

static bool report_json(const info_options *o, const attn_description *d, const double *values) {
    json_t *devices = json_array();
    for (attn_device each = ATTN_CPU; each <= ATTN_CUDA; each++) {
        json_t *one = json_device(each);
        if (one) json_array_append_new(devices, one);
    }
    json_t *json = json_pack("{s:s,s:s,s:s?,s:s?,s:s,s:o,s:i,s:s?,s:o}", "command", "info", "version", attn_version(), "device", d->device,
                             "isa", d->isa, "precision", attn_cli_precision(o->device.precision), "isas", isa_array(d->isas), "threads",
                             d->threads, "pool", d->pool, "devices", devices);
    if (json && o->measure) json_object_set_new(json, "ceilings", json_ceilings(values));
    return attn_cli_json_print(json);
}

static void report_text(const info_options *o, const attn_description *d, const double *values) {
    printf("version   %s\ndevices  ", attn_version());
    for (attn_device each = ATTN_CPU; each <= ATTN_CUDA; each++) {
        json_t *one = json_device(each);
        if (one) printf(" %s", attn_cli_device(each));
        json_decref(one);
    }
    printf("\ndevice    %s\nisas      %s\nisa       %s\nprecision %s\nthreads   %d\npool      %s\n", d->device, d->isas ? d->isas : "none",
           d->isa ? d->isa : "none", attn_cli_precision(o->device.precision), d->threads, d->pool ? d->pool : "none");
    if (o->measure) print_ceilings(values);
}

int attn_cli_info(int argc, char **argv) {
    info_options o = { .device = ATTN_OPTIONS_INIT };
    attn_description d = ATTN_DESCRIPTION_INIT;
    double values[CEILINGS_MOST];
    if (argp_parse(&argp, argc, argv, 0, NULL, &o) != 0) return CLI_BAD;
    attn_context *context = attn_cli_open(&o.device);
    bool good = context && attn_cli_ok(attn_describe(context, &d)) && (!o.measure || measure(context, values));
    if (good && o.json)
        good = report_json(&o, &d, values);
    else if (good)
        report_text(&o, &d, values);
    attn_close(context);
    return good ? CLI_GOOD : CLI_BAD;
}
