/* safetensors.c: reads .safetensors files: 8 bytes of length, a JSON header, the data. Every entry of the header is checked before any is
 * used: known dtype, a shape whose bytes are its offsets' span, spans that cover the data without a gap or an overlap. */
#include "tensor.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { HEADER_MOST = 1 << 24, NAME_SHOWN = 80 };

typedef struct entry {
    const char *name; /* the header's */
    element type;
    int rank;
    int64_t shape[TENSOR_RANK], count, begin, end; /* bytes from the start of the data */
} entry;

struct safetensors {
    place at;
    FILE *file;
    int64_t start, size; /* of the data, in bytes */
    json_t *header;
    entry *entries; /* in order of their offsets */
    int count;
};

/* Bits of an element; sizes of types that attention has no use for are known too, so that files that also hold such tensors can be checked.
 */
static const struct {
    const char *name;
    int bits;
    element type;
} dtypes[] = {
    { "F32", 32, ELEMENT_F32 },      { "F16", 16, ELEMENT_F16 },   { "BF16", 16, ELEMENT_BF16 },    { "F64", 64, ELEMENT_F64 },
    { "BOOL", 8, ELEMENT_BOOL },     { "U8", 8, ELEMENT_U8 },      { "I32", 32, ELEMENT_I32 },      { "I64", 64, ELEMENT_I64 },
    { "I8", 8, ELEMENT_OTHER },      { "I16", 16, ELEMENT_OTHER }, { "U16", 16, ELEMENT_OTHER },    { "U32", 32, ELEMENT_OTHER },
    { "U64", 64, ELEMENT_OTHER },    { "C64", 64, ELEMENT_OTHER }, { "F8_E4M3", 8, ELEMENT_OTHER }, { "F8_E5M2", 8, ELEMENT_OTHER },
    { "F8_E8M0", 8, ELEMENT_OTHER },
};

/* A name out of the file, cut and made harmless for a terminal. */
static const char *shown(const char *name) {
    static char text[NAME_SHOWN + 4];
    size_t i = 0;
    for (; name[i] && i < NAME_SHOWN; i++) text[i] = name[i] >= ' ' && name[i] != 0x7f ? name[i] : '?';
    strcpy(text + i, name[i] ? "..." : "");
    return text;
}

static bool entry_error(const place *at, const char *name, const char *rule) {
    return attn_cli_place_error(at, "header: tensor '%s': %s", shown(name), rule);
}

static const char *parse_shape(json_t *shape, entry *e) {
    if (!json_is_array(shape)) return "shape: must be an array of sizes";
    if (json_array_size(shape) > TENSOR_RANK) return "shape: has more than 8 axes";
    e->rank = (int)json_array_size(shape);
    for (int i = 0; i < e->rank; i++) {
        json_t *size = json_array_get(shape, (size_t)i);
        if (!json_is_integer(size) || json_integer_value(size) < 0) return "shape: must be an array of sizes";
        e->shape[i] = json_integer_value(size);
    }
    return NULL;
}

static const char *parse_offsets(json_t *offsets, int64_t size, entry *e) {
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (!json_is_array(offsets) || json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end))
        return "data_offsets: must be two integers";
    e->begin = json_integer_value(begin);
    e->end = json_integer_value(end);
    if (e->begin < 0 || e->begin > e->end) return "data_offsets: must be in order and not negative";
    return e->end > size ? "data_offsets: past the end of the file" : NULL;
}

static const char *parse_entry(json_t *value, int64_t size, entry *e) {
    if (!json_is_object(value)) return "must be an object";
    json_t *dtype = json_object_get(value, "dtype"), *shape = json_object_get(value, "shape");
    json_t *offsets = json_object_get(value, "data_offsets");
    if (!dtype || !shape || !offsets) return "dtype, shape or data_offsets is missing";
    if (json_object_size(value) != 3) return "has a key other than dtype, shape and data_offsets";
    if (!json_is_string(dtype)) return "dtype: must be a string";
    int bits = 0;
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; i++)
        if (strcmp(json_string_value(dtype), dtypes[i].name) == 0) bits = dtypes[i].bits, e->type = dtypes[i].type;
    if (bits == 0) return "dtype: not known";
    const char *rule = parse_shape(shape, e);
    if (!rule) rule = parse_offsets(offsets, size, e);
    if (rule) return rule;
    if (!attn_cli_count(e->shape, e->rank, (size_t)bits / 8, &e->count)) return "shape: the sizes overflow";
    return e->count * (bits / 8) == e->end - e->begin ? NULL : "data_offsets: their span is not the shape's size in bytes";
}

static int by_offset(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    return x->end < y->end ? -1 : x->end > y->end; /* empty tensors first */
}

static bool parse_metadata(const place *at, json_t *metadata) {
    const char *key;
    json_t *value;
    if (!json_is_object(metadata)) return attn_cli_place_error(at, "header: __metadata__: must be an object");
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return attn_cli_place_error(
        at, "header: __metadata__: '%s' is no string", shown(key));
    return true;
}

