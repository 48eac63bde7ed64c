/* features.h: which ISAs this machine and its operating system can run. */
#ifndef ATTN_FEATURES_H
#define ATTN_FEATURES_H
#include "cpu/kernels.h"

/* The usable kernels, worst first, ending with NULL: scalar always, then each ISA present, up to the one that ATTN_ISA names in the
 * environment. NULL where ATTN_ISA names none that there is. */
enum { ATTN_ISAS_MOST = 8 };
bool attn_usable_kernels(const attn_kernels *usable[ATTN_ISAS_MOST]);
#endif
