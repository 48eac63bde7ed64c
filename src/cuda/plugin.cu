/* plugin.cu: the device table of libattn_cuda.so: contexts, pointers, memory, and which kernels run. */
#include "driver.h"
#include "maps.h"
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

attn_fail *tell;

/* Makes the context's GPU the current one, in the caller's own CUcontext where that is of this GPU, and puts back what was: that CUcontext,
 * or none. The runtime alone would put the GPU's primary one in its place. */
struct current {
    const attn_cuda_driver *driver;
    CUcontext before;
    bool changed;
    cudaError_t error;
    explicit current(int index) : before(nullptr), changed(false) {
        int device = -1;
        driver = attn_cuda_driver_of(&error);
        if (error == cudaSuccess && driver->get_current(&before) != CUDA_SUCCESS) error = cudaErrorInitializationError;
        if (error == cudaSuccess && before != nullptr) error = cudaGetDevice(&device);
        if (error != cudaSuccess || device == index) return;
        changed = true;
        error = cudaSetDevice(index);
    }
    ~current() {
        if (changed) (void)driver->set_current(before);
    }
};

attn_status status_of(cudaError_t error) {
    if (error == cudaSuccess) return ATTN_OK;
    (void)cudaGetLastError(); /* or the next call would find it */
    if (error == cudaErrorMemoryAllocation) return ATTN_ERROR_OUT_OF_MEMORY;
    char text[300];
    snprintf(text, sizeof text, "CUDA: %s (%s)", cudaGetErrorString(error), cudaGetErrorName(error));
    tell(text);
    return ATTN_ERROR_DRIVER;
}

const attn_cuda_unit *unit_of(const attn_context *context) { return (const attn_cuda_unit *)context->state; }

attn_status look_at(int index, attn_cuda_unit *unit) {
    int count = 0;
    cudaDeviceProp about;
    attn_status status = status_of(cudaGetDeviceCount(&count));
    if (status != ATTN_OK) return status;
    if (index >= count) return ATTN_ERROR_INDEX;
    if ((status = status_of(cudaGetDeviceProperties(&about, index))) != ATTN_OK) return status;
    if (about.major < 8) {
        tell("the GPU is older than compute capability 8.0");
        return ATTN_ERROR_DRIVER;
    }
    unit->index = index;
    unit->processors = about.multiProcessorCount;
    unit->major = about.major;
    return ATTN_OK;
}

attn_status cuda_open(attn_context *context, const attn_options *options) {
    attn_cuda_unit unit = {};
    attn_status status = look_at(options->index, &unit);
    if (status != ATTN_OK) return status;
    const char *best = unit.major == 9 ? "sm90" : "general", *isa = options->isa != nullptr ? options->isa : best;
    if (strcmp(isa, "general") != 0 && strcmp(isa, best) != 0) return ATTN_ERROR_ISA;
    snprintf(unit.isa, sizeof unit.isa, "%s", isa);
    unit.general = strcmp(isa, "general") == 0;
    unit.fast = options->precision == ATTN_FAST;
    unit.forced_chunk = options->chunk;
    unit.forced_passes = options->passes;
    attn_cuda_unit *kept = (attn_cuda_unit *)malloc(sizeof unit);
    if (kept == nullptr) return ATTN_ERROR_OUT_OF_MEMORY;
    *kept = unit;
    context->state = kept;
    return ATTN_OK;
}

void cuda_close(attn_context *context) { free(context->state); }

void cuda_describe(const attn_context *context, attn_description *description) {
    description->threads = 1;
    description->isa = unit_of(context)->isa;
    description->isas = unit_of(context)->major == 9 ? "general sm90" : "general";
    description->pool = "none";
}

size_t cuda_workspace(const attn_context *context, const attn_problem *problem) {
    return attn_cuda_plan_of(unit_of(context), problem).workspace;
}

/* Memory that the GPU can reach: its own, managed, or the host's where that is registered. */
bool reachable(const attn_cuda_unit *unit, const void *pointer) {
    cudaPointerAttributes about;
    if (pointer == nullptr) return true;
    if (cudaPointerGetAttributes(&about, pointer) != cudaSuccess) return (void)cudaGetLastError(), false;
    if (about.type == cudaMemoryTypeDevice && about.device != unit->index) return false;
    return about.type != cudaMemoryTypeUnregistered && about.devicePointer != nullptr;
}

attn_status args_reachable(const attn_cuda_unit *unit, const attn_args *a) {
    const void *all[] = { a->q, a->k, a->v, a->out, a->lse, a->mask, a->sinks, a->slopes, a->len_q, a->len_kv, a->workspace };
    for (const void *pointer : all)
        if (!reachable(unit, pointer)) return ATTN_ERROR_HOST_POINTER;
    return ATTN_OK;
}

/* What a plan cannot know of. */
bool fits(attn_cuda_way way, const attn_args *a) {
    return a->slopes == nullptr && attn_cuda_aligned(a->k) && attn_cuda_aligned(a->v) &&
           (way == ATTN_CUDA_DECODE || attn_cuda_aligned(a->q));
}

