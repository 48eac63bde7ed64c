/* convert.h: element types of tensors in memory: their names and sizes, conversions to and from float32, the spacing of their numbers. */
#ifndef ATTN_CLI_CONVERT_H
#define ATTN_CLI_CONVERT_H
#include "cli.h"

size_t attn_cli_size(attn_type type);                        /* bytes; 0 for ATTN_NONE */
const char *attn_cli_type(attn_type type);                   /* "f32", ...; "none" */
bool attn_cli_type_parse(const char *text, attn_type *type); /* f32, f16 or bf16 */

float attn_cli_from_f16(uint16_t bits);
uint16_t attn_cli_to_f16(float value); /* to nearest even; overflow becomes infinity */
float attn_cli_from_bf16(uint16_t bits);
uint16_t attn_cli_to_bf16(float value);

/* count elements from or to an array of the type; rows of a tensor, say. */
void attn_cli_load(attn_type type, const void *from, int64_t count, float *to);
void attn_cli_store(attn_type type, const float *from, int64_t count, void *to);
float attn_cli_load_one(attn_type type, const void *from, int64_t index);

double attn_cli_ulp(attn_type type, double value);   /* distance between neighbours in the binade of |value|; the least for subnormals */
double attn_cli_clamp(attn_type type, double value); /* what overflows: to the power of two that would follow the largest number */
#endif
