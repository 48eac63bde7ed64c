/* check_guard.c: what is touched and what matters. Every tensor stands flush against pages that must not be touched, inputs are read-only,
 * invisible keys lie in pages of no access, and what is poisoned where nobody looks changes no bit; where somebody does, it reaches exactly
 * the rows that see it. */
#include "harness.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *isa;
enum { FORMS = 3 };
static attn_context *contexts[FORMS];

static void note(const check_case *c, const char *what) {
    char prefix[128];
    snprintf(prefix, sizeof prefix, "%s, %s", isa, what);
    check_case_note(c, prefix);
}

/* ---- flush ---- */
/* The same case at either end of its pages (so at other alignments, too), with workspaces of exactly the size asked for: the same bits. */
static void flush(check_random *random) {
    check_case c;
    check_bits bits = { NULL, 0 };
    check_case_random(&c, random, 5e5);
    attn_context *context = contexts[check_below(random, FORMS)];
    check_random start = *random;
    for (int side = 0; side < 2; side++) {
        check_case one = c;
        check_random again = start;
        check_case_build(&one, &again, CHECK_NORMAL, (check_side)side);
        check_case_workspace(&one, context, (check_side)side);
        note(&one, side == CHECK_AT_END ? "flush at the end" : "flush at the start");
        check_case_readonly(&one, true);
        check_case_forward(&one, context);
        if (side == 0)
            bits = check_bits_take(&one);
        else
            check_bits_same(&bits, &one, "at other addresses");
        check_case_free(&one);
    }
    check_bits_free(&bits);
}

/* A merge with all its buffers so. */
static void flush_merge(check_random *random) {
    check_case c;
    do check_case_random(&c, random, 1e5);
    while (!c.with_lse);
    check_side side = check_chance(random, 0.5) ? CHECK_AT_END : CHECK_AT_START;
    enum { COUNT = 3 };
    check_tensor outs[COUNT], lses[COUNT];
    attn_state states[COUNT];
    check_case_build(&c, random, CHECK_NORMAL, side);
    note(&c, "merge");
    for (int n = 0; n < COUNT; n++) {
        outs[n] = c.out;
        lses[n] = c.lse;
        outs[n].type = ATTN_F32;
        check_tensor_place(&outs[n], side);
        check_tensor_place(&lses[n], side);
        for (int64_t b = 0; b < c.problem.batch; b++) {
            for (int64_t h = 0; h < c.problem.heads_q; h++) {
                for (int64_t i = 0; i < check_len_q(&c, b); i++) { /* rows past len_q stay NaN: they must not matter */
                    check_set(&lses[n], b, h, i, 0, check_chance(random, 0.2) ? -INFINITY : check_normal(random));
                    for (int64_t e = 0; e < c.problem.dim_v; e++) check_set(&outs[n], b, h, i, e, check_normal(random));
                }
            }
        }
        states[n] = (attn_state){ (const float *)(const void *)outs[n].base, (const float *)(const void *)lses[n].base };
        check_buffer_readonly(&outs[n].buffer);
        check_buffer_readonly(&lses[n].buffer);
    }
    check_case_workspace(&c, contexts[0], side);
    check_case_clear(&c);
    CHECK_OK(attn_merge(contexts[0], &c.problem, states, COUNT, &c.args), "merge");
    check_case_gaps(&c);
    for (int64_t b = 0; b < c.problem.batch; b++)
        for (int64_t h = 0; h < c.problem.heads_q; h++)
            for (int64_t i = 0; i < check_len_q(&c, b); i++)
                CHECK(isfinite(check_get(&c.out, b, h, i, 0)), "merge: out[%d][%d][%d] is %g", (int)b, (int)h, (int)i,
                      check_get(&c.out, b, h, i, 0));
    for (int n = 0; n < COUNT; n++) {
        check_buffer_free(&outs[n].buffer);
        check_buffer_free(&lses[n].buffer);
    }
    check_case_free(&c);
}

