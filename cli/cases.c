/* cases.c: the listed problems. */
#include "convert.h"
#include "options.h"
#include "workload.h"
#include <stdio.h>
#include <string.h>

#define SIZES(b, hq, hkv, lq, lk, d) .batch = b, .heads_q = hq, .heads_kv = hkv, .len_q = lq, .len_kv = lk, .dim_qk = d
#define ALL_AXES (AXIS_BATCH | AXIS_HEAD | AXIS_ROW | AXIS_KEY)

static const spec shapes[] = {
    { "origin", SIZES(1, 32, 2, 1, 1024, 128) },
    { "D2", SIZES(1, 32, 8, 1, 8192, 128) },
    { "D3", SIZES(8, 32, 8, 1, 4096, 128) },
    { "D4", SIZES(1, 32, 32, 1, 16384, 128) },
    { "D5", SIZES(1, 32, 8, 1, 32768, 64) },
    { "M1", SIZES(1, 32, 8, 4, 8192, 128) },
    { "P1", SIZES(1, 8, 2, 2048, 2048, 128), .causal = true },
    { "P2", SIZES(1, 16, 16, 1024, 1024, 64) },
    { "P3", SIZES(1, 4, 4, 8192, 8192, 128), .causal = true },
    { "P4", SIZES(1, 8, 8, 512, 512, 80) },
};

