/* inputs.c: reads the tensors of attn run and checks that they fit together. */
#include "inputs.h"
#include <string.h>

static const struct {
    const char *option, *name;
} names[INPUTS] = {
    { "-q", "q" },          { "-k", "k" },
    { "-v", "v" },          { "--mask", "mask" },
    { "--sinks", "sinks" }, { "--slopes", "slopes" },
    { "--len-q", "len_q" }, { "--len-kv", "len_kv" },
};

const char *attn_cli_input_option(int input) { return names[input].option; }

static bool read_metadata(const safetensors *file, const char *path, problem_options *options) {
    static const char *const keys[] = { "causal", "align", "offset", "window", "scale", "softcap", "layout" };
    problem_options found = { 0 };
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const char *text = attn_cli_safetensors_metadata(file, keys[i]);
        const char *rule = text ? attn_cli_problem_option(&found, keys[i], text) : NULL;
        if (rule) return attn_cli_error("%s: header: __metadata__: %s: %s", path, keys[i], rule);
    }
    attn_cli_problem_merge(options, &found);
    return true;
}

static bool read_all(inputs *in, const char *path, const char *const files[INPUTS], problem_options *options) {
    place at = { "", path };
    safetensors *file;
    size_t length = strlen(path);
    if (length < 12 || strcmp(path + length - 12, ".safetensors") != 0)
        return attn_cli_place_error(&at, "the name of a file with all tensors must end in .safetensors");
    if (!attn_cli_safetensors_open(&at, &file)) return false;
    bool good = read_metadata(file, path, options);
    for (int i = 0; good && i < INPUTS; i++) {
        in->places[i] = (place){ names[i].name, path };
        if (files[i] || (i > INPUT_V && !attn_cli_safetensors_has(file, names[i].name))) continue;
        good = attn_cli_safetensors_read(file, names[i].name, &in->tensors[i]);
    }
    attn_cli_safetensors_close(file);
    return good;
}

static bool fail_dim(const inputs *in, int input, const char *axis, int64_t is, const char *want_name, int64_t want) {
    return attn_cli_place_error(&in->places[input], "%s is %lld, but %s is %lld: must be equal", axis, (long long)is, want_name,
                                (long long)want);
}

/* batch, heads, length and dim of q, k or v, whose axes stand in the layout; missing ones in front are 1. */
typedef struct sizes {
    int64_t batch, heads, length, dim;
} sizes;

static bool sizes_of(const inputs *in, int input, sizes *s) {
    const tensor *t = &in->tensors[input];
    if (t->rank < 2 || t->rank > 4)
        return attn_cli_place_error(&in->places[input], "rank %d: must be 4, or 3 without batch, or 2 without batch and heads", t->rank);
    attn_type type = attn_cli_element_type(t->type);
    if (type == ATTN_NONE || type == ATTN_BOOL)
        return attn_cli_place_error(&in->places[input], "type %s: must be f32, f16 or bf16", attn_cli_element_name(t->type));
    const int64_t *last = t->shape + t->rank;
    bool swapped = in->layout == ATTN_BLHD && t->rank > 2;
    *s = (sizes){ t->rank == 4 ? last[-4] : 1, t->rank > 2 ? last[swapped ? -2 : -3] : 1, last[swapped ? -3 : -2], last[-1] };
    return true;
}

static bool make_problem(inputs *in, const problem_options *options) {
    attn_problem *p = &in->problem;
    sizes q, k, v;
    if (!sizes_of(in, INPUT_Q, &q) || !sizes_of(in, INPUT_K, &k) || !sizes_of(in, INPUT_V, &v)) return false;
    if (k.batch != q.batch) return fail_dim(in, INPUT_K, "batch", k.batch, "that of q", q.batch);
    if (v.batch != q.batch) return fail_dim(in, INPUT_V, "batch", v.batch, "that of q", q.batch);
    if (k.dim != q.dim) return fail_dim(in, INPUT_K, "dim", k.dim, "that of q", q.dim);
    if (v.heads != k.heads) return fail_dim(in, INPUT_V, "heads", v.heads, "that of k", k.heads);
    if (v.length != k.length) return fail_dim(in, INPUT_V, "length", v.length, "that of k", k.length);
    if (k.heads > 0 && q.heads % k.heads != 0)
        return attn_cli_place_error(&in->places[INPUT_K], "heads_q: must be a multiple of heads_kv, but %lld is none of %lld",
                                    (long long)q.heads, (long long)k.heads);
    attn_type type = attn_cli_element_type(in->tensors[INPUT_Q].type);
    attn_problem_init(p, in->layout, type, q.batch, q.heads, k.heads, q.length, k.length, q.dim);
    p->type_k = attn_cli_element_type(in->tensors[INPUT_K].type);
    p->type_v = attn_cli_element_type(in->tensors[INPUT_V].type);
    p->dim_v = v.dim;
    attn_cli_problem_apply(options, p);
    in->args.q = in->tensors[INPUT_Q].data;
    in->args.k = in->tensors[INPUT_K].data;
    in->args.v = in->tensors[INPUT_V].data;
    return attn_cli_ok(attn_problem_dense(p, in->layout));
}

