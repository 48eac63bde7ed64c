/* tensor.c: what is common to all tensor files: types, shapes, opening, reading, conversions. */
#include "tensor.h"
#include "convert.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct {
    const char *name;
    size_t size;
    attn_type type;
} elements[] = {
    [ELEMENT_OTHER] = { "other", 0, ATTN_NONE }, [ELEMENT_F64] = { "f64", 8, ATTN_NONE },   [ELEMENT_F32] = { "f32", 4, ATTN_F32 },
    [ELEMENT_F16] = { "f16", 2, ATTN_F16 },      [ELEMENT_BF16] = { "bf16", 2, ATTN_BF16 }, [ELEMENT_BOOL] = { "bool", 1, ATTN_BOOL },
    [ELEMENT_U8] = { "u8", 1, ATTN_BOOL },       [ELEMENT_I32] = { "i32", 4, ATTN_NONE },   [ELEMENT_I64] = { "i64", 8, ATTN_NONE },
};

size_t attn_cli_element_size(element type) { return elements[type].size; }
const char *attn_cli_element_name(element type) { return elements[type].name; }
attn_type attn_cli_element_type(element type) { return elements[type].type; }

bool attn_cli_place_error(const place *at, const char *format, ...) {
    char text[1024];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    return attn_cli_error("%s%s%s: %s", at->option, *at->option ? " " : "", at->path, text);
}

bool attn_cli_count(const int64_t *shape, int rank, size_t element_size, int64_t *count) {
    int64_t product = 1, bytes, nonzero = 1; /* the sizes but zeros: a shape such as (0, 2^40, 2^40) is as hostile as it looks */
    for (int i = 0; i < rank; i++) {
        if (shape[i] < 0) return false;
        if (shape[i] != 0 && __builtin_mul_overflow(nonzero, shape[i], &nonzero)) return false;
        product *= shape[i] != 0 ? 1 : 0;
    }
    if (__builtin_mul_overflow(nonzero, (int64_t)element_size, &bytes)) return false;
    *count = product ? nonzero : 0;
    return true;
}

void attn_cli_shape_text(const int64_t *shape, int rank, char *text, size_t size) {
    size_t used = 0;
    used += (size_t)snprintf(text, size, "(");
    for (int i = 0; i < rank && used < size; i++)
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size) snprintf(text + used, size - used, rank == 1 ? ",)" : ")");
}

bool attn_cli_file_open(const place *at, FILE **file, int64_t *size) {
    struct stat about;
    *file = NULL;
    if (stat(at->path, &about) != 0) return attn_cli_place_error(at, "%s", strerror(errno));
    if (!S_ISREG(about.st_mode)) return attn_cli_place_error(at, "must be a regular file");
    *file = fopen(at->path, "rb");
    if (!*file) return attn_cli_place_error(at, "%s", strerror(errno));
    *size = about.st_size;
    return true;
}

bool attn_cli_file_read(const place *at, FILE *file, void *to, size_t bytes, const char *what) {
    if (fread(to, 1, bytes, file) == bytes) return true;
    return attn_cli_place_error(at, "%s: %s", what, ferror(file) ? strerror(errno) : "the file ends too early");
}

static bool ends_in(const char *path, const char *extension) {
    size_t length = strlen(path), tail = strlen(extension);
    return length > tail && strcmp(path + length - tail, extension) == 0;
}

bool attn_cli_tensor_read(const place *at, const char *name, tensor *t) {
    memset(t, 0, sizeof *t);
    if (ends_in(at->path, ".npy")) return attn_cli_npy_read(at, t);
    if (!ends_in(at->path, ".safetensors")) return attn_cli_place_error(at, "the name must end in .npy or .safetensors");
    safetensors *file;
    if (!attn_cli_safetensors_open(at, &file)) return false;
    bool only = attn_cli_safetensors_count(file) == 1 && !attn_cli_safetensors_has(file, name);
    bool good = attn_cli_safetensors_read(file, only ? NULL : name, t);
    attn_cli_safetensors_close(file);
    return good;
}

void attn_cli_tensor_free(tensor *t) {
    free(t->data);
    memset(t, 0, sizeof *t);
}

static float f64_to_f32(double value) { /* an additive mask of -1e300 is no -inf: it must stay finite */
    if (isfinite(value)) value = fmin(fmax(value, -FLT_MAX), FLT_MAX);
    return (float)value;
}

bool attn_cli_tensor_to_f32(const place *at, tensor *t) {
    attn_type type = attn_cli_element_type(t->type);
    if (t->type == ELEMENT_F32) return true;
    if (t->type != ELEMENT_F64 && type != ATTN_F16 && type != ATTN_BF16)
        return attn_cli_place_error(at, "type %s: must be f32, f16, bf16 or f64", attn_cli_element_name(t->type));
    float *data = attn_cli_memory((size_t)t->count * sizeof *data);
    if (!data) return false;
    if (t->type != ELEMENT_F64)
        attn_cli_load(type, t->data, t->count, data);
    else
        for (int64_t i = 0; i < t->count; i++) data[i] = f64_to_f32(((const double *)t->data)[i]);
    free(t->data);
    t->data = data;
    t->type = ELEMENT_F32;
    return true;
}

bool attn_cli_tensor_to_i32(const place *at, tensor *t) {
    if (t->type == ELEMENT_I32) return true;
    if (t->type != ELEMENT_I64) return attn_cli_place_error(at, "type %s: must be i32 or i64", attn_cli_element_name(t->type));
    int32_t *data = attn_cli_memory((size_t)t->count * sizeof *data);
    if (!data) return false;
    for (int64_t i = 0; i < t->count; i++) {
        int64_t value = ((const int64_t *)t->data)[i];
        if (value < INT32_MIN || value > INT32_MAX) {
            free(data);
            return attn_cli_place_error(at, "entry %lld is %lld: must fit into 32 bits", (long long)i, (long long)value);
        }
        data[i] = (int32_t)value;
    }
    free(t->data);
    t->data = data;
    t->type = ELEMENT_I32;
    return true;
}
