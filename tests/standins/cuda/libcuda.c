// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the NVIDIA driver, libcuda.so.1. It implements the calls that pinning makes, with the errors that
// cuda.h documents, and it compiles only against the prototypes of the real header. It checks the ABI and the sequence
// of calls; it cannot show what a real driver does with the memory.
//
// standin.h documents its configuration; besides the options of every stand-in:
//   devices=N             number of devices (at load only; default 1)
//   no_read_only          the devices do not support CU_MEMHOSTREGISTER_READ_ONLY
//   no_managed            the devices have no managed memory
//   no_peers              the devices cannot access one another's memory
//   streams_want_context  a stream's handle works only if its context is current, as with older drivers
//   nvswitch              NVLink joins all devices; by default only neighbours, such as 0 and 1, 2 and 3
//   rates=BUS:LINK        GB/s of each device's bus, in each direction, and of NVLink between two devices: the times of
//                         copies at these rates are added up, see streams.h
//   channels=K            the streams made from now on share K hardware channels; see streams.h
//   lost=FUNCTION:N:CODE  every call is lost that has to do with memory, streams or events
//   alone=DEVICE:WHAT:N:CODE  only one device is lost, and the others continue; see streams.h

#define STANDIN "CUDA"

#include <cuda.h>

#include "standin.h"

enum { MAX_DEVICES = 8, MAX_DEPTH = 16 };
enum { OF_CONTEXT = 8 };  // from this bit on, the flags of a registration hold its context

static int device_count = 1, shared_kib = 227, kernel_ms, read_only_supported = 1, managed_supported = 1, peers_supported = 1, want_context;
static int nvswitch;
static _Atomic pid_t initialised_in;
static struct CUctx_st {
    _Atomic int retained;
    CUstream legacy;  // the default stream
    bool reaches[MAX_DEVICES];
    unsigned long long id;
} primary[2 * MAX_DEVICES];  // and behind them, for each device, one that the program makes
static unsigned long long ids;  // given to contexts and streams so far

static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;

static int device_of(CUcontext context) { return (int)(context - primary) % MAX_DEVICES; }

#include "streams.h"

static int confidential;  // confidential computing: no memory of the program can be registered
static size_t most_registered = SIZE_MAX;  // bytes by one call, a limit of some kernels

static bool standin_option(const char *entry) {
    if (!entry) {
        alone_option(NULL);
        read_only_supported = managed_supported = peers_supported = 1;
        want_context = channel_count = confidential = nvswitch = 0;
        shared_kib = 227;
        kernel_ms = 0;
        begin_times(0, 0);
        most_registered = SIZE_MAX;
    } else if (!strcmp(entry, "no_read_only")) read_only_supported = 0;
    else if (!strcmp(entry, "no_managed")) managed_supported = 0;
    else if (!strcmp(entry, "confidential")) confidential = 1;
    else if (sscanf(entry, "shared_kib=%d", &shared_kib) == 1) return true;
    else if (sscanf(entry, "kernel_ms=%d", &kernel_ms) == 1) return true;
    else if (sscanf(entry, "most_registered=%zu", &most_registered) == 1) return true;
    else if (!strcmp(entry, "no_peers")) peers_supported = 0;
    else if (!strcmp(entry, "nvswitch")) nvswitch = 1;
    else if (sscanf(entry, "rates=%lf:%lf", &bus_rate, &link_rate) == 2) begin_times(bus_rate, link_rate);
    else if (!strcmp(entry, "streams_want_context")) want_context = 1;
    else if (sscanf(entry, "channels=%d", &channel_count) == 1) return channel_count > 0 && channel_count <= MAX_CHANNELS;
    else return alone_option(entry) || sscanf(entry, "devices=%d", &device_count) == 1;
    return true;
}

// When the last copy would have ended at the configured rates, in seconds after their configuration.
double standin_elapsed(void);

double standin_elapsed(void) {
    pthread_mutex_lock(&mutex);
    double elapsed = latest;
    pthread_mutex_unlock(&mutex);
    return elapsed;
}

// ---- what every call does first ----

static CUcontext current(void) {
    return depth && stack[depth - 1] && stack[depth - 1]->retained ? stack[depth - 1] : NULL;
}

