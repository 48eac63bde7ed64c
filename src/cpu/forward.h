/* forward.h: runs a checked problem on the CPU's threads. */
#ifndef ATTN_FORWARD_H
#define ATTN_FORWARD_H
#include "plan.h"
#include "pool.h"

void attn_cpu_run_forward(const attn_machine *machine, attn_pool *pool, const attn_problem *problem, const attn_args *args);
void attn_cpu_run_merge(const attn_machine *machine, attn_pool *pool, const attn_problem *problem, const attn_state *states, int64_t count,
                        const attn_args *args);
#endif
