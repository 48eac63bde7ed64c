/* expect.h: reporting and random numbers for the checks of single parts, which need no tensors, contexts or devices. */
#ifndef CHECK_EXPECT_H
#define CHECK_EXPECT_H
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int expect_failures;
static uint64_t expect_state;

/* Prints what failed and its values, and goes on; gives up after 20 failures. */
#define EXPECT(condition, ...)                                                                                                             \
    do {                                                                                                                                   \
        if (!(condition)) {                                                                                                                \
            printf("FAILED %s:%d: %s: ", __FILE__, __LINE__, #condition);                                                                  \
            printf(__VA_ARGS__);                                                                                                           \
            printf("\n");                                                                                                                  \
            if (++expect_failures >= 20) exit(1);                                                                                          \
        }                                                                                                                                  \
    } while (0)

/* The command line is [seed]. */
static inline void expect_begin(int argc, char **argv) {
    expect_state = argc > 1 ? strtoull(argv[1], NULL, 0) : 1;
    printf("%s: seed %" PRIu64 "\n", argv[0], expect_state);
}

static inline int expect_end(void) {
    printf("%d failed\n", expect_failures);
    return expect_failures != 0;
}

/* splitmix64 */
static inline uint64_t expect_random(void) {
    uint64_t z = expect_state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* low <= result <= high */
static inline int64_t expect_between(int64_t low, int64_t high) {
    return low + (int64_t)(expect_random() % ((uint64_t)high - (uint64_t)low + 1));
}
#define EXPECT_PICK(array) ((array)[expect_random() % (sizeof(array) / sizeof((array)[0]))])
#endif