attn_status cuda_forward(attn_context *context, const attn_problem *problem, const attn_args *args) {
    const attn_cuda_unit *unit = unit_of(context);
    const current gpu(unit->index);
    if (gpu.error != cudaSuccess) return status_of(gpu.error);
    const attn_status status = args_reachable(unit, args);
    if (status != ATTN_OK) return status;
    const attn_cuda_call call = { *problem, *args };
    attn_cuda_plan plan = attn_cuda_plan_of(unit, problem);
    cudaError_t error = cudaErrorNotSupported; /* by Hopper's kernels; nothing is started then */
    if (plan.way != ATTN_CUDA_GENERAL && fits(plan.way, args))
        error = plan.way == ATTN_CUDA_DECODE ? attn_cuda_decode(&plan, unit, &call) : attn_cuda_prefill(unit, &call);
    if (error != cudaErrorNotSupported) return status_of(error);
    if (plan.way != ATTN_CUDA_GENERAL) plan = attn_cuda_plan_without(unit, problem);
    return status_of(attn_cuda_general(&plan, &call));
}

attn_status cuda_merge(attn_context *context, const attn_problem *problem, const attn_state *states, int64_t count, const attn_args *args) {
    const attn_cuda_unit *unit = unit_of(context);
    const current gpu(unit->index);
    if (gpu.error != cudaSuccess) return status_of(gpu.error);
    const attn_status status = args_reachable(unit, args);
    if (status != ATTN_OK) return status;
    for (int64_t i = 0; i < count; i++)
        if (!reachable(unit, states[i].out) || !reachable(unit, states[i].lse)) return ATTN_ERROR_HOST_POINTER;
    const attn_cuda_call call = { *problem, *args };
    return status_of(attn_cuda_merge(&call, states, count));
}

void cuda_explain(const attn_context *context, const attn_problem *problem, attn_explanation *explanation) {
    const attn_cuda_plan plan = attn_cuda_plan_of(unit_of(context), problem);
    explanation->passes = plan.passes;
    explanation->threads = 1;
    explanation->chunk = plan.chunk;
    explanation->chunks = plan.chunks;
    explanation->rows = plan.rows;
    explanation->jobs = plan.jobs;
    explanation->workspace = plan.workspace;
    explanation->isa = unit_of(context)->isa;
    explanation->kernel = plan.kernel;
    explanation->weight_error = plan.weight_error;
    attn_problem_work(problem, &explanation->bytes, &explanation->operations);
    if (plan.slow != nullptr)
        snprintf(explanation->reason, sizeof explanation->reason, "%s; general: %s", plan.reason, plan.slow);
    else if (plan.way == ATTN_CUDA_GENERAL)
        snprintf(explanation->reason, sizeof explanation->reason, "%s", plan.reason);
    else
        snprintf(explanation->reason, sizeof explanation->reason, "%s; general with slopes, or tensors not at multiples of 16 bytes",
                 plan.reason);
}

attn_status cuda_measure(attn_context *context, attn_ceiling ceiling, double *per_second) {
    const current gpu(unit_of(context)->index);
    return status_of(gpu.error != cudaSuccess ? gpu.error : attn_cuda_measure(unit_of(context), ceiling, per_second));
}

attn_status cuda_alloc(attn_context *context, size_t bytes, void **memory) {
    const current gpu(unit_of(context)->index);
    return status_of(gpu.error != cudaSuccess ? gpu.error : cudaMalloc(memory, bytes));
}

void cuda_release(attn_context *context, void *memory) {
    if (memory == nullptr) return; /* CUDA would make itself a context for it */
    const current gpu(unit_of(context)->index);
    if (gpu.error == cudaSuccess) (void)status_of(cudaFree(memory));
}

attn_status cuda_copy(attn_context *context, void *to, const void *from, size_t bytes) {
    const current gpu(unit_of(context)->index);
    return status_of(gpu.error != cudaSuccess ? gpu.error : cudaMemcpy(to, from, bytes, cudaMemcpyDefault));
}

attn_status cuda_wait(attn_context *context) {
    const current gpu(unit_of(context)->index);
    return status_of(gpu.error != cudaSuccess ? gpu.error : cudaDeviceSynchronize());
}

const attn_device_table cuda_table = { ATTN_DEVICE_ABI, "cuda",         true,         cuda_open,  cuda_close,
                                       cuda_describe,   cuda_workspace, cuda_forward, cuda_merge, cuda_explain,
                                       cuda_measure,    cuda_alloc,     cuda_release, cuda_copy,  cuda_wait };

} // namespace

extern "C" __attribute__((visibility("default"))) const attn_device_table *attn_plugin(uint32_t abi, size_t context_size, attn_fail *fail) {
    if (abi != ATTN_DEVICE_ABI || context_size != sizeof(attn_context)) return nullptr;
    tell = fail;
    return &cuda_table;
}