/* ---- who sees what ---- */
/* Whether any row of the key head's group sees key j; by lengths and band alone where `masks` is false. */
static bool seen(const check_case *c, int64_t b, int64_t g, int64_t j, bool masks) {
    int64_t group = c->problem.heads_q / c->problem.heads_kv;
    for (int64_t i = 0; i < check_len_q(c, b); i++) {
        if (!check_in_band(c, b, i, j)) continue;
        if (!masks) return true;
        for (int64_t h = g * group; h < (g + 1) * group; h++)
            if (check_visible(c, b, h, i, j)) return true;
    }
    return false;
}

/* A random problem whose tensors have every element to themselves: nothing broadcast. */
static void unshared(check_case *c, check_random *random, double work) {
    check_case_random(c, random, work);
    check_case_arrange(c, random, check_chance(random, 0.5) ? CHECK_DENSE_BHLD : CHECK_DENSE_BLHD);
    attn_problem *p = &c->problem;
    p->mask = (attn_mask_strides){ p->heads_q * p->len_q * p->len_kv, p->len_q * p->len_kv, p->len_kv, 1 };
    if (check_chance(random, 0.3)) { /* transposed */
        p->mask.row = 1;
        p->mask.key = p->len_q;
    }
    if (check_chance(random, 0.5)) c->hidden = 0.9;
}

/* ---- pages of no access ---- */
static void forbid(const check_tensor *tensor, int64_t b, int64_t h, int64_t i, int64_t e, bool allowed) {
    if (!check_pages_allow(check_at(tensor, b, h, i, e), check_page(), allowed ? CHECK_READ : CHECK_CLOSED)) {
        fprintf(stderr, "check_guard: the protection of a page does not change\n");
        exit(CHECK_EXIT_FAILED);
    }
}

/* Every row of q, k and v, and every mask entry, has a page to itself; nobody may touch those that lengths and band (or masks) hide. */
static void forbid_hidden(const check_case *c, bool by_masks) {
    const attn_problem *p = &c->problem;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t g = 0; g < p->heads_kv; g++) {
            for (int64_t j = 0; j < p->len_kv; j++) {
                forbid(&c->k, b, g, j, 0, seen(c, b, g, j, by_masks));
                forbid(&c->v, b, g, j, 0, seen(c, b, g, j, by_masks));
            }
        }
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < p->len_q; i++) {
                forbid(&c->q, b, h, i, 0, i < check_len_q(c, b));
                for (int64_t j = 0; p->type_mask != ATTN_NONE && j < p->len_kv; j++)
                    forbid(&c->mask, b, h, i, j, check_in_band(c, b, i, j));
            }
        }
    }
}

static attn_strides paged(int64_t heads, int64_t rows, attn_type type) {
    int64_t row = (int64_t)(check_page() / check_size(type));
    return (attn_strides){ heads * rows * row, rows * row, row };
}

static void pages(check_random *random, bool by_masks) {
    static const int64_t lens_q[] = { 1, 2, 5, 9 };
    static const int64_t lens_kv[] = { 5, 33, 70, 130 };
    static const int64_t dims[] = { 3, 16, 40, 64, 129 };
    check_case c;
    do check_case_random(&c, random, 1e6);
    while (by_masks && c.problem.type_mask == ATTN_NONE);
    attn_problem *p = &c.problem;
    p->batch = 1 + check_below(random, 2);
    p->heads_kv = 1 + check_below(random, 2);
    p->heads_q = p->heads_kv * (1 + check_below(random, 3));
    p->len_q = CHECK_PICK(random, lens_q);
    p->len_kv = p->type_mask == ATTN_NONE && check_chance(random, 0.3) ? 1100 : CHECK_PICK(random, lens_kv);
    p->dim_qk = p->dim_v = CHECK_PICK(random, dims);
    if (p->left > 5 && check_chance(random, 0.5)) p->left = 5;
    c.hidden = by_masks ? 0.9 : 0.3;
    check_case_arrange(&c, random, CHECK_DENSE_BHLD);
    p->q = paged(p->heads_q, p->len_q, p->type_q);
    p->k = paged(p->heads_kv, p->len_kv, p->type_k);
    p->v = paged(p->heads_kv, p->len_kv, p->type_v);
    if (p->type_mask != ATTN_NONE) {
        int64_t entry = (int64_t)(check_page() / check_size(p->type_mask));
        p->mask = (attn_mask_strides){ p->heads_q * p->len_q * p->len_kv * entry, p->len_q * p->len_kv * entry, p->len_kv * entry, entry };
    }
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_START); /* page-aligned rows */
    note(&c, by_masks ? "pages hidden by masks" : "pages");
    attn_context *context = contexts[check_below(random, FORMS)];
    check_case_forward(&c, context);
    check_bits bits = check_bits_take(&c);
    forbid_hidden(&c, by_masks);
    check_case_forward(&c, context);
    check_bits_same(&bits, &c, "with hidden pages forbidden");
    check_bits_free(&bits);
    check_case_free(&c);
}

