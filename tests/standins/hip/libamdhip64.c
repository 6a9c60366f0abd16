// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for AMD's HIP runtime, libamdhip64.so. It implements the calls that pinning makes, with the errors that
// hip_runtime_api.h documents or, if it documents none, those of the runtime's source (projects/clr/hipamd of
// ROCm/rocm-systems). It compiles only against the prototypes of the real header. It checks the ABI and the sequence of
// calls; it cannot show what a real runtime does with the memory.
//
// The header may be that of any release from HIP 5.2 (Debian 12) on, whatever release hip-python has: what differs
// between them (hipDeviceProp_t with its versioned functions, hipPointerAttribute_t and hipMemoryType) is not used.
//
// As in the runtime, no call must come first, and each failure becomes its thread's last error.
//
// standin.h documents its configuration; besides the options of every stand-in:
//   devices=N          number of devices (at load only; default 1)
//   version=N          what hipRuntimeGetVersion returns (at load only; default HIP 7.2.0)
//   silent_duplicates  as before mid 2026: memory that is already pinned is registered once more
//   no_managed         the devices have no managed memory
//   no_peers           the devices cannot access one another's memory
//   no_wait_value      the devices' streams cannot wait for values
//   signal_memory_only they can, but not in any memory that pinning has; as with GPU_STREAMOPS_CP_WAIT=1

#define STANDIN "HIP"

#include <hip/hip_runtime_api.h>

#include "standin.h"

#define STREAM ihipStream_t
#define EVENT ihipEvent_t
#include "streams.h"

enum { MAX_DEVICES = 8 };

static int device_count = 1, version = 70200000;
static bool silent_duplicates, no_managed, no_peers, no_wait_value, signal_memory_only;
static bool reaches[MAX_DEVICES][MAX_DEVICES];  // whose memory a device may use
static _Atomic pid_t initialised_in;

static _Thread_local int current_device;
static _Thread_local hipError_t last_error;

static bool standin_option(const char *entry) {
    if (!entry) silent_duplicates = no_managed = no_peers = no_wait_value = signal_memory_only = false;
    else if (!strcmp(entry, "silent_duplicates")) silent_duplicates = true;
    else if (!strcmp(entry, "no_managed")) no_managed = true;
    else if (!strcmp(entry, "no_peers")) no_peers = true;
    else if (!strcmp(entry, "no_wait_value")) no_wait_value = true;
    else if (!strcmp(entry, "signal_memory_only")) signal_memory_only = true;
    else return sscanf(entry, "devices=%d", &device_count) == 1 || sscanf(entry, "version=%d", &version) == 1;
    return true;
}

// ---- what every call does first ----

static hipError_t failed(hipError_t code) {
    last_error = code;
    return code;
}

static hipError_t start_runtime(void) {
    REQUIRE(device_count, hipErrorInvalidDevice);  // seen without /dev/kfd, HIP 5.2
    if (!initialised_in) initialised_in = getpid();
    return initialised_in == getpid() ? hipSuccess : hipErrorNotInitialized;
}

#define DEMAND(condition, code) REQUIRE(condition, failed(code))
#define ENTER_UNSTARTED(...)                         \
    do {                                             \
        hipError_t code = enter(__func__, __VA_ARGS__); \
        DEMAND(!code, code);                         \
    } while (0)
#define ENTER(...)                      \
    do {                                \
        ENTER_UNSTARTED(__VA_ARGS__);   \
        hipError_t unstarted = start_runtime(); \
        DEMAND(!unstarted, unstarted);  \
    } while (0)

#define ENTER_WORKING(...)    \
    do {                      \
        ENTER(__VA_ARGS__);   \
        lose(__func__);       \
        DEMAND(!lost, lost);  \
    } while (0)

// ---- initialisation, errors and devices ----

hipError_t hipInit(unsigned int flags) {
    ENTER("%u", flags);
    return hipSuccess;
}

hipError_t hipRuntimeGetVersion(int *runtimeVersion) {
    ENTER_UNSTARTED("");
    *runtimeVersion = version;
    return hipSuccess;
}

hipError_t hipGetLastError(void) {
    hipError_t code = last_error;
    enter(__func__, "");
    last_error = hipSuccess;
    return code;
}

const char *hipGetErrorName(hipError_t hip_error) {
    switch (hip_error) {
#define NAMED(name) case name: return #name
    NAMED(hipErrorInvalidValue);
    NAMED(hipErrorNotInitialized);
    NAMED(hipErrorNoDevice);
    NAMED(hipErrorHostMemoryAlreadyRegistered);
    NAMED(hipErrorOutOfMemory);
    NAMED(hipErrorInvalidDevice);
    NAMED(hipErrorInvalidHandle);
    NAMED(hipErrorContextIsDestroyed);
    NAMED(hipErrorNotReady);
    NAMED(hipErrorHostMemoryNotRegistered);
    NAMED(hipErrorLaunchFailure);
    NAMED(hipErrorNotSupported);
    NAMED(hipErrorUnknown);
#undef NAMED
    default: return "hipErrorUnknown";
    }
}

