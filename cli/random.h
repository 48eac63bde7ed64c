/* random.h: reproducible random numbers: xoshiro256** seeded through splitmix64, the same on every machine. */
#ifndef ATTN_CLI_RANDOM_H
#define ATTN_CLI_RANDOM_H
#include "cli.h"

typedef struct generator {
    uint64_t state[4];
} generator;

generator attn_cli_generator(uint64_t seed, uint64_t stream);
uint64_t attn_cli_next(generator *g);
int64_t attn_cli_below(generator *g, int64_t limit);               /* 0 <= result < limit */
int64_t attn_cli_between(generator *g, int64_t low, int64_t high); /* both included */
bool attn_cli_chance(generator *g, int percent);
float attn_cli_normal(generator *g);
/* `count` normal numbers times `scale`, rounded to the type. The normal distribution is drawn by its quantile function in 4,096 straight
 * pieces of equal probability, which ends at 4 standard deviations. */
void attn_cli_normal_fill(generator *g, attn_type type, void *to, int64_t count, float scale);
uint64_t attn_cli_entropy(void); /* a seed of six digits at most, from the clock and the process: easy to type again */
#endif