/* ---- poison where nobody looks ---- */
static void poison(check_case *c, double value) {
    const attn_problem *p = &c->problem;
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t g = 0; g < p->heads_kv; g++) {
            for (int64_t j = 0; j < p->len_kv; j++) {
                if (seen(c, b, g, j, true)) continue;
                for (int64_t e = 0; e < p->dim_qk; e++) check_set(&c->k, b, g, j, e, value);
                for (int64_t e = 0; e < p->dim_v; e++) check_set(&c->v, b, g, j, e, value);
            }
        }
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < p->len_q; i++) {
                for (int64_t e = 0; e < p->dim_qk && i >= check_len_q(c, b); e++) check_set(&c->q, b, h, i, e, value);
                for (int64_t j = 0; p->type_mask != ATTN_NONE && j < p->len_kv; j++)
                    if (!check_in_band(c, b, i, j)) check_set(&c->mask, b, h, i, j, value);
            }
        }
    }
}

static void poisons(check_random *random) {
    static const double values[] = { NAN, INFINITY, -INFINITY, 3e38, -3e38 };
    check_case c;
    unshared(&c, random, 3e5);
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_END);
    note(&c, "poison");
    attn_context *context = contexts[check_below(random, FORMS)];
    poison(&c, 0);
    check_case_forward(&c, context);
    check_bits bits = check_bits_take(&c);
    for (size_t n = 0; n < sizeof values / sizeof *values; n++) {
        char what[64];
        snprintf(what, sizeof what, "%g where nobody looks", values[n]);
        poison(&c, values[n]);
        check_case_forward(&c, context);
        check_bits_same(&bits, &c, what);
    }
    check_bits_free(&bits);
    check_case_free(&c);
}

/* ---- poison where somebody looks ---- */
typedef enum place { IN_Q, IN_K, IN_V, IN_MASK, PLACES } place;
static const char *const place_names[PLACES] = { "NaN in q", "NaN in a visible key", "NaN in a visible value",
                                                 "NaN in a visible mask entry" };
typedef struct spot {
    place at;
    int64_t b, h, i, j, e;
} spot; /* h of q: the key head is that of its group */

static bool reaches(const check_case *c, const spot *s, int64_t b, int64_t h, int64_t i) {
    int64_t group = c->problem.heads_q / c->problem.heads_kv;
    if (b != s->b || h / group != s->h / group) return false;
    if (s->at == IN_Q) {
        if (h != s->h || i != s->i) return false;
        for (int64_t j = 0; j < c->problem.len_kv; j++)
            if (check_visible(c, b, h, i, j)) return true;
        return false;
    }
    if (s->at == IN_MASK && (h != s->h || i != s->i)) return false;
    return check_visible(c, b, h, i, s->j);
}