/* Right-aligned, each axis 1 or the problem's. */
static bool apply_mask(inputs *in) {
    static const char *const axes[] = { "batch", "heads_q", "len_q", "len_kv" };
    tensor *t = &in->tensors[INPUT_MASK];
    attn_problem *p = &in->problem;
    const place *at = &in->places[INPUT_MASK];
    int64_t want[] = { p->batch, p->heads_q, p->len_q, p->len_kv }, step = 1;
    int64_t *const strides[] = { &p->mask.batch, &p->mask.head, &p->mask.row, &p->mask.key };
    if (!t->data) return true;
    if (t->rank > 4) return attn_cli_place_error(at, "rank %d: at most 4", t->rank);
    if (t->type == ELEMENT_F64 && !attn_cli_tensor_to_f32(at, t)) return false;
    p->type_mask = attn_cli_element_type(t->type);
    if (p->type_mask == ATTN_NONE)
        return attn_cli_place_error(at, "type %s: must be bool, u8, f32, f16, bf16 or f64", attn_cli_element_name(t->type));
    for (int a = 3, i = t->rank - 1; i >= 0; a--, i--) {
        if (t->shape[i] != 1 && t->shape[i] != want[a])
            return attn_cli_place_error(at, "axis %d is %lld: must be 1 or %s, %lld", i, (long long)t->shape[i], axes[a],
                                        (long long)want[a]);
        *strides[a] = t->shape[i] == 1 ? 0 : step;
        step *= t->shape[i];
    }
    in->args.mask = t->data;
    return true;
}

static bool check_vector(const inputs *in, int input, const char *axis, int64_t want) {
    const tensor *t = &in->tensors[input];
    if (t->rank == 1 && t->shape[0] == want) return true;
    char shape[256];
    attn_cli_shape_text(t->shape, t->rank, shape, sizeof shape);
    return attn_cli_place_error(&in->places[input], "shape %s: must be (%s,), (%lld,)", shape, axis, (long long)want);
}

static bool apply_floats(inputs *in, int input, const float **to) {
    tensor *t = &in->tensors[input];
    if (!t->data) return true;
    if (!check_vector(in, input, "heads_q", in->problem.heads_q) || !attn_cli_tensor_to_f32(&in->places[input], t)) return false;
    *to = t->data;
    return true;
}

static bool apply_lengths(inputs *in, int input, int64_t most, const int32_t **to) {
    tensor *t = &in->tensors[input];
    if (!t->data) return true;
    if (!check_vector(in, input, "batch", in->problem.batch) || !attn_cli_tensor_to_i32(&in->places[input], t)) return false;
    *to = t->data;
    for (int64_t b = 0; b < t->count; b++)
        if ((*to)[b] < 0 || (*to)[b] > most)
            return attn_cli_place_error(&in->places[input], "entry %lld is %d: must be between 0 and the tensors' length, %lld",
                                        (long long)b, (*to)[b], (long long)most);
    return true;
}

bool attn_cli_inputs_read(inputs *in, const char *all, const char *const files[INPUTS], const problem_options *given) {
    problem_options options = *given;
    in->args = (attn_args)ATTN_ARGS_INIT;
    if (all && !read_all(in, all, files, &options)) return false;
    for (int i = 0; i < INPUTS; i++) {
        if (!files[i]) continue;
        in->places[i] = (place){ names[i].option, files[i] };
        if (!attn_cli_tensor_read(&in->places[i], names[i].name, &in->tensors[i])) return false;
    }
    in->layout = options.layout;
    if (!make_problem(in, &options) || !apply_mask(in)) return false;
    return apply_floats(in, INPUT_SINKS, &in->args.sinks) && apply_floats(in, INPUT_SLOPES, &in->args.slopes) &&
           apply_lengths(in, INPUT_LEN_Q, in->problem.len_q, &in->args.len_q) &&
           apply_lengths(in, INPUT_LEN_KV, in->problem.len_kv, &in->args.len_kv);
}

void attn_cli_inputs_free(inputs *in) {
    for (int i = 0; i < INPUTS; i++) attn_cli_tensor_free(&in->tensors[i]);
}