static int ordinal(void) { return device_of(current()); }

// In a forked child every call fails, but none waits: another thread may have been in a call at the fork.
static void begin_child(void) { mutex = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER; }
__attribute__((constructor)) static void survive_forks(void) { pthread_atfork(NULL, NULL, begin_child); }

// What a function needs: nothing, the driver initialised, a device that is not lost, and a current context there.
enum needs { NOTHING, DRIVER, WORKING, CONTEXT };

static CUresult check(const char *function, enum needs needs) {
    if (needs >= DRIVER && initialised_in != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    lose(function);
    if (needs >= WORKING && lost) return lost;
    if (needs >= CONTEXT && !current()) return CUDA_ERROR_INVALID_CONTEXT;
    if (needs >= CONTEXT && gone_from(current(), !alone.work)) return alone.code;
    return beside_captures(function);
}

#define ENTER(needs, ...)                             \
    do {                                              \
        CUresult code = enter(__func__, __VA_ARGS__); \
        if (!code) code = check(__func__, needs);     \
        if (code) return code;                        \
    } while (0)

// ---- ranges ----

// The host address of the bytes of one end of a copy, or 0. As on the real driver, a copy may not cross the border of
// a pinned or an allocated range.
static uintptr_t reachable(uintptr_t address, size_t size) {
    struct range *r = holding(address);
    bool pinned_further_on = overlapping(REGISTRATION, address, size) || overlapping(HOST_ALLOCATION, address, size);
    if (!r) return address >= REGISTERED || pinned_further_on ? 0 : address;
    bool by_device_address = address - (r->host + r->shift) < r->size;
    uintptr_t host = by_device_address ? address - r->shift : address;
    if (r->kind == DEVICE_ALLOCATION && !by_device_address) return 0;
    return size <= r->size - (host - r->host) ? host : 0;
}

// ---- initialisation and devices ----

CUresult CUDAAPI cuInit(unsigned int Flags) {
    ENTER(NOTHING, "%u", Flags);
    REQUIRE(device_count, CUDA_ERROR_NO_DEVICE);
    REQUIRE(!initialised_in || initialised_in == getpid(), CUDA_ERROR_NOT_INITIALIZED);
    initialised_in = getpid();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int *driverVersion) {
    ENTER(NOTHING, "");
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int *count) {
    ENTER(DRIVER, "");
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(DRIVER, "%d", ordinal);
    REQUIRE(ordinal >= 0 && ordinal < device_count, CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int len, CUdevice dev) {
    ENTER(DRIVER, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, len, "Stand-in %d", dev);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetPCIBusId(char *pciBusId, int len, CUdevice dev) {
    ENTER(DRIVER, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    snprintf(pciBusId, len, "%08X:%02X:00.0", 1, 0x3b + dev);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    ENTER(DRIVER, "%d %d", attrib, dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    switch (attrib) {
    case CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED: *pi = read_only_supported; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED: *pi = !confidential; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *pi = 9; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *pi = shared_kib << 10; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED: *pi = 1; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: *pi = 1; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: *pi = 0x3b + dev; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: *pi = 0; return CUDA_SUCCESS;
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY: *pi = managed_supported; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

// ---- contexts ----

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    ENTER(DRIVER, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    if (!primary[dev].retained++) primary[dev].id = ++ids;
    pthread_mutex_unlock(&mutex);
    *pctx = &primary[dev];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
    ENTER(DRIVER, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    bool held = primary[dev].retained > 0;
    if (held) --primary[dev].retained;
    pthread_mutex_unlock(&mutex);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    ENTER(DRIVER, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = primary[dev].retained > 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
    ENTER(DRIVER, "%p", (void *)ctx);
    REQUIRE(ctx && ctx->retained && depth < MAX_DEPTH, CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *pctx) {
    ENTER(DRIVER, "");
    REQUIRE(depth, CUDA_ERROR_INVALID_CONTEXT);
    CUcontext popped = stack[--depth];
    if (pctx) *pctx = popped;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
    ENTER(DRIVER, "%p", (void *)ctx);
    if (depth) --depth;
    if (ctx) stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *pctx) {
    ENTER(DRIVER, "");
    *pctx = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxCreate(CUcontext *pctx, CUctxCreateParams *ctxCreateParams, unsigned int flags, CUdevice dev) {
    ENTER(DRIVER, "%u %d", flags, dev);
    REQUIRE(dev >= 0 && dev < device_count && !ctxCreateParams, CUDA_ERROR_INVALID_VALUE);
    CUcontext made = &primary[MAX_DEVICES + dev];
    REQUIRE(!made->retained && depth < MAX_DEPTH, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&mutex);
    *made = (struct CUctx_st){.retained = 1, .id = ++ids};
    pthread_mutex_unlock(&mutex);
    *pctx = stack[depth++] = made;
    return CUDA_SUCCESS;
}

// Its pinned memory is released with it; the threads of its streams stay here.
CUresult CUDAAPI cuCtxDestroy(CUcontext ctx) {
    ENTER(DRIVER, "%p", (void *)ctx);
    REQUIRE(ctx >= primary + MAX_DEVICES && ctx->retained, CUDA_ERROR_INVALID_CONTEXT);
    if (current() == ctx) --depth;
    drain();
    pthread_mutex_lock(&mutex);
    for (struct range **link = &ranges; *link;) {
        struct range *r = *link;
        unsigned const its = r->kind == REGISTRATION ? r->flags >> OF_CONTEXT : r->flags;
        if (r->kind > HOST_ALLOCATION || its != (unsigned)(ctx - primary)) {
            link = &r->next;
            continue;
        }
        *link = r->next;
        unlock_pages(r->host, r->size);
        // Later use of memory that the driver had allocated ends the program.
        if (r->kind == HOST_ALLOCATION) mprotect((void *)r->host, page_end(r->size), PROT_NONE);
        free(r);
    }
    pthread_mutex_unlock(&mutex);
    ctx->retained = 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetId(CUcontext ctx, unsigned long long *ctxId) {
    ENTER(DRIVER, "%p", (void *)ctx);
    REQUIRE(ctx && ctx->retained, CUDA_ERROR_INVALID_CONTEXT);
    *ctxId = ctx->id;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetDevice(CUdevice *device) {
    ENTER(CONTEXT, "");
    *device = ordinal();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetStreamPriorityRange(int *leastPriority, int *greatestPriority) {
    ENTER(CONTEXT, "");
    *leastPriority = 0, *greatestPriority = -5;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSynchronize(void) {
    ENTER(CONTEXT, "");
    drain();
    return lost;
}

CUresult CUDAAPI cuDeviceCanAccessPeer(int *canAccessPeer, CUdevice dev, CUdevice peerDev) {
    ENTER(DRIVER, "%d %d", dev, peerDev);
    REQUIRE(dev >= 0 && dev < device_count && peerDev >= 0 && peerDev < device_count, CUDA_ERROR_INVALID_DEVICE);
    *canAccessPeer = peers_supported && dev != peerDev;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice srcDevice, CUdevice dstDevice) {
    ENTER(DRIVER, "%d %d %d", (int)attrib, srcDevice, dstDevice);
    REQUIRE(srcDevice >= 0 && srcDevice < device_count && dstDevice >= 0 && dstDevice < device_count, CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(srcDevice != dstDevice, CUDA_ERROR_INVALID_DEVICE);
    bool const joined = peers_supported && (nvswitch || srcDevice / 2 == dstDevice / 2);
    *value = attrib == CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED ? joined : 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peerContext, unsigned int Flags) {
    ENTER(CONTEXT, "%p %u", (void *)peerContext, Flags);
    REQUIRE(peerContext && peerContext != current() && peers_supported, CUDA_ERROR_INVALID_DEVICE);
    bool *reaches = &current()->reaches[peerContext - primary];
    REQUIRE(!*reaches, CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED);
    *reaches = true;
    return CUDA_SUCCESS;
}

// ---- host memory ----

CUresult CUDAAPI cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    ENTER(CONTEXT, "%p %zu %u", p, bytesize, Flags);
    uintptr_t host = (uintptr_t)p;
    REQUIRE(host && bytesize && host + bytesize > host && host + bytesize <= REGISTERED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(Flags < 16, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(!confidential, CUDA_ERROR_NOT_SUPPORTED);
    REQUIRE(bytesize <= most_registered, CUDA_ERROR_OUT_OF_MEMORY);
    REQUIRE(read_only_supported || !(Flags & CU_MEMHOSTREGISTER_READ_ONLY), CUDA_ERROR_NOT_SUPPORTED);
    unsigned const flags = Flags | (unsigned)(current() - primary) << OF_CONTEXT;
    pthread_mutex_lock(&mutex);
    CUresult code = CUDA_SUCCESS;
    if (overlapping(REGISTRATION, host, bytesize)) code = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    // The driver returns this for memory that it has allocated itself (seen on an H200, driver 580.159).
    else if (overlapping(HOST_ALLOCATION, host, bytesize)) code = CUDA_ERROR_INVALID_VALUE;
    else if (!add(REGISTRATION, host, REGISTERED, bytesize, flags)) code = CUDA_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&mutex);
    return code;
}

CUresult CUDAAPI cuMemHostUnregister(void *p) {
    ENTER(CONTEXT, "%p", p);
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
    if (channel_count) drain_alone();
    bool found = give_back((uintptr_t)p + REGISTERED, REGISTRATION, REGISTRATION);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    ENTER(CONTEXT, "%p %u", p, Flags);
    uintptr_t address = (uintptr_t)p;
    pthread_mutex_lock(&mutex);
    struct range *r = holding(address);
    bool mapped = r && !Flags && address - r->host < r->size &&
                  (r->kind == HOST_ALLOCATION || (r->kind == REGISTRATION && r->flags & CU_MEMHOSTREGISTER_DEVICEMAP));
    if (mapped) *pdptr = address + r->shift;
    pthread_mutex_unlock(&mutex);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemHostAlloc(void **pp, size_t bytesize, unsigned int Flags) {
    ENTER(CONTEXT, "%zu %u", bytesize, Flags);
    REQUIRE(bytesize, CUDA_ERROR_INVALID_VALUE);
    *pp = (void *)allocate(HOST_ALLOCATION, 0, bytesize, (unsigned)(current() - primary));
    return *pp ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemFreeHost(void *p) {
    ENTER(WORKING, "%p", p);
    drain();
    bool found = give_back((uintptr_t)p, HOST_ALLOCATION, HOST_ALLOCATION);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- device memory ----

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize) {
    ENTER(CONTEXT, "%zu", bytesize);
    REQUIRE(bytesize, CUDA_ERROR_INVALID_VALUE);
    *dptr = allocate(DEVICE_ALLOCATION, DEVICE, bytesize, ordinal());
    return *dptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    ENTER(CONTEXT, "%zu %u", bytesize, flags);
    REQUIRE(bytesize, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(managed_supported, CUDA_ERROR_NOT_SUPPORTED);
    *dptr = allocate(SHARED_ALLOCATION, 0, bytesize, ordinal());
    return *dptr ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr dptr) {
    ENTER(WORKING, "%#llx", dptr);
    drain_alone();
    bool found = give_back(dptr, DEVICE_ALLOCATION, SHARED_ALLOCATION);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- pointers ----

static CUresult tell(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    struct range r = range_at(ptr);
    REQUIRE(r.kind >= 0, CUDA_ERROR_INVALID_VALUE);
    uintptr_t host = ptr - (ptr - r.host < r.size ? 0 : r.shift);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = r.kind >= DEVICE_ALLOCATION ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = r.kind == SHARED_ALLOCATION;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = host + r.shift;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        REQUIRE(r.kind != DEVICE_ALLOCATION, CUDA_ERROR_INVALID_VALUE);
        *(void **)data = (void *)host;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = r.host + r.shift;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = r.size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = r.kind >= DEVICE_ALLOCATION ? (int)r.flags : 0;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    // Only the device pointer depends on the current context.
    bool asks_context = attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER;
    ENTER(asks_context ? CONTEXT : DRIVER, "%d %#llx", attribute, ptr);
    return tell(data, attribute, ptr);
}

// For an unknown pointer, and for an attribute that a pointer lacks, it returns 0 and no error (seen on an H200).
CUresult CUDAAPI cuPointerGetAttributes(unsigned int numAttributes, CUpointer_attribute *attributes, void **data,
                                        CUdeviceptr ptr) {
    ENTER(DRIVER, "%u %#llx", numAttributes, ptr);
    for (unsigned i = 0; i < numAttributes; ++i) {
        if (!tell(data[i], attributes[i], ptr)) continue;
        switch (attributes[i]) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL: *(unsigned *)data[i] = 0; break;
        case CU_POINTER_ATTRIBUTE_IS_MANAGED: *(unsigned char *)data[i] = 0; break;
        default: *(uintptr_t *)data[i] = 0;
        }
    }
    return CUDA_SUCCESS;
}

#include "virtual_calls.h"
#include "stream_calls.h"
#include "copy_calls.h"
#include "batch_calls.h"
#include "graph_calls.h"

// ---- names of errors ----

CUresult CUDAAPI cuGetErrorName(CUresult error, const char **pStr) {
    switch (error) {
#define NAMED(name) case name: *pStr = #name; return CUDA_SUCCESS
    NAMED(CUDA_ERROR_INVALID_VALUE);
    NAMED(CUDA_ERROR_OUT_OF_MEMORY);
    NAMED(CUDA_ERROR_NOT_INITIALIZED);
    NAMED(CUDA_ERROR_INVALID_CONTEXT);
    NAMED(CUDA_ERROR_INVALID_HANDLE);
    NAMED(CUDA_ERROR_NO_DEVICE);
    NAMED(CUDA_ERROR_INVALID_DEVICE);
    NAMED(CUDA_ERROR_STUB_LIBRARY);
    NAMED(CUDA_ERROR_NOT_READY);
    NAMED(CUDA_ERROR_ILLEGAL_ADDRESS);
    NAMED(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    NAMED(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
    NAMED(CUDA_ERROR_LAUNCH_FAILED);
    NAMED(CUDA_ERROR_NOT_SUPPORTED);
    NAMED(CUDA_ERROR_SYSTEM_DRIVER_MISMATCH);
    NAMED(CUDA_ERROR_UNKNOWN);
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult CUDAAPI cuGetErrorString(CUresult error, const char **pStr) { return cuGetErrorName(error, pStr); }

// ---- the one export that cuda.bindings looks up ----

#define FUNCTION(name, since) {#name, (void *)name, (void *)name, since}
#define IN_TWO_FORMS(name, exported, suffix, since) {#name, (void *)exported, (void *)exported##suffix, since}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *symbolStatus) {
    static const struct { const char *name; void *function, *per_thread; int since; } functions[] = {
        IN_TWO_FORMS(cuMemcpyHtoD, cuMemcpyHtoD_v2, _ptds, 3020),
        IN_TWO_FORMS(cuMemcpyDtoH, cuMemcpyDtoH_v2, _ptds, 3020),
        IN_TWO_FORMS(cuMemcpyHtoDAsync, cuMemcpyHtoDAsync_v2, _ptsz, 3020),
        IN_TWO_FORMS(cuMemcpyDtoHAsync, cuMemcpyDtoHAsync_v2, _ptsz, 3020),
        IN_TWO_FORMS(cuMemcpy2D, cuMemcpy2D_v2, _ptds, 3020),
        IN_TWO_FORMS(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned_v2, _ptds, 3020),
        IN_TWO_FORMS(cuMemcpyBatchAsync, cuMemcpyBatchAsync_v2, _ptsz, 13000),  // the first one that is not too new
        IN_TWO_FORMS(cuMemcpyBatchAsync, cuMemcpyBatchAsync, _ptsz, 12080),
        IN_TWO_FORMS(cuMemcpyWithAttributesAsync, cuMemcpyWithAttributesAsync, _ptsz, 13020),
        FUNCTION(cuCtxCreate, 3020),
        FUNCTION(cuCtxDestroy, 4000),
        FUNCTION(cuCtxGetId, 12000),
        FUNCTION(cuStreamGetId, 12000),
        FUNCTION(cuStreamIsCapturing, 10000),
        FUNCTION(cuStreamBeginCapture, 10010),
        FUNCTION(cuStreamEndCapture, 10000),
        FUNCTION(cuThreadExchangeStreamCaptureMode, 10010),
        FUNCTION(cuInit, 2000),
        FUNCTION(cuDriverGetVersion, 2020),
        FUNCTION(cuDeviceGetCount, 2000),
        FUNCTION(cuDeviceGet, 2000),
        FUNCTION(cuDeviceGetName, 2000),
        FUNCTION(cuDeviceGetAttribute, 2000),
        FUNCTION(cuDeviceGetPCIBusId, 4010),
        FUNCTION(cuDevicePrimaryCtxRetain, 7000),
        FUNCTION(cuDevicePrimaryCtxRelease, 11000),
        FUNCTION(cuDevicePrimaryCtxGetState, 7000),
        FUNCTION(cuCtxPushCurrent, 4000),
        FUNCTION(cuCtxPopCurrent, 4000),
        FUNCTION(cuCtxSetCurrent, 4000),
        FUNCTION(cuCtxGetCurrent, 4000),
        FUNCTION(cuCtxGetDevice, 2000),
        FUNCTION(cuCtxGetStreamPriorityRange, 5050),
        FUNCTION(cuCtxSynchronize, 2000),
        FUNCTION(cuCtxEnablePeerAccess, 4000),
        FUNCTION(cuDeviceCanAccessPeer, 4000),
        FUNCTION(cuDeviceGetP2PAttribute, 8000),
        FUNCTION(cuStreamCreate, 2000),
        FUNCTION(cuStreamCreateWithPriority, 5050),
        FUNCTION(cuStreamDestroy, 4000),
        FUNCTION(cuStreamGetCtx, 9020),
        FUNCTION(cuStreamQuery, 2000),
        FUNCTION(cuStreamSynchronize, 2000),
        FUNCTION(cuStreamWaitEvent, 3020),
        FUNCTION(cuStreamWaitValue32, 11070),
        FUNCTION(cuStreamWriteValue32, 11070),
        FUNCTION(cuStreamBatchMemOp, 11070),
        FUNCTION(cuEventCreate, 2000),
        FUNCTION(cuEventDestroy, 4000),
        FUNCTION(cuEventElapsedTime, 2000),
        FUNCTION(cuEventQuery, 2000),
        FUNCTION(cuEventRecord, 2000),
        FUNCTION(cuEventSynchronize, 2000),
        FUNCTION(cuLaunchHostFunc, 10000),
        IN_TWO_FORMS(cuMemcpyAsync, cuMemcpyAsync, _ptsz, 4000),
        IN_TWO_FORMS(cuMemcpy2DAsync, cuMemcpy2DAsync_v2, _ptsz, 3020),
        FUNCTION(cuMemsetD8Async, 3020),
        FUNCTION(cuMemsetD16Async, 3020),
        FUNCTION(cuMemsetD32Async, 3020),
        FUNCTION(cuMemHostRegister, 6050),
        FUNCTION(cuMemHostUnregister, 4000),
        FUNCTION(cuMemHostGetDevicePointer, 3020),
        FUNCTION(cuMemHostAlloc, 2020),
        FUNCTION(cuMemFreeHost, 2000),
        FUNCTION(cuMemAlloc, 3020),
        FUNCTION(cuMemAllocManaged, 6000),
        FUNCTION(cuMemFree, 3020),
        IN_TWO_FORMS(cuMemcpy, cuMemcpy, _ptds, 4000),
        FUNCTION(cuPointerGetAttribute, 4000),
        FUNCTION(cuPointerGetAttributes, 7000),
        FUNCTION(cuGetErrorName, 6000),
        FUNCTION(cuGetErrorString, 6000),
        FUNCTION(cuGetProcAddress, 12000),
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        if (strcmp(functions[i].name, symbol) || cudaVersion < functions[i].since) continue;
        *pfn = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM ? functions[i].per_thread : functions[i].function;
        if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    *pfn = NULL;
    if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}

// The first version of this function.
#undef cuGetProcAddress
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags);
CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, pfn, cudaVersion, flags, NULL);
}