static bool parse_entries(safetensors *s) {
    const char *name, *rule;
    json_t *value;
    int64_t covered = 0;
    s->entries = calloc(json_object_size(s->header) + 1, sizeof *s->entries);
    if (!s->entries) return attn_cli_place_error(&s->at, "header: no memory for it");
    json_object_foreach(s->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) {
            if (!parse_metadata(&s->at, value)) return false;
            continue;
        }
        entry *e = &s->entries[s->count++];
        e->name = name;
        if ((rule = parse_entry(value, s->size, e)) != NULL) return entry_error(&s->at, name, rule);
    }
    qsort(s->entries, (size_t)s->count, sizeof *s->entries, by_offset);
    for (int i = 0; i < s->count; covered = s->entries[i].end, i++) {
        if (s->entries[i].begin < covered) return entry_error(&s->at, s->entries[i].name, "data_offsets: overlaps another tensor");
        if (s->entries[i].begin > covered) return entry_error(&s->at, s->entries[i].name, "data_offsets: leaves a gap before it");
    }
    return covered == s->size || attn_cli_place_error(&s->at, "data: %lld bytes after the last tensor", (long long)(s->size - covered));
}

static bool parse_header(safetensors *s, size_t length) {
    json_error_t error;
    char *text = malloc(length + 1);
    if (!text) return attn_cli_place_error(&s->at, "header: no memory for it");
    bool good = attn_cli_file_read(&s->at, s->file, text, length, "header");
    if (good && (length == 0 || text[0] != '{')) good = attn_cli_place_error(&s->at, "header: must be a JSON object");
    if (good) {
        s->header = json_loadb(text, length, JSON_REJECT_DUPLICATES, &error);
        if (!s->header) attn_cli_place_error(&s->at, "header: JSON, line %d, column %d: %s", error.line, error.column, shown(error.text));
    }
    free(text);
    return good && s->header && parse_entries(s);
}

static bool open_file(safetensors *s) {
    unsigned char lead[8];
    int64_t size;
    uint64_t length = 0;
    if (!attn_cli_file_open(&s->at, &s->file, &size) || !attn_cli_file_read(&s->at, s->file, lead, sizeof lead, "header")) return false;
    for (int i = 0; i < 8; i++) length |= (uint64_t)lead[i] << 8 * i;
    if (length > (uint64_t)size - 8)
        return attn_cli_place_error(&s->at, "header: %llu bytes long, but the file ends too early", (unsigned long long)length);
    if (length > HEADER_MOST)
        return attn_cli_place_error(&s->at, "header: %llu bytes long: at most %d", (unsigned long long)length, HEADER_MOST);
    s->start = 8 + (int64_t)length;
    s->size = size - s->start;
    return parse_header(s, (size_t)length);
}

bool attn_cli_safetensors_open(const place *at, safetensors **file) {
    safetensors *s = calloc(1, sizeof *s);
    *file = NULL;
    if (!s) return attn_cli_place_error(at, "no memory for it");
    s->at = *at;
    if (open_file(s)) return *file = s, true;
    attn_cli_safetensors_close(s);
    return false;
}

void attn_cli_safetensors_close(safetensors *s) {
    if (!s) return;
    if (s->file) fclose(s->file);
    json_decref(s->header);
    free(s->entries);
    free(s);
}

int attn_cli_safetensors_count(const safetensors *s) { return s->count; }

static const entry *find(const safetensors *s, const char *name) {
    for (int i = 0; i < s->count; i++)
        if (strcmp(s->entries[i].name, name) == 0) return &s->entries[i];
    return NULL;
}

bool attn_cli_safetensors_has(const safetensors *s, const char *name) { return find(s, name) != NULL; }

bool attn_cli_safetensors_read(safetensors *s, const char *name, tensor *t) {
    memset(t, 0, sizeof *t);
    const entry *e = name ? find(s, name) : &s->entries[0];
    if (!e) return attn_cli_place_error(&s->at, "holds no tensor named '%s'", name);
    if (e->type == ELEMENT_OTHER) return entry_error(&s->at, e->name, "dtype: of no use here");
    if (fseeko(s->file, s->start + e->begin, SEEK_SET) != 0) return attn_cli_place_error(&s->at, "cannot be read from the middle");
    t->data = attn_cli_memory((size_t)(e->end - e->begin));
    if (!t->data || !attn_cli_file_read(&s->at, s->file, t->data, (size_t)(e->end - e->begin), "data")) {
        attn_cli_tensor_free(t);
        return false;
    }
    t->type = e->type;
    t->rank = e->rank;
    t->count = e->count;
    memcpy(t->shape, e->shape, sizeof t->shape);
    return true;
}

const char *attn_cli_safetensors_metadata(const safetensors *s, const char *key) {
    return json_string_value(json_object_get(json_object_get(s->header, "__metadata__"), key));
}