hipError_t hipGetDeviceCount(int *count) {
    ENTER_UNSTARTED("");
    *count = device_count;
    DEMAND(device_count, hipErrorNoDevice);
    return hipSuccess;
}

hipError_t hipGetDevice(int *deviceId) {
    ENTER("");
    *deviceId = current_device;
    return hipSuccess;
}

hipError_t hipSetDevice(int deviceId) {
    ENTER("%d", deviceId);
    DEMAND(deviceId >= 0 && deviceId < device_count, hipErrorInvalidDevice);
    current_device = deviceId;
    return hipSuccess;
}

hipError_t hipDeviceGetName(char *name, int len, hipDevice_t device) {
    ENTER("%d %d", len, device);
    DEMAND(device >= 0 && device < device_count, hipErrorInvalidDevice);
    snprintf(name, len, "Stand-in %d", device);
    return hipSuccess;
}

hipError_t hipDeviceGetAttribute(int *pi, hipDeviceAttribute_t attr, int deviceId) {
    ENTER("%d %d", attr, deviceId);
    DEMAND(deviceId >= 0 && deviceId < device_count, hipErrorInvalidDevice);
    switch (attr) {
    case hipDeviceAttributePciDomainID: *pi = 1; return hipSuccess;
    case hipDeviceAttributePciBusId: *pi = 0x3b + deviceId; return hipSuccess;
    case hipDeviceAttributePciDeviceId: *pi = 0; return hipSuccess;
    case hipDeviceAttributeManagedMemory: *pi = !no_managed; return hipSuccess;
    case hipDeviceAttributeCanUseStreamWaitValue: *pi = !no_wait_value; return hipSuccess;
    default: return failed(hipErrorInvalidValue);
    }
}

hipError_t hipDeviceCanAccessPeer(int *canAccessPeer, int deviceId, int peerDeviceId) {
    ENTER("%d %d", deviceId, peerDeviceId);
    DEMAND(deviceId >= 0 && deviceId < device_count && peerDeviceId >= 0 && peerDeviceId < device_count,
           hipErrorInvalidDevice);
    *canAccessPeer = !no_peers && deviceId != peerDeviceId;
    return hipSuccess;
}

hipError_t hipDeviceEnablePeerAccess(int peerDeviceId, unsigned int flags) {
    ENTER("%d %u", peerDeviceId, flags);
    DEMAND(peerDeviceId >= 0 && peerDeviceId < device_count && peerDeviceId != current_device, hipErrorInvalidDevice);
    DEMAND(!reaches[current_device][peerDeviceId], hipErrorPeerAccessAlreadyEnabled);
    reaches[current_device][peerDeviceId] = true;
    return hipSuccess;
}

hipError_t hipDeviceSynchronize(void) {
    ENTER_WORKING("");
    drain(current_device);
    DEMAND(!lost, lost);
    return hipSuccess;
}

// ---- ranges ----

// Each device sees registered memory at another address; `holding` knows that of the first device.
static uintptr_t on_current_device(const struct range *r, uintptr_t offset) {
    uintptr_t device = r->kind == REGISTRATION ? (uintptr_t)current_device << 52 : 0;
    return r->host + r->shift + offset + device;
}

static bool pinned(uintptr_t host, size_t size) {
    return overlapping(REGISTRATION, host, size) || overlapping(HOST_ALLOCATION, host, size) ||
           overlapping(SHARED_ALLOCATION, host, size);
}

static hipError_t allocated(int kind, uintptr_t shift, size_t size, void **ptr) {
    DEMAND(ptr, hipErrorInvalidValue);
    *ptr = NULL;
    if (!size) return hipSuccess;
    *ptr = (void *)allocate(kind, shift, size, current_device);
    DEMAND(*ptr, hipErrorOutOfMemory);
    return hipSuccess;
}

// Freed memory may still be in use, so the runtime waits for all work of the device.
static hipError_t freed(void *ptr, int first_kind, int last_kind) {
    drain(current_device);
    bool found = !ptr || give_back((uintptr_t)ptr, first_kind, last_kind);
    DEMAND(found, hipErrorInvalidValue);
    return hipSuccess;
}

// (mutex) The host address of the bytes of one end of a copy, or 0. As in the runtime, a copy that begins in a range
// may not reach past its end.
static uintptr_t reachable(uintptr_t address, size_t size) {
    struct range *r = holding(address);
    if (!r) return address < REGISTERED ? address : 0;
    bool by_host_address = address - r->host < r->size;
    uintptr_t host = by_host_address ? address : address - r->shift;
    if (r->kind == DEVICE_ALLOCATION && by_host_address) return 0;
    return size <= r->size - (host - r->host) ? host : 0;
}

// ---- host memory ----

