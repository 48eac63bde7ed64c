/* npy.c: reads .npy files, versions 1 to 3: the magic, a length, a Python dict of descr, fortran_order and shape, the data. Strict: the
 * header is exactly that dict, and the data ends where the file does. */
#include "tensor.h"
#include <stdlib.h>
#include <string.h>

enum { HEADER_MOST = 1 << 16 };

typedef struct cursor {
    const char *at, *end;
} cursor;

typedef struct header {
    char descr[32];
    bool fortran, has_descr, has_fortran, has_shape;
    int rank;
    int64_t shape[TENSOR_RANK];
} header;

static void skip_space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r')) c->at++;
}

static bool take(cursor *c, const char *word) {
    size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
    c->at += length;
    return true;
}

static bool take_string(cursor *c, char *text, size_t size) {
    skip_space(c);
    if (c->at >= c->end || (*c->at != '\'' && *c->at != '"')) return false;
    char quote = *c->at++;
    size_t used = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (*c->at < ' ' || *c->at > '~' || *c->at == '\\' || used + 1 >= size) return false;
        text[used++] = *c->at;
    }
    if (c->at >= c->end) return false;
    c->at++;
    text[used] = 0;
    return true;
}

static bool take_size(cursor *c, int64_t *size) {
    skip_space(c);
    const char *first = c->at;
    for (*size = 0; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(*size, INT64_C(10), size) || __builtin_add_overflow(*size, (int64_t)(*c->at - '0'), size)) return false;
    return c->at > first && (*first != '0' || c->at == first + 1);
}

/* (), (3,), (3, 4) and so on: a comma is needed after a single size and allowed after the last of several. */
static const char *take_shape(cursor *c, header *h) {
    static const char bad[] = "header: shape: must be a tuple of sizes";
    bool comma = true;
    if (!take(c, "(")) return bad;
    for (h->rank = 0; !take(c, ")"); h->rank++) {
        if (!comma) return bad;
        if (h->rank == TENSOR_RANK) return "header: shape: has more than 8 axes";
        if (!take_size(c, &h->shape[h->rank])) return bad;
        comma = take(c, ",");
    }
    return h->rank == 1 && !comma ? bad : NULL;
}

static const char *take_entry(cursor *c, header *h) {
    char key[32];
    if (!take_string(c, key, sizeof key) || !take(c, ":")) return "header: must be a dict with the keys descr, fortran_order and shape";
    if (strcmp(key, "descr") == 0) {
        if (h->has_descr) return "header: descr: given twice";
        h->has_descr = true;
        return take_string(c, h->descr, sizeof h->descr) ? NULL : "header: descr: must be a plain type such as '<f4'";
    }
    if (strcmp(key, "fortran_order") == 0) {
        if (h->has_fortran) return "header: fortran_order: given twice";
        h->has_fortran = true;
        h->fortran = take(c, "True");
        return h->fortran || take(c, "False") ? NULL : "header: fortran_order: must be True or False";
    }
    if (strcmp(key, "shape") == 0) {
        if (h->has_shape) return "header: shape: given twice";
        h->has_shape = true;
        return take_shape(c, h);
    }
    return "header: has a key other than descr, fortran_order and shape";
}

static const char *parse_header(const char *text, size_t length, header *h) {
    cursor c = { text, text + length };
    bool comma = true;
    memset(h, 0, sizeof *h);
    if (!take(&c, "{")) return "header: must be a dict with the keys descr, fortran_order and shape";
    while (!take(&c, "}")) {
        if (!comma) return "header: a comma is missing";
        const char *rule = take_entry(&c, h);
        if (rule) return rule;
        comma = take(&c, ",");
    }
    skip_space(&c);
    if (c.at != c.end) return "header: something stands after the dict";
    return h->has_descr && h->has_fortran && h->has_shape ? NULL : "header: descr, fortran_order or shape is missing";
}

static element element_of(const char *descr) {
    static const struct {
        const char *descr;
        element type;
    } known[] = {
        { "<f4", ELEMENT_F32 }, { "<f2", ELEMENT_F16 }, { "<f8", ELEMENT_F64 },  { "|b1", ELEMENT_BOOL }, { "|u1", ELEMENT_U8 },
        { "<i4", ELEMENT_I32 }, { "<i8", ELEMENT_I64 }, { "<V2", ELEMENT_BF16 }, { "|V2", ELEMENT_BF16 }, /* what ml_dtypes writes */
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(descr, known[i].descr) == 0) return known[i].type;
    return ELEMENT_OTHER;
}

