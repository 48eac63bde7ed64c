/* stand_in.h: what the stand-in for a plugin counts, and how it is told to fail; the symbol stand_in of its library. */
#ifndef CHECKS_STAND_IN_H
#define CHECKS_STAND_IN_H
#include "attn/attn.h"

typedef struct stand_in_counts {
    attn_status fails; /* what every call gives */
    int index, closed, forwards, held;
    int64_t states;
    attn_args args; /* of the last call */
    attn_problem problem;
} stand_in_counts;
#endif