hipError_t hipHostRegister(void *hostPtr, size_t sizeBytes, unsigned int flags) {
    ENTER("%p %zu %u", hostPtr, sizeBytes, flags);
    uintptr_t host = (uintptr_t)hostPtr;
    DEMAND(host && sizeBytes && host + sizeBytes > host && host + sizeBytes <= REGISTERED, hipErrorInvalidValue);
    DEMAND(!(flags & ~(hipHostRegisterPortable | hipHostRegisterMapped | hipExtHostRegisterCoarseGrained)),
           hipErrorInvalidValue);
    hipError_t code = hipSuccess;
    pthread_mutex_lock(&mutex);
    if (!silent_duplicates && pinned(host, sizeBytes)) code = hipErrorHostMemoryAlreadyRegistered;
    else if (!add(REGISTRATION, host, REGISTERED, sizeBytes, flags)) code = hipErrorInvalidValue;
    pthread_mutex_unlock(&mutex);
    DEMAND(!code, code);
    return hipSuccess;
}

hipError_t hipHostUnregister(void *hostPtr) {
    ENTER("%p", hostPtr);
    DEMAND(hostPtr, hipErrorInvalidValue);
    bool found = give_back((uintptr_t)hostPtr + REGISTERED, REGISTRATION, REGISTRATION);
    DEMAND(found, hipErrorHostMemoryNotRegistered);
    return hipSuccess;
}

hipError_t hipHostGetDevicePointer(void **devPtr, void *hstPtr, unsigned int flags) {
    ENTER("%p %u", hstPtr, flags);
    pthread_mutex_lock(&mutex);
    struct range *r = holding((uintptr_t)hstPtr);
    bool mapped = devPtr && r && !flags && (uintptr_t)hstPtr - r->host < r->size;
    if (mapped) *devPtr = (void *)on_current_device(r, (uintptr_t)hstPtr - r->host);
    pthread_mutex_unlock(&mutex);
    DEMAND(mapped, hipErrorInvalidValue);
    return hipSuccess;
}

hipError_t hipHostMalloc(void **ptr, size_t size, unsigned int flags) {
    ENTER_WORKING("%zu %u", size, flags);
    return allocated(HOST_ALLOCATION, 0, size, ptr);
}

hipError_t hipHostFree(void *ptr) {
    ENTER_WORKING("%p", ptr);
    return freed(ptr, HOST_ALLOCATION, HOST_ALLOCATION);
}

// ---- device memory ----

hipError_t hipMalloc(void **ptr, size_t size) {
    ENTER_WORKING("%zu", size);
    return allocated(DEVICE_ALLOCATION, DEVICE, size, ptr);
}

hipError_t hipMallocManaged(void **dev_ptr, size_t size, unsigned int flags) {
    ENTER_WORKING("%zu %u", size, flags);
    DEMAND(!no_managed, hipErrorNotSupported);
    return allocated(SHARED_ALLOCATION, 0, size, dev_ptr);
}

hipError_t hipFree(void *ptr) {
    ENTER_WORKING("%p", ptr);
    return freed(ptr, DEVICE_ALLOCATION, SHARED_ALLOCATION);
}

hipError_t hipMemcpy(void *dst, const void *src, size_t sizeBytes, hipMemcpyKind kind) {
    ENTER("%p %p %zu %d", dst, src, sizeBytes, kind);
    DEMAND(kind <= hipMemcpyDefault, hipErrorInvalidMemcpyDirection);
    pthread_mutex_lock(&mutex);
    uintptr_t to = reachable((uintptr_t)dst, sizeBytes), from = reachable((uintptr_t)src, sizeBytes);
    pthread_mutex_unlock(&mutex);
    DEMAND(to && from, hipErrorInvalidValue);
    memmove((void *)to, (void *)from, sizeBytes);
    return hipSuccess;
}

// ---- pointers ----

// As in the runtime, the base of registered memory is not returned.
hipError_t hipMemGetAddressRange(hipDeviceptr_t *pbase, size_t *psize, hipDeviceptr_t dptr) {
    ENTER("%p", dptr);
    struct range r = range_at((uintptr_t)dptr);
    DEMAND(r.kind >= 0, hipErrorNotFound);
    *pbase = r.kind == REGISTRATION ? NULL : (void *)(r.host + r.shift);
    *psize = r.size;
    return hipSuccess;
}

hipError_t hipPointerGetAttribute(void *data, hipPointer_attribute attribute, hipDeviceptr_t ptr) {
    ENTER("%d %p", attribute, ptr);
    uintptr_t address = (uintptr_t)ptr;
    struct range r = range_at(address);
    DEMAND(r.kind >= 0 && address && data, hipErrorInvalidValue);
    uintptr_t offset = address - r.host < r.size ? address - r.host : address - r.host - r.shift;
    switch (attribute) {
    case HIP_POINTER_ATTRIBUTE_HOST_POINTER:
        *(uintptr_t *)data = r.kind == DEVICE_ALLOCATION ? 0 : r.host + offset;
        DEMAND(r.kind != DEVICE_ALLOCATION, hipErrorInvalidValue);
        return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_IS_MANAGED:
        *(bool *)data = r.kind == SHARED_ALLOCATION;
        return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR:  // the host address of registered memory, else the device's
        *(uintptr_t *)data = r.kind == REGISTRATION ? r.host : r.host + r.shift;
        return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = r.kind == REGISTRATION ? 0 : (int)r.flags;
        return hipSuccess;
    case HIP_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(uint32_t *)data = r.size;
        return hipSuccess;
    default:
        return failed(hipErrorInvalidValue);
    }
}

#include "stream_calls.h"