/* Data in Fortran order is copied into C order: the first axis of the file is the fastest. */
static bool reorder(tensor *t) {
    size_t size = attn_cli_element_size(t->type);
    char *to = attn_cli_memory((size_t)t->count * size);
    if (!to) return false;
    int64_t index[TENSOR_RANK] = { 0 }, stride[TENSOR_RANK], step = 1;
    for (int a = t->rank - 1; a >= 0; step *= t->shape[a], a--) stride[a] = step;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t where = 0;
        for (int a = 0; a < t->rank; a++) where += index[a] * stride[a];
        memcpy(to + where * (int64_t)size, (char *)t->data + i * (int64_t)size, size);
        for (int a = 0; a < t->rank && ++index[a] == t->shape[a]; a++) index[a] = 0;
    }
    free(t->data);
    t->data = to;
    return true;
}

static bool read_header(const place *at, FILE *file, int64_t size, header *h, int64_t *start) {
    unsigned char lead[12];
    if (!attn_cli_file_read(at, file, lead, 8, "header")) return false;
    if (memcmp(lead, "\x93NUMPY", 6) != 0) return attn_cli_place_error(at, "header: not a .npy file (its first bytes differ)");
    if (lead[6] < 1 || lead[6] > 3 || lead[7] != 0)
        return attn_cli_place_error(at, "header: version %d.%d: must be 1.0, 2.0 or 3.0", lead[6], lead[7]);
    size_t digits = lead[6] == 1 ? 2 : 4;
    if (!attn_cli_file_read(at, file, lead + 8, digits, "header")) return false;
    uint32_t length = 0;
    for (size_t i = 0; i < digits; i++) length |= (uint32_t)lead[8 + i] << 8 * i;
    *start = 8 + (int64_t)digits + length;
    if (length > HEADER_MOST) return attn_cli_place_error(at, "header: %u bytes long: at most %d", length, HEADER_MOST);
    if (*start > size) return attn_cli_place_error(at, "header: %u bytes long, but the file ends too early", length);
    char *text = malloc(length + 1u);
    if (!text) return attn_cli_place_error(at, "header: no memory for it");
    bool good = attn_cli_file_read(at, file, text, length, "header");
    const char *rule = good ? parse_header(text, length, h) : NULL;
    free(text);
    return rule ? attn_cli_place_error(at, "%s", rule) : good;
}

static bool read_data(const place *at, FILE *file, int64_t size, tensor *t) {
    header h;
    int64_t start = 0;
    if (!read_header(at, file, size, &h, &start)) return false;
    t->type = element_of(h.descr);
    if (t->type == ELEMENT_OTHER)
        return attn_cli_place_error(at, "header: descr '%s': must be <f4, <f2, <f8, |b1, |u1, <i4, <i8 or |V2 (bf16)", h.descr);
    t->rank = h.rank;
    memcpy(t->shape, h.shape, sizeof t->shape);
    size_t each = attn_cli_element_size(t->type);
    if (!attn_cli_count(t->shape, t->rank, each, &t->count)) return attn_cli_place_error(at, "header: shape: the sizes overflow");
    if (t->count * (int64_t)each != size - start)
        return attn_cli_place_error(at, "data: the shape needs %lld bytes, the file has %lld", (long long)(t->count * (int64_t)each),
                                    (long long)(size - start));
    t->data = attn_cli_memory((size_t)t->count * each);
    if (!t->data || !attn_cli_file_read(at, file, t->data, (size_t)t->count * each, "data")) return false;
    return !h.fortran || t->rank < 2 || reorder(t);
}

bool attn_cli_npy_read(const place *at, tensor *t) {
    FILE *file;
    int64_t size;
    if (!attn_cli_file_open(at, &file, &size)) return false;
    bool good = read_data(at, file, size, t);
    fclose(file);
    if (!good) attn_cli_tensor_free(t);
    return good;
}