/* Keys in chunks of 512, rows in blocks of 64: lengths on either side of both. */
static const spec edges[] = {
    { "no-batch", SIZES(0, 2, 1, 3, 5, 16) },
    { "no-rows", SIZES(2, 2, 1, 0, 5, 16) },
    { "no-keys", SIZES(2, 2, 1, 3, 0, 16) },
    { "no-keys-sinks", SIZES(2, 2, 1, 3, 0, 16), .sinks = true },
    { "one", SIZES(1, 1, 1, 1, 1, 1) },
    { "keys-2", SIZES(1, 4, 2, 1, 2, 64) },
    { "keys-15", SIZES(1, 4, 2, 1, 15, 64) },
    { "keys-16", SIZES(1, 4, 2, 1, 16, 64) },
    { "keys-17", SIZES(1, 4, 2, 1, 17, 64) },
    { "keys-63", SIZES(1, 4, 2, 1, 63, 64) },
    { "keys-64", SIZES(1, 4, 2, 1, 64, 64) },
    { "keys-65", SIZES(1, 4, 2, 1, 65, 64) },
    { "keys-511", SIZES(1, 4, 2, 1, 511, 64) },
    { "keys-512", SIZES(1, 4, 2, 1, 512, 64) },
    { "keys-513", SIZES(1, 4, 2, 1, 513, 64) },
    { "keys-1023", SIZES(1, 4, 2, 1, 1023, 64) },
    { "keys-1024", SIZES(1, 4, 2, 1, 1024, 64) },
    { "keys-1025", SIZES(1, 4, 2, 1, 1025, 64) },
    { "keys-32768", SIZES(1, 1, 1, 1, 32768, 64), .values = 64 },
    { "rows-2", SIZES(1, 2, 1, 2, 70, 64) },
    { "rows-63", SIZES(1, 2, 1, 63, 70, 64) },
    { "rows-64", SIZES(1, 2, 1, 64, 70, 64) },
    { "rows-65", SIZES(1, 2, 1, 65, 70, 64) },
    { "rows-129", SIZES(1, 1, 1, 129, 1025, 32) },
    { "dim-1", SIZES(1, 2, 1, 5, 33, 1) },
    { "dim-3", SIZES(1, 2, 1, 5, 33, 3) },
    { "dim-7", SIZES(1, 2, 1, 5, 33, 7) },
    { "dim-17", SIZES(1, 2, 1, 5, 33, 17) },
    { "dim-33", SIZES(1, 2, 1, 65, 33, 33) },
    { "dim-72", SIZES(1, 2, 1, 65, 130, 72) },
    { "dim-80", SIZES(1, 2, 1, 65, 130, 80) },
    { "dim-96", SIZES(1, 2, 1, 65, 130, 96) },
    { "dim-100", SIZES(1, 2, 1, 65, 130, 100) },
    { "dim-112", SIZES(1, 2, 1, 65, 130, 112) },
    { "dim-127", SIZES(1, 2, 1, 65, 130, 127) },
    { "dim-256", SIZES(1, 2, 1, 9, 130, 256) },
    { "dim-576-512", SIZES(1, 8, 1, 1, 130, 576), .dim_v = 512 },
    { "dim-v-narrow", SIZES(1, 2, 1, 65, 130, 64), .dim_v = 16 },
    { "dim-v-wide", SIZES(1, 2, 1, 65, 130, 16), .dim_v = 80 },
    { "dim-v-1", SIZES(1, 2, 1, 5, 130, 64), .dim_v = 1 },
    { "group-3", SIZES(2, 6, 2, 3, 100, 64) },
    { "group-7", SIZES(1, 14, 2, 3, 100, 64) },
    { "group-16", SIZES(1, 32, 2, 1, 100, 64) },
    { "group-71", SIZES(1, 71, 1, 2, 100, 64) },
    { "causal", SIZES(1, 2, 1, 130, 130, 64), .causal = true },
    { "causal-few-rows", SIZES(1, 2, 1, 5, 600, 64), .causal = true },
    { "causal-bottom-right", SIZES(1, 2, 1, 70, 600, 64), .causal = true, .align = ATTN_BOTTOM_RIGHT },
    { "causal-more-rows", SIZES(1, 2, 1, 130, 70, 64), .causal = true, .align = ATTN_BOTTOM_RIGHT },
    { "offset-before", SIZES(1, 2, 1, 70, 70, 32), .causal = true, .offset = -30 },
    { "offset-after", SIZES(1, 2, 1, 70, 700, 32), .causal = true, .offset = 550 },
    { "offset-lowest", SIZES(1, 2, 1, 3, 7, 32), .causal = true, .offset = INT64_MIN },
    { "offset-highest", SIZES(1, 2, 1, 3, 7, 32), .causal = true, .offset = INT64_MAX, .align = ATTN_BOTTOM_RIGHT },
    { "window-left", SIZES(1, 2, 1, 70, 700, 64), .window = true, .left = 40, .right = 0, .align = ATTN_BOTTOM_RIGHT },
    { "window-right", SIZES(1, 2, 1, 70, 700, 64), .window = true, .left = ATTN_UNBOUNDED, .right = 520 },
    { "window-both", SIZES(1, 2, 1, 140, 140, 64), .window = true, .left = 17, .right = 9 },
    { "window-0-0", SIZES(1, 2, 1, 140, 140, 64), .window = true },
    { "window-past", SIZES(1, 2, 1, 70, 7, 64), .window = true, .left = 3, .right = 3 },
    { "window-decode", SIZES(1, 8, 2, 1, 1500, 64), .causal = true, .window = true, .left = 600, .align = ATTN_BOTTOM_RIGHT },
    { "mask-bool", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BOOL, .axes = ALL_AXES },
    { "mask-bool-keys", SIZES(2, 4, 2, 65, 600, 32), .mask = ATTN_BOOL, .axes = AXIS_BATCH | AXIS_KEY },
    { "mask-bool-rows", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BOOL, .axes = AXIS_ROW },
    { "mask-bool-heads", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BOOL, .axes = AXIS_HEAD },
    { "mask-bool-one", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BOOL, .fill = FILL_KEEP },
    { "mask-bool-true", SIZES(2, 4, 2, 65, 600, 32), .mask = ATTN_BOOL, .axes = AXIS_ROW | AXIS_KEY, .fill = FILL_KEEP },
    { "mask-bool-false", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BOOL, .axes = ALL_AXES, .fill = FILL_HIDE, .sinks = true },
    { "mask-padding", SIZES(2, 4, 2, 65, 1100, 32), .mask = ATTN_BOOL, .axes = AXIS_KEY, .fill = FILL_PADDING, .poison = true },
    { "mask-causal", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BOOL, .axes = ALL_AXES, .causal = true },
    { "mask-f32", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_F32, .axes = ALL_AXES },
    { "mask-f16", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_F16, .axes = AXIS_HEAD | AXIS_ROW | AXIS_KEY },
    { "mask-bf16", SIZES(2, 4, 2, 65, 130, 32), .mask = ATTN_BF16, .axes = AXIS_ROW | AXIS_KEY },
    { "mask-f32-zero", SIZES(1, 4, 2, 65, 600, 32), .mask = ATTN_F32, .axes = AXIS_ROW | AXIS_KEY, .fill = FILL_KEEP },
    { "mask-f32-all", SIZES(1, 4, 2, 65, 130, 32), .mask = ATTN_F32, .axes = ALL_AXES, .fill = FILL_HIDE },
    { "mask-f32-padding", SIZES(2, 4, 2, 5, 1100, 32), .mask = ATTN_F32, .axes = AXIS_BATCH | AXIS_KEY, .fill = FILL_PADDING,
      .poison = true },
    { "mask-lowest", SIZES(1, 4, 2, 65, 130, 32), .mask = ATTN_F32, .axes = AXIS_KEY, .fill = FILL_LOWEST },
    { "mask-lowest-bf16", SIZES(1, 4, 2, 5, 600, 32), .mask = ATTN_BF16, .axes = AXIS_KEY, .fill = FILL_LOWEST },
    { "mask-lowest-alone", SIZES(1, 4, 2, 65, 65, 32), .mask = ATTN_F32, .axes = AXIS_KEY, .fill = FILL_LOWEST, .window = true },
    { "softcap-30", SIZES(1, 4, 2, 65, 600, 64), .softcap = 30, .spread = 8 },
    { "softcap-half", SIZES(1, 4, 2, 65, 130, 64), .softcap = 0.5f, .spread = 8 },
    { "softcap-mask", SIZES(1, 4, 2, 65, 130, 64), .softcap = 5, .mask = ATTN_F32, .axes = AXIS_ROW | AXIS_KEY },
    { "alibi", SIZES(1, 4, 2, 65, 130, 64), .slopes = true },
    { "alibi-causal", SIZES(1, 4, 2, 130, 130, 64), .slopes = true, .causal = true },
    { "alibi-bottom-right", SIZES(2, 4, 2, 7, 700, 64), .slopes = true, .causal = true, .align = ATTN_BOTTOM_RIGHT, .lens_kv = true },
    { "sinks", SIZES(1, 4, 2, 65, 130, 64), .sinks = true },
    { "sinks-high", SIZES(1, 4, 2, 5, 1100, 64), .sinks = true, .sink = 60 },
    { "sinks-low", SIZES(1, 4, 2, 5, 1100, 64), .sinks = true, .sink = -200 },
    { "everything", SIZES(2, 4, 2, 65, 600, 64), .sinks = true, .slopes = true, .softcap = 20, .mask = ATTN_F32, .axes = ALL_AXES,
      .causal = true, .align = ATTN_BOTTOM_RIGHT, .lens_q = true, .lens_kv = true, .strides = STRIDES_PADDED, .poison = true },
    { "lens-kv", SIZES(4, 4, 2, 9, 600, 64), .lens_kv = true, .poison = true },
    { "lens-q", SIZES(4, 4, 2, 70, 130, 64), .lens_q = true, .poison = true },
    { "lens-both", SIZES(5, 4, 2, 70, 600, 64), .lens_q = true, .lens_kv = true, .causal = true, .align = ATTN_BOTTOM_RIGHT,
      .poison = true },
    { "logits-1e4", SIZES(1, 4, 2, 65, 600, 64), .spread = 3e3f },
    { "logits-1e4-causal", SIZES(1, 4, 2, 130, 130, 64), .spread = 3e3f, .causal = true },
    { "scale-0", SIZES(1, 4, 2, 65, 600, 64), .scaled = true },
    { "scale-negative", SIZES(1, 4, 2, 65, 600, 64), .scaled = true, .scale = -0.3f },
    { "values-tiny", SIZES(1, 4, 2, 65, 130, 64), .values = 1e-6f },
    { "values-subnormal", SIZES(1, 4, 2, 5, 130, 64), .type_q = ATTN_F32, .type_k = ATTN_F32, .type_v = ATTN_F32, .type_out = ATTN_F32,
      .values = 1e-39f },
    { "q-f32-kv-f16", SIZES(1, 4, 2, 65, 600, 64), .type_q = ATTN_F32, .type_k = ATTN_F16, .type_v = ATTN_F16, .type_out = ATTN_F32 },
    { "q-f32-kv-bf16", SIZES(1, 4, 2, 1, 600, 64), .type_q = ATTN_F32, .type_k = ATTN_BF16, .type_v = ATTN_BF16, .type_out = ATTN_F32 },
    { "q-bf16-out-f32", SIZES(1, 4, 2, 65, 600, 64), .type_q = ATTN_BF16, .type_k = ATTN_BF16, .type_v = ATTN_BF16, .type_out = ATTN_F32 },
    { "k-bf16-v-f16", SIZES(1, 4, 2, 5, 600, 64), .type_q = ATTN_F16, .type_k = ATTN_BF16, .type_v = ATTN_F16, .type_out = ATTN_BF16 },
    { "out-f16", SIZES(1, 4, 2, 5, 600, 64), .type_q = ATTN_F32, .type_k = ATTN_F32, .type_v = ATTN_F32, .type_out = ATTN_F16 },
    { "blhd", SIZES(2, 4, 2, 65, 600, 64), .layout = ATTN_BLHD, .causal = true },
    { "padded", SIZES(2, 4, 2, 9, 600, 37), .strides = STRIDES_PADDED },
    { "padded-blhd", SIZES(2, 4, 2, 65, 130, 64), .strides = STRIDES_PADDED, .layout = ATTN_BLHD, .lens_q = true },
    { "shared-keys", SIZES(3, 4, 2, 65, 130, 64), .strides = STRIDES_SHARED },
    { "reversed", SIZES(2, 4, 2, 65, 600, 64), .strides = STRIDES_REVERSED },
    { "nan-q", SIZES(2, 4, 2, 65, 130, 64), .plant = PLANT_NAN_Q },
    { "nan-k", SIZES(2, 4, 2, 130, 130, 64), .plant = PLANT_NAN_K, .causal = true },
    { "nan-v", SIZES(2, 4, 2, 130, 130, 64), .plant = PLANT_NAN_V, .causal = true },
    { "inf-v", SIZES(2, 4, 2, 65, 600, 64), .plant = PLANT_INF_V, .mask = ATTN_BOOL, .axes = ALL_AXES },
    { "inf-k", SIZES(2, 4, 2, 130, 130, 64), .plant = PLANT_INF_K, .causal = true },
};

