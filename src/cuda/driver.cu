/* driver.cu: finds the driver's functions, once (driver.h). */
#include "driver.h"
#include <atomic>

static cudaError_t find(const char *name, unsigned version, void *entry) {
    cudaDriverEntryPointQueryResult result;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, (void **)entry, version, cudaEnableDefault, &result);
    return error == cudaSuccess && result != cudaDriverEntryPointSuccess ? cudaErrorInsufficientDriver : error;
}

const attn_cuda_driver *attn_cuda_driver_of(cudaError_t *error) {
    static attn_cuda_driver kept;
    static std::atomic<bool> found;
    *error = cudaSuccess;
    if (found.load(std::memory_order_acquire)) return &kept;
    attn_cuda_driver driver = {};
    *error = find("cuTensorMapEncodeTiled", 12000, &driver.encode);
    if (*error == cudaSuccess) *error = find("cuCtxGetCurrent", 4000, &driver.get_current);
    if (*error == cudaSuccess) *error = find("cuCtxSetCurrent", 4000, &driver.set_current);
    if (*error != cudaSuccess) return nullptr;
    kept = driver; /* two threads that come at once write the same */
    found.store(true, std::memory_order_release);
    return &kept;
}
