/* tensor.h: a tensor in memory, and its ways in and out of .npy and .safetensors files. */
#ifndef ATTN_CLI_TENSOR_H
#define ATTN_CLI_TENSOR_H
#include "cli.h"
#include <stdio.h>

enum { TENSOR_RANK = 8 };

/* What a file may hold. Not all of it can take part in attention: ELEMENT_OTHER stands for types whose size alone is known. */
typedef enum element {
    ELEMENT_OTHER = 0,
    ELEMENT_F64,
    ELEMENT_F32,
    ELEMENT_F16,
    ELEMENT_BF16,
    ELEMENT_BOOL,
    ELEMENT_U8,
    ELEMENT_I32,
    ELEMENT_I64
} element;

typedef struct tensor {
    element type;
    int rank;
    int64_t shape[TENSOR_RANK];
    int64_t count; /* of elements */
    void *data;    /* rows first, 64-byte aligned, owned; NULL where nothing was read */
} tensor;

/* Where a tensor comes from or goes to: the words that begin a message about it. */
typedef struct place {
    const char *option, *path;
} place;
bool attn_cli_place_error(const place *at, const char *format, ...) __attribute__((format(printf, 2, 3)));

size_t attn_cli_element_size(element type); /* bytes; 0 for ELEMENT_OTHER */
const char *attn_cli_element_name(element type);
attn_type attn_cli_element_type(element type); /* f32, f16, bf16 and bool (u8 too); otherwise ATTN_NONE */
/* The product of the sizes; false where a size is negative or the tensor would not fit into 63 bits of bytes. */
bool attn_cli_count(const int64_t *shape, int rank, size_t element_size, int64_t *count);
void attn_cli_shape_text(const int64_t *shape, int rank, char *text, size_t size); /* "(1, 2, 3)" */

/* Reads by the file's extension. From .safetensors: the tensor `name`, or the only one. The tensor is empty after an error. */
bool attn_cli_tensor_read(const place *at, const char *name, tensor *t);
void attn_cli_tensor_free(tensor *t);
/* In place, where the two differ: f16, bf16, f32 and f64 to f32 (finite values stay finite); i64 to i32 (out of range: an error). */
bool attn_cli_tensor_to_f32(const place *at, tensor *t);
bool attn_cli_tensor_to_i32(const place *at, tensor *t);

/* ---- files, for npy.c and safetensors.c ---- */
bool attn_cli_file_open(const place *at, FILE **file, int64_t *size); /* regular files only */
bool attn_cli_file_read(const place *at, FILE *file, void *to, size_t bytes, const char *what);
bool attn_cli_npy_read(const place *at, tensor *t);

/* ---- safetensors ---- */
typedef struct safetensors safetensors;
bool attn_cli_safetensors_open(const place *at, safetensors **file);
void attn_cli_safetensors_close(safetensors *file);
int attn_cli_safetensors_count(const safetensors *file);
bool attn_cli_safetensors_has(const safetensors *file, const char *name);
bool attn_cli_safetensors_read(safetensors *file, const char *name, tensor *t);      /* name NULL: the only one */
const char *attn_cli_safetensors_metadata(const safetensors *file, const char *key); /* NULL: not there */

/* ---- output: written under another name in the same folder, then renamed ---- */
typedef struct output {
    place at;
    const char *name; /* of the tensor, in .safetensors */
    char temporary[4096];
} output;
/* Before any work: the extension, and a folder that takes files. */
bool attn_cli_output_check(output *out, const char *option, const char *path, const char *name);
bool attn_cli_output_place(output *out, const char *option, const char *path); /* the folder alone, for a file that is no tensor */
bool attn_cli_output_same(const char *a, const char *b); /* whether two names, of files that need not exist, would be one file */
bool attn_cli_output_bytes(output *out, const void *first, size_t first_bytes, const void *second, size_t second_bytes);
bool attn_cli_output_write(output *out, const tensor *t);
bool attn_cli_output_commit(output *out);
void attn_cli_output_drop(output *out); /* removes what was written and not committed */
#endif
