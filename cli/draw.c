/* draw.c: draws a random problem: sizes around the edges that kernels have, every feature in every mix, small enough for the reference. */
#include "random.h"
#include "workload.h"
#include <stdio.h>

enum { COST_MOST = 3000000 }; /* multiply-adds */

static int64_t draw_dim(generator *g) {
    static const int64_t usual[] = { 16, 32, 64, 64, 64, 72, 80, 96, 112, 128, 128, 256 };
    if (attn_cli_chance(g, 60)) return usual[attn_cli_below(g, sizeof usual / sizeof *usual)];
    return attn_cli_between(g, 1, attn_cli_chance(g, 50) ? 20 : 160);
}

static int64_t draw_length(generator *g, bool keys) {
    static const int64_t edges[] = { 16, 32, 64, 128, 256, 512, 1024 };
    int64_t kind = attn_cli_below(g, 100);
    if (kind < 3) return 0;
    if (kind < 25) return keys ? attn_cli_between(g, 1, 20) : 1;
    if (kind < 55) return edges[attn_cli_below(g, keys ? 7 : 4)] + attn_cli_between(g, -2, 2);
    if (kind < 90) return attn_cli_between(g, 1, keys ? 700 : 150);
    return attn_cli_between(g, 1, keys ? 5000 : 300);
}

static void draw_sizes(generator *g, spec *s) {
    static const int64_t groups[] = { 1, 1, 2, 3, 4, 4, 5, 7, 8, 16 };
    s->batch = attn_cli_chance(g, 2) ? 0 : attn_cli_between(g, 1, 3);
    s->heads_kv = attn_cli_between(g, 1, 3);
    s->heads_q = s->heads_kv * groups[attn_cli_below(g, sizeof groups / sizeof *groups)];
    s->len_q = draw_length(g, false);
    s->len_kv = draw_length(g, true);
    s->dim_qk = draw_dim(g);
    s->dim_v = attn_cli_chance(g, 75) ? s->dim_qk : draw_dim(g);
    int64_t *const sizes[] = { &s->len_q, &s->batch, &s->len_kv };
    for (int n = 0; s->batch * s->heads_q * s->len_q * s->len_kv * (s->dim_qk + s->dim_v) > COST_MOST; n++) {
        int64_t *size = sizes[n % 3];
        if (n % 3 == 2 && s->heads_kv > 1) {
            s->heads_q /= s->heads_kv;
            s->heads_kv = 1;
        } else if (*size > 1) {
            *size = *size / 2;
        }
    }
}

static void draw_types(generator *g, spec *s) {
    attn_type one = (attn_type)attn_cli_between(g, ATTN_F32, ATTN_BF16);
    attn_cli_case_type(s, one, true);
    if (attn_cli_chance(g, 70)) return;
    s->type_k = (attn_type)attn_cli_between(g, ATTN_F32, ATTN_BF16);
    s->type_v = attn_cli_chance(g, 70) ? s->type_k : (attn_type)attn_cli_between(g, ATTN_F32, ATTN_BF16);
    s->type_out = (attn_type)attn_cli_between(g, ATTN_F32, ATTN_BF16);
}

static void draw_band(generator *g, spec *s) {
    s->align = (attn_align)attn_cli_below(g, 2);
    s->causal = attn_cli_chance(g, 35);
    s->window = attn_cli_chance(g, 25);
    int64_t reach = s->len_kv + 2;
    s->left = attn_cli_chance(g, 20) ? ATTN_UNBOUNDED : attn_cli_below(g, reach);
    s->right = attn_cli_chance(g, 20) ? ATTN_UNBOUNDED : attn_cli_below(g, reach);
    if (attn_cli_chance(g, 20)) s->offset = attn_cli_between(g, -s->len_q - 2, reach);
}

static void draw_mask(generator *g, spec *s) {
    static const fill fills[] = { FILL_RANDOM, FILL_RANDOM, FILL_RANDOM, FILL_KEEP, FILL_HIDE, FILL_PADDING, FILL_PADDING, FILL_LOWEST };
    if (!attn_cli_chance(g, 40)) return;
    s->mask = attn_cli_chance(g, 40) ? ATTN_BOOL : (attn_type)attn_cli_between(g, ATTN_F32, ATTN_BF16);
    s->axes = (unsigned)attn_cli_below(g, 16);
    s->fill = fills[attn_cli_below(g, sizeof fills / sizeof *fills)];
}

spec attn_cli_random_case(uint64_t seed, uint64_t index) {
    spec s = { .layout = ATTN_BHLD };
    generator g = attn_cli_generator(seed, index);
    snprintf(s.name, sizeof s.name, "random:%llu:%llu", (unsigned long long)seed, (unsigned long long)index);
    draw_sizes(&g, &s);
    draw_types(&g, &s);
    draw_band(&g, &s);
    draw_mask(&g, &s);
    s.layout = (attn_layout)attn_cli_below(&g, 2);
    s.scaled = attn_cli_chance(&g, 15);
    s.scale = attn_cli_chance(&g, 10) ? 0 : 0.3f * attn_cli_normal(&g);
    if (attn_cli_chance(&g, 15)) s.softcap = attn_cli_chance(&g, 50) ? 30 : 1.5f;
    s.sinks = attn_cli_chance(&g, 15);
    s.sink = attn_cli_chance(&g, 20) ? 40 : 0;
    s.slopes = attn_cli_chance(&g, 15);
    s.lens_q = attn_cli_chance(&g, 20);
    s.lens_kv = attn_cli_chance(&g, 30);
    if (attn_cli_chance(&g, 10)) s.spread = attn_cli_chance(&g, 50) ? 30 : 2000;
    if (attn_cli_chance(&g, 10)) s.values = attn_cli_chance(&g, 50) ? 64 : 1e-4f;
    if (attn_cli_chance(&g, 40)) s.strides = (strides)attn_cli_below(&g, 4);
    if (attn_cli_chance(&g, 5)) s.plant = (plant)attn_cli_between(&g, PLANT_NAN_Q, PLANT_INF_K);
    s.poison = attn_cli_chance(&g, 50);
    s.seed = attn_cli_next(&g);
    return s;
}