enum { SHAPES = sizeof shapes / sizeof *shapes, EDGES = sizeof edges / sizeof *edges };

int attn_cli_shapes(const spec **specs) {
    *specs = shapes;
    return SHAPES;
}

int attn_cli_edges(const spec **specs) {
    *specs = edges;
    return EDGES;
}

void attn_cli_case_small(const spec *full, spec *small) {
    *small = *full;
    snprintf(small->name, sizeof small->name, "%.56s.small", full->name);
    if (small->batch > 2) small->batch = 2;
    small->heads_q = full->heads_q / full->heads_kv;
    small->heads_kv = 1;
    int64_t most = small->heads_q > 1 ? 512 : 1024;
    if (full->len_q <= most) return;
    small->len_q = small->len_kv = most;
}

bool attn_cli_case(const char *name, spec *found) {
    for (int i = 0; i < SHAPES; i++) {
        attn_cli_case_small(&shapes[i], found);
        if (strcmp(name, found->name) == 0) return true;
        *found = shapes[i];
        if (strcmp(name, found->name) == 0) return true;
    }
    for (int i = 0; i < EDGES; i++) {
        *found = edges[i];
        if (strcmp(name, found->name) == 0) return true;
    }
    return false;
}

void attn_cli_case_type(spec *s, attn_type type, bool force) {
    attn_type *const types[] = { &s->type_q, &s->type_k, &s->type_v, &s->type_out };
    for (int i = 0; i < 4; i++)
        if (force || *types[i] == ATTN_NONE) *types[i] = type;
}

bool attn_cli_shape_spec(const char *text, spec *found) {
    shape_option o;
    *found = (spec){ .layout = ATTN_BHLD };
    if (!attn_cli_shape_parse(text, &o) || (o.dim_v == 0 && o.dim_qk != 0)) return false; /* dim_v 0 would mean: as dim_qk */
    snprintf(found->name, sizeof found->name, "%s", text);
    found->batch = o.batch;
    found->heads_q = o.heads_q;
    found->heads_kv = o.heads_kv;
    found->len_q = o.len_q;
    found->len_kv = o.len_kv;
    found->dim_qk = o.dim_qk;
    found->dim_v = o.dim_v;
    found->causal = o.causal;
    found->align = o.align;
    return true;
}
