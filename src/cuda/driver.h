/* driver.h: the functions of the driver that the runtime has no other name for. */
#ifndef ATTN_DRIVER_H
#define ATTN_DRIVER_H
#include <cuda.h>
#include <cuda_runtime.h>

struct attn_cuda_driver {
    decltype(&cuTensorMapEncodeTiled) encode;
    decltype(&cuCtxGetCurrent) get_current;
    decltype(&cuCtxSetCurrent) set_current;
};

/* NULL, and the error, where there is no driver. */
const attn_cuda_driver *attn_cuda_driver_of(cudaError_t *error);
#endif
