/* checks.h: the checks of check_cuda.c that stand in files of their own. */
#ifndef CHECK_CUDA_CHECKS_H
#define CHECK_CUDA_CHECKS_H
void check_merges(void);   /* merge.c */
void check_contexts(void); /* driver.c */
void check_holes(void);    /* driver.c */
#endif
