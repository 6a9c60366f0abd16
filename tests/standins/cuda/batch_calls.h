// SPDX-License-Identifier: Apache-2.0
//
// The calls of the stand-in libcuda.c that make many copies at once. It has two kernels that move parts, which the
// stream's thread executes alike: it reads the list of parts at the kernel's turn; addresses in it are the device's.

// A module, and its one kernel.
struct CUmod_st {
    CUcontext context;
    const char *kernel;
    unsigned int threads;  // of a block
    int shared;            // bytes that a launch must request
};

struct part {
    CUdeviceptr dst, src;
    unsigned long long size;
};

struct launch {
    CUdeviceptr parts;
    unsigned long long count;
};

// A kernel's range may go on in the next one: the pieces of a lock have adjoining addresses.
static void *host_of(CUdeviceptr ptr, size_t size) {
    pthread_mutex_lock(&mutex);
    struct range *r = holding(ptr);
    CUdeviceptr host = r && ptr - r->host >= r->size ? ptr - r->shift : ptr, shift = ptr - host;
    while (r && host + size - r->host > r->size) {
        CUdeviceptr next = r->host + r->size;
        r = holding(next);
        if (r && (r->host != next || (shift && r->shift != shift))) r = NULL;
    }
    if (!r) {
        fprintf(stderr, "libcuda stand-in: a kernel was given %#llx with %zu bytes, which no device reaches\n", ptr, size);
        abort();
    }
    pthread_mutex_unlock(&mutex);
    return (void *)(uintptr_t)host;
}

static void run_move_parts(void *argument) {
    struct launch launch = *(struct launch *)argument;
    free(argument);
    const struct part *parts = host_of(launch.parts, launch.count * sizeof(struct part));
    usleep(1000 * (useconds_t)kernel_ms);
    for (unsigned long long i = 0; i < launch.count; ++i)
        memmove(host_of(parts[i].dst, parts[i].size), host_of(parts[i].src, parts[i].size), parts[i].size);
}