static void expect_reach(const check_case *c, const spot *s, const check_bits *clean) {
    const attn_problem *p = &c->problem;
    size_t element = check_size(p->type_out);
    for (int64_t b = 0; b < p->batch; b++) {
        for (int64_t h = 0; h < p->heads_q; h++) {
            for (int64_t i = 0; i < check_len_q(c, b); i++) {
                bool hit = reaches(c, s, b, h, i);
                for (int64_t e = 0; e < p->dim_v; e++) {
                    const unsigned char *now = check_at(&c->out, b, h, i, e);
                    bool nan = hit && (s->at != IN_V || e == s->e), same = !memcmp(now, clean->data + (now - c->out.buffer.data), element);
                    bool good = nan ? isnan(check_load(p->type_out, now)) : same;
                    CHECK(good, "%s [%d][%d][%d][%d][%d]: out[%d][%d][%d][%d] is %g, expected %s", place_names[s->at], (int)s->b, (int)s->h,
                          (int)s->i, (int)s->j, (int)s->e, (int)b, (int)h, (int)i, (int)e, check_load(p->type_out, now),
                          nan ? "NaN" : "the bits without it");
                    if (!good) return;
                }
                if (!c->args.lse) continue;
                const unsigned char *lse = check_at(&c->lse, b, h, i, 0);
                bool nan = hit && s->at != IN_V, same = !memcmp(lse, clean->data + c->out.buffer.size + (lse - c->lse.buffer.data), 4);
                CHECK(nan ? isnan(check_load(ATTN_F32, lse)) : same, "%s: lse[%d][%d][%d] is %g, expected %s", place_names[s->at], (int)b,
                      (int)h, (int)i, check_load(ATTN_F32, lse), nan ? "NaN" : "the bits without it");
            }
        }
    }
}

static void reach(check_random *random, place at) {
    check_case c;
    do unshared(&c, random, 1e5);
    while (c.problem.batch == 0 || c.problem.len_q == 0 || c.problem.len_kv == 0 || (at == IN_MASK && c.problem.type_mask < ATTN_F32) ||
           (at == IN_MASK && c.problem.type_mask == ATTN_BOOL));
    check_case_build(&c, random, CHECK_NORMAL, CHECK_AT_START);
    note(&c, place_names[at]);
    const attn_problem *p = &c.problem;
    attn_context *context = contexts[check_below(random, FORMS)];
    check_case_forward(&c, context);
    check_bits clean = check_bits_take(&c);
    spot s = { .at = at };
    for (int tries = 0; tries < 50; tries++) { /* a key that is seen by that row, if luck has it: else nobody is reached */
        s.b = check_below(random, p->batch);
        s.h = check_below(random, p->heads_q);
        s.i = check_below(random, p->len_q);
        s.j = check_below(random, p->len_kv);
        s.e = check_below(random, at == IN_V ? p->dim_v : p->dim_qk);
        if (check_visible(&c, s.b, s.h, s.i, s.j)) break;
    }
    bool visible = check_visible(&c, s.b, s.h, s.i, s.j);
    int64_t g = s.h / (p->heads_q / p->heads_kv);
    if (at == IN_Q) check_set(&c.q, s.b, s.h, s.i, s.e, NAN);
    if (at == IN_K) check_set(&c.k, s.b, g, s.j, s.e, NAN);
    if (at == IN_V) check_set(&c.v, s.b, g, s.j, s.e, NAN);
    if (at == IN_MASK && visible) check_set(&c.mask, s.b, s.h, s.i, s.j, NAN);
    if (at != IN_MASK || visible) {
        check_case_forward(&c, context);
        expect_reach(&c, &s, &clean);
    }
    check_bits_free(&clean);
    check_case_free(&c);
}

static void all(uint64_t first, int count) {
    for (int n = 0; n < count; n++) {
        check_seed = first + (uint64_t)n;
        check_random random = check_random_from(check_seed);
        for (int k = 0; k < 5; k++) flush(&random);
        flush_merge(&random);
        pages(&random, false);
        pages(&random, true);
        for (int k = 0; k < 2; k++) poisons(&random);
        for (int at = 0; at < PLACES; at++) reach(&random, (place)at);
    }
}

int main(int argc, char **argv) {
    char isas[CHECK_ISAS][16];
    check_begin("check_guard", argc, argv, 1);
    int isa_count = check_isas(isas);
    uint64_t first = check_seed;
    for (int n = 0; n < isa_count; n++) {
        isa = isas[n];
        contexts[0] = check_open(isa, 1, 0, 0);
        contexts[1] = check_open_serial(isa, 2, 2, 0);
        contexts[2] = check_open_serial(isa, 3, 1, 0);
        all(first, check_count(25));
        for (int form = 0; form < FORMS; form++) attn_close(contexts[form]);
    }
    return check_end();
}