CUresult CUDAAPI cuModuleLoadData(CUmodule *module, const void *image) {
    ENTER(CONTEXT, "");
    bool bulk = strstr(image, ".target sm_90") && strstr(image, ".visible .entry move_parts_in_bulk(");
    REQUIRE(bulk || strstr(image, ".visible .entry move_parts("), CUDA_ERROR_INVALID_IMAGE);
    REQUIRE(!bulk || shared_kib >= 227, CUDA_ERROR_NO_BINARY_FOR_GPU);
    *module = malloc(sizeof **module);
    **module = (struct CUmod_st){current(), bulk ? "move_parts_in_bulk" : "move_parts", bulk ? 256 : 1024, 0};
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleUnload(CUmodule hmod) {
    ENTER(CONTEXT, "%p", (void *)hmod);
    free(hmod);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuModuleGetFunction(CUfunction *hfunc, CUmodule hmod, const char *name) {
    ENTER(CONTEXT, "%p %s", (void *)hmod, name);
    REQUIRE(!strcmp(name, hmod->kernel), CUDA_ERROR_NOT_FOUND);
    *hfunc = (CUfunction)hmod;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuFuncSetAttribute(CUfunction hfunc, CUfunction_attribute attrib, int value) {
    ENTER(CONTEXT, "%d %d", attrib, value);
    REQUIRE(attrib == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES && value >= 0 && value <= shared_kib << 10,
            CUDA_ERROR_INVALID_VALUE);
    ((CUmodule)hfunc)->shared = value;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned int gridDimX, unsigned int gridDimY, unsigned int gridDimZ,
                                unsigned int blockDimX, unsigned int blockDimY, unsigned int blockDimZ,
                                unsigned int sharedMemBytes, CUstream hStream, void **kernelParams, void **extra) {
    ENTER(CONTEXT, "%u %u %p", gridDimX, blockDimX, (void *)hStream);
    CUmodule module = (CUmodule)f;
    REQUIRE(gridDimX && gridDimY == 1 && gridDimZ == 1 && blockDimX == module->threads && blockDimY == 1 &&
                blockDimZ == 1 && (int)sharedMemBytes == module->shared && kernelParams && !extra,
            CUDA_ERROR_INVALID_VALUE);
    REQUIRE(module->context == current(), CUDA_ERROR_INVALID_HANDLE);
    IN_STREAM(hStream, stream);
    struct launch *launch = malloc(sizeof *launch);
    *launch = (struct launch){*(CUdeviceptr *)kernelParams[0], *(unsigned long long *)kernelParams[1]};
    submit(stream, (struct work){.kind = CALL, .function = run_move_parts, .argument = launch});
    return leave(CUDA_SUCCESS);
}

// In order here, on which callers must not rely.
static CUresult copy_batch(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count, CUmemcpyAttributes *attrs,
                           size_t *attrsIdxs, size_t numAttrs, size_t *failIdx, CUstream hStream) {
    if (failIdx) *failIdx = SIZE_MAX;
    REQUIRE((uintptr_t)hStream > 1 && count && numAttrs && numAttrs <= count, CUDA_ERROR_INVALID_VALUE);
    CUstreamCaptureStatus status;
    CUresult known = cuStreamIsCapturing(hStream, &status);
    if (known || status) return known ? known : CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    for (size_t i = 0; i < numAttrs; ++i) {
        REQUIRE(i ? attrsIdxs[i] > attrsIdxs[i - 1] && attrsIdxs[i] < count : attrsIdxs[i] == 0, CUDA_ERROR_INVALID_VALUE);
        REQUIRE(attrs[i].srcAccessOrder >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM &&
                    attrs[i].srcAccessOrder <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY,
                CUDA_ERROR_INVALID_VALUE);
    }
    for (size_t i = 0; i < count; ++i) {
        CUresult code = move_work(
            hStream, (struct work){.kind = COPY, .to = dsts[i], .from = srcs[i], .width = sizes[i], .height = 1});
        if (code && failIdx) *failIdx = i;
        if (code) return code;
    }
    return CUDA_SUCCESS;
}

#define BATCH(name, null, FAIL, failIdx)                                                                              \
    CUresult CUDAAPI name(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,                          \
                          CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs FAIL, CUstream hStream);      \
    CUresult CUDAAPI name(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t count,                          \
                          CUmemcpyAttributes *attrs, size_t *attrsIdxs, size_t numAttrs FAIL, CUstream hStream) {     \
        ENTER(WORKING, "%zu %p", count, (void *)hStream);                                                             \
        CUstream stream = hStream ? hStream : null;                                                                   \
        return copy_batch(dsts, srcs, sizes, count, attrs, attrsIdxs, numAttrs, failIdx, stream);                     \
    }

#define NO_MORE
#define AND_FAILED , size_t *failed
BATCH(cuMemcpyBatchAsync_v2, CU_STREAM_LEGACY, NO_MORE, NULL)
BATCH(cuMemcpyBatchAsync_v2_ptsz, CU_STREAM_PER_THREAD, NO_MORE, NULL)
#undef cuMemcpyBatchAsync
BATCH(cuMemcpyBatchAsync, CU_STREAM_LEGACY, AND_FAILED, failed)
BATCH(cuMemcpyBatchAsync_ptsz, CU_STREAM_PER_THREAD, AND_FAILED, failed)

#define WITH_ATTRIBUTES(name, null)                                                                                   \
    CUresult CUDAAPI name(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr, CUstream hStream); \
    CUresult CUDAAPI name(CUdeviceptr dst, CUdeviceptr src, size_t size, CUmemcpyAttributes *attr, CUstream hStream) { \
        ENTER(WORKING, "%zu %p", size, (void *)hStream);                                                              \
        size_t first = 0;                                                                                             \
        return copy_batch(&dst, &src, &size, 1, attr, &first, attr != NULL, NULL, hStream ? hStream : null);          \
    }

WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync, CU_STREAM_LEGACY)
WITH_ATTRIBUTES(cuMemcpyWithAttributesAsync_ptsz, CU_STREAM_PER_THREAD)
