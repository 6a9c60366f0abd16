// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the loader of Unified Runtime, libur_loader.so.0, with its own adapters. It implements the calls that
// pinning makes, with the errors that ur_api.h documents, and it compiles only against the prototypes of the real
// header. It checks the ABI and the sequence of calls; it cannot show what a real adapter does with the memory.
//
// Its first adapter is called Level Zero and can lock host memory. If the header leaves the error open: a size that is
// not of whole pages is INVALID_SIZE, pages that are not mapped or not aligned are INVALID_VALUE, and pages of which
// some are already registered or allocated are OVERLAPPING_REGIONS. An import never fails: it pins what it can.
//
// With OLD defined it is the loader of 2025.2: urPlatformGet takes an array, and nothing can be registered.
//
// standin.h documents its configuration; besides the options of every stand-in:
//   devices=N    number of Level Zero devices (at load only; default 1)
//   opencl       a second adapter, OpenCL, with one device for which nothing can be locked (at load only)
//   adapters=N   number of adapters, 0 or 1 (at load only)
//   no_register  the Level Zero adapter does not support urUSMHostAllocRegisterExp
//   no_import    it does not support urUSMImportExp
//   no_host_task its queues cannot call host functions
//   no_shared    it has no shared memory
//   no_peers     its devices cannot access one another's memory

#define STANDIN "UR"

#include <stdbool.h>  // which ur_api.h needs in C
#include <unified-runtime/ur_api.h>
#include <unified-runtime/ur_print.h>

#include "standin.h"

#define STREAM ur_queue_handle_t_
#define EVENT ur_event_handle_t_
#include "streams.h"

enum { MAX_DEVICES = 8, LEVEL_ZERO = 0, OPENCL = 1 };

// Handles point to these; each knows its adapter, LEVEL_ZERO or OPENCL.
struct ur_adapter_handle_t_ { int adapter; } adapters[] = {{LEVEL_ZERO}, {OPENCL}};
struct ur_platform_handle_t_ { int adapter; } platforms[] = {{LEVEL_ZERO}, {OPENCL}};
struct ur_device_handle_t_ { int adapter; } devices[MAX_DEVICES], opencl_device = {OPENCL};
struct ur_context_handle_t_ { int adapter; };

static uint32_t device_count = 1, adapter_count = 1;
static bool no_register, no_import, no_host_task, no_shared, no_peers;
static _Atomic pid_t initialised_in;

static bool standin_option(const char *entry) {
    if (!entry) no_register = no_import = no_host_task = no_shared = no_peers = false;
    else if (!strcmp(entry, "no_host_task")) no_host_task = true;
    else if (!strcmp(entry, "no_shared")) no_shared = true;
    else if (!strcmp(entry, "no_peers")) no_peers = true;
    else if (!strcmp(entry, "no_register")) no_register = true;
    else if (!strcmp(entry, "no_import")) no_import = true;
    else if (!strcmp(entry, "opencl")) adapter_count = 2;
    else if (sscanf(entry, "adapters=%u", &adapter_count) != 1)
        return sscanf(entry, "devices=%u", &device_count) == 1 && device_count <= MAX_DEVICES;
    return true;
}

// ---- what every call does first ----

#define ENTER(...)                                                                       \
    do {                                                                                 \
        int failure = enter(__func__, __VA_ARGS__);                                      \
        if (failure) return failure;                                                     \
        if (initialised_in != getpid()) return UR_RESULT_ERROR_UNINITIALIZED;            \
    } while (0)
#define ENTER_WORKING(...)     \
    do {                       \
        ENTER(__VA_ARGS__);    \
        lose(__func__);        \
        REQUIRE(!lost, lost);  \
    } while (0)
#define REQUIRE_HANDLE(handle) REQUIRE(handle, UR_RESULT_ERROR_INVALID_NULL_HANDLE)
#define REQUIRE_POINTER(pointer) REQUIRE(pointer, UR_RESULT_ERROR_INVALID_NULL_POINTER)

// What every function that lists handles does with its last three arguments.
#define LIST(count, handle, entries, list, total)                            \
    do {                                                                     \
        REQUIRE(!(list) == !(entries), UR_RESULT_ERROR_INVALID_SIZE);        \
        REQUIRE((list) || (total), UR_RESULT_ERROR_INVALID_VALUE);           \
        for (uint32_t i = 0; i < (entries) && i < (count); ++i) (list)[i] = (handle); \
        if (total) *(total) = (count);                                       \
        return UR_RESULT_SUCCESS;                                            \
    } while (0)

// What every function that returns a property does with its last three arguments.
static ur_result_t tell(const void *property, size_t length, size_t size, void *value, size_t *size_ret) {
    REQUIRE(!size == !value, size ? UR_RESULT_ERROR_INVALID_NULL_POINTER : UR_RESULT_ERROR_INVALID_SIZE);
    REQUIRE(!value || size >= length, UR_RESULT_ERROR_INVALID_SIZE);
    if (value) memcpy(value, property, length);
    if (size_ret) *size_ret = length;
    return UR_RESULT_SUCCESS;
}

// ---- the loader ----

ur_result_t UR_APICALL urLoaderInit(ur_device_init_flags_t device_flags, ur_loader_config_handle_t hLoaderConfig) {
    int failure = enter(__func__, "%u %p", device_flags, (void *)hLoaderConfig);
    REQUIRE(!failure, failure);
    REQUIRE(!(device_flags & UR_DEVICE_INIT_FLAGS_MASK), UR_RESULT_ERROR_INVALID_ENUMERATION);
    initialised_in = getpid();
    return UR_RESULT_SUCCESS;
}

// It is no call of a driver, so it is not logged and cannot be made to fail.
ur_result_t UR_APICALL urPrintResult(enum ur_result_t value, char *buffer, const size_t buff_size, size_t *out_size) {
    const char *name = "unknown enumerator";
    switch (value) {
#define NAMED(result) case result: name = #result; break
    NAMED(UR_RESULT_ERROR_INVALID_VALUE);
    NAMED(UR_RESULT_ERROR_INVALID_CONTEXT);
    NAMED(UR_RESULT_ERROR_INVALID_PLATFORM);
    NAMED(UR_RESULT_ERROR_DEVICE_LOST);
    NAMED(UR_RESULT_ERROR_INVALID_DEVICE);
    NAMED(UR_RESULT_ERROR_UNINITIALIZED);
    NAMED(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
    NAMED(UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    NAMED(UR_RESULT_ERROR_INVALID_NULL_HANDLE);
    NAMED(UR_RESULT_ERROR_INVALID_NULL_POINTER);
    NAMED(UR_RESULT_ERROR_INVALID_SIZE);
    NAMED(UR_RESULT_ERROR_INVALID_ENUMERATION);
    NAMED(UR_RESULT_ERROR_OVERLAPPING_REGIONS);
    NAMED(UR_RESULT_ERROR_INVALID_USM_SIZE);
    NAMED(UR_RESULT_ERROR_PROFILING_INFO_NOT_AVAILABLE);
    NAMED(UR_RESULT_ERROR_UNKNOWN);
    default: break;
    }
    int length = snprintf(buffer, buff_size, "%s", name) + 1;
    if (out_size) *out_size = length;
    return (size_t)length <= buff_size ? UR_RESULT_SUCCESS : UR_RESULT_ERROR_INVALID_SIZE;
}

// ---- adapters, platforms and devices ----

ur_result_t UR_APICALL urAdapterGet(uint32_t NumEntries, ur_adapter_handle_t *phAdapters, uint32_t *pNumAdapters) {
    ENTER("%u", NumEntries);
    LIST(adapter_count, &adapters[i], NumEntries, phAdapters, pNumAdapters);
}

ur_result_t UR_APICALL urAdapterGetInfo(ur_adapter_handle_t hAdapter, ur_adapter_info_t propName, size_t propSize,
                                        void *pPropValue, size_t *pPropSizeRet) {
    ENTER("%p %d", (void *)hAdapter, propName);
    REQUIRE_HANDLE(hAdapter);
    REQUIRE(propName == UR_ADAPTER_INFO_BACKEND, UR_RESULT_ERROR_INVALID_ENUMERATION);
    ur_backend_t backend = hAdapter->adapter == OPENCL ? UR_BACKEND_OPENCL : UR_BACKEND_LEVEL_ZERO;
    return tell(&backend, sizeof backend, propSize, pPropValue, pPropSizeRet);
}

#ifdef OLD
void urGetGlobalProcAddrTable(void);
void urGetGlobalProcAddrTable(void) {}

ur_result_t old_platform_get(ur_adapter_handle_t *, uint32_t, uint32_t, ur_platform_handle_t *, uint32_t *)
    __asm__("urPlatformGet");
ur_result_t old_platform_get(ur_adapter_handle_t *phAdapters, uint32_t NumAdapters, uint32_t NumEntries,
                             ur_platform_handle_t *phPlatforms, uint32_t *pNumPlatforms) {
    REQUIRE_POINTER(phAdapters);
    REQUIRE(NumAdapters == 1, UR_RESULT_ERROR_INVALID_SIZE);
    ur_adapter_handle_t hAdapter = *phAdapters;
#else
ur_result_t UR_APICALL urPlatformGet(ur_adapter_handle_t hAdapter, uint32_t NumEntries,
                                     ur_platform_handle_t *phPlatforms, uint32_t *pNumPlatforms) {
#endif
    int failure = enter("urPlatformGet", "%p %u", (void *)hAdapter, NumEntries);
    REQUIRE(!failure, failure);
    REQUIRE(initialised_in == getpid(), UR_RESULT_ERROR_UNINITIALIZED);
    REQUIRE_HANDLE(hAdapter);
    LIST(1u, &platforms[hAdapter->adapter + i], NumEntries, phPlatforms, pNumPlatforms);
}

ur_result_t UR_APICALL urPlatformGetInfo(ur_platform_handle_t hPlatform, ur_platform_info_t propName, size_t propSize,
                                         void *pPropValue, size_t *pSizeRet) {
    ENTER("%p %d", (void *)hPlatform, propName);
    REQUIRE_HANDLE(hPlatform);
    REQUIRE(propName == UR_PLATFORM_INFO_BACKEND, UR_RESULT_ERROR_INVALID_ENUMERATION);
    ur_backend_t backend = hPlatform->adapter == OPENCL ? UR_BACKEND_OPENCL : UR_BACKEND_LEVEL_ZERO;
    return tell(&backend, sizeof backend, propSize, pPropValue, pSizeRet);
}

ur_result_t UR_APICALL urPlatformGetApiVersion(ur_platform_handle_t hPlatform, ur_api_version_t *pVersion) {
    ENTER("%p", (void *)hPlatform);
    REQUIRE_HANDLE(hPlatform);
    REQUIRE_POINTER(pVersion);
    *pVersion = UR_API_VERSION_CURRENT;
    return UR_RESULT_SUCCESS;
}

ur_result_t UR_APICALL urDeviceGetSelected(ur_platform_handle_t hPlatform, ur_device_type_t DeviceType,
                                           uint32_t NumEntries, ur_device_handle_t *phDevices, uint32_t *pNumDevices) {
    ENTER("%p %d %u", (void *)hPlatform, DeviceType, NumEntries);
    REQUIRE_HANDLE(hPlatform);
    REQUIRE(DeviceType == UR_DEVICE_TYPE_ALL, UR_RESULT_ERROR_INVALID_ENUMERATION);
    bool opencl = hPlatform->adapter == OPENCL;
    LIST(opencl ? 1 : device_count, opencl ? &opencl_device : &devices[i], NumEntries, phDevices, pNumDevices);
}

ur_result_t UR_APICALL urDeviceGetInfo(ur_device_handle_t hDevice, ur_device_info_t propName, size_t propSize,
                                       void *pPropValue, size_t *pPropSizeRet) {
    ENTER("%p %d", (void *)hDevice, propName);
    REQUIRE_HANDLE(hDevice);
    char name[32];
    bool opencl = hDevice->adapter == OPENCL;
    ur_bool_t tasks = !opencl && !no_host_task;
    ur_platform_handle_t platform = &platforms[hDevice->adapter];
    ur_device_usm_access_capability_flags_t usm = UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_ACCESS;
    switch ((int)propName) {
    case UR_DEVICE_INFO_NAME: break;
    case UR_DEVICE_INFO_PLATFORM: return tell(&platform, sizeof platform, propSize, pPropValue, pPropSizeRet);
    case UR_DEVICE_INFO_USM_SINGLE_SHARED_SUPPORT: if (no_shared) usm = 0;  // fall through
    case UR_DEVICE_INFO_USM_HOST_SUPPORT:
    case UR_DEVICE_INFO_USM_DEVICE_SUPPORT: return tell(&usm, sizeof usm, propSize, pPropValue, pPropSizeRet);
    case UR_DEVICE_INFO_ENQUEUE_HOST_TASK_SUPPORT_EXP:
        REQUIRE(!opencl, UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION);  // as in an adapter older than the loader
        return tell(&tasks, sizeof tasks, propSize, pPropValue, pPropSizeRet);
    default: return UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION;
    }
    int length = snprintf(name, sizeof name, "Stand-in %d", opencl ? 0 : (int)(hDevice - devices)) + 1;
    return tell(name, length, propSize, pPropValue, pPropSizeRet);
}

static int device_number(ur_device_handle_t device) {
    return device->adapter == OPENCL ? MAX_DEVICES : (int)(device - devices);
}

static bool reaches[MAX_DEVICES][MAX_DEVICES];  // whose memory a device may use

ur_result_t UR_APICALL urUsmP2PPeerAccessGetInfoExp(ur_device_handle_t commandDevice, ur_device_handle_t peerDevice,
                                                    ur_exp_peer_info_t propName, size_t propSize, void *pPropValue,
                                                    size_t *pPropSizeRet) {
    ENTER("%p %p %d", (void *)commandDevice, (void *)peerDevice, propName);
    REQUIRE_HANDLE(commandDevice && peerDevice);
    REQUIRE(commandDevice->adapter == LEVEL_ZERO, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    int can = !no_peers;
    return tell(&can, sizeof can, propSize, pPropValue, pPropSizeRet);
}

ur_result_t UR_APICALL urUsmP2PEnablePeerAccessExp(ur_device_handle_t commandDevice, ur_device_handle_t peerDevice) {
    ENTER("%p %p", (void *)commandDevice, (void *)peerDevice);
    REQUIRE_HANDLE(commandDevice && peerDevice);
    bool *now = &reaches[device_number(commandDevice)][device_number(peerDevice)];
    REQUIRE(!*now, UR_RESULT_ERROR_INVALID_OPERATION);
    *now = true;
    return UR_RESULT_SUCCESS;
}

// ---- contexts ----

static _Atomic int contexts;  // alive

int standin_handles(void);
int standin_handles(void) { return contexts + live.streams; }

ur_result_t UR_APICALL urContextCreate(uint32_t DeviceCount, const ur_device_handle_t *phDevices,
                                       const ur_context_properties_t *pProperties, ur_context_handle_t *phContext) {
    ENTER("%u %p", DeviceCount, (void *)pProperties);
    REQUIRE_POINTER(phDevices && phContext);
    REQUIRE(DeviceCount, UR_RESULT_ERROR_INVALID_SIZE);
    for (uint32_t i = 0; i < DeviceCount; ++i) {
        REQUIRE_HANDLE(phDevices[i]);
        REQUIRE(phDevices[i]->adapter == phDevices[0]->adapter, UR_RESULT_ERROR_INVALID_DEVICE);
    }
    *phContext = malloc(sizeof **phContext);
    (*phContext)->adapter = phDevices[0]->adapter;
    ++contexts;
    return UR_RESULT_SUCCESS;
}

ur_result_t UR_APICALL urContextRelease(ur_context_handle_t hContext) {
    ENTER("%p", (void *)hContext);
    REQUIRE_HANDLE(hContext);
    free(hContext);
    --contexts;
    return UR_RESULT_SUCCESS;
}

// ---- locking of host memory ----

static bool allocated(uintptr_t host, size_t size) {
    return overlapping(HOST_ALLOCATION, host, size) || overlapping(SHARED_ALLOCATION, host, size);
}

#ifndef OLD
ur_result_t UR_APICALL urUSMHostAllocRegisterExp(ur_context_handle_t hContext, void *pHostMem, size_t size,
                                                 const ur_exp_usm_host_alloc_register_properties_t *pProperties) {
    ENTER("%p %p %zu %d", (void *)hContext, pHostMem, size, pProperties ? (int)pProperties->flags : 0);
    REQUIRE_HANDLE(hContext);
    REQUIRE_POINTER(pHostMem);
    uintptr_t host = (uintptr_t)pHostMem;
    if (pProperties) {
        bool right_type = pProperties->stype == UR_STRUCTURE_TYPE_EXP_USM_HOST_ALLOC_REGISTER_PROPERTIES;
        REQUIRE(right_type && !pProperties->pNext, UR_RESULT_ERROR_INVALID_ENUMERATION);
        REQUIRE(!(pProperties->flags & UR_EXP_USM_HOST_ALLOC_REGISTER_FLAGS_MASK), UR_RESULT_ERROR_INVALID_ENUMERATION);
    }
    REQUIRE(hContext->adapter == LEVEL_ZERO && !no_register, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    REQUIRE(size && host % PAGE == 0, UR_RESULT_ERROR_INVALID_VALUE);
    REQUIRE(size % PAGE == 0, UR_RESULT_ERROR_INVALID_SIZE);
    pthread_mutex_lock(&mutex);
    ur_result_t result = UR_RESULT_SUCCESS;
    if (overlapping(REGISTRATION, host, size) || allocated(host, size)) result = UR_RESULT_ERROR_OVERLAPPING_REGIONS;
    else if (!add(REGISTRATION, host, 0, size, pProperties ? pProperties->flags : 0)) result = UR_RESULT_ERROR_INVALID_VALUE;
    pthread_mutex_unlock(&mutex);
    return result;
}

ur_result_t UR_APICALL urUSMHostAllocUnregisterExp(ur_context_handle_t hContext, void *pHostMem) {
    ENTER("%p %p", (void *)hContext, pHostMem);
    REQUIRE_HANDLE(hContext);
    REQUIRE_POINTER(pHostMem);
    REQUIRE(hContext->adapter == LEVEL_ZERO && !no_register, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    bool found = give_back((uintptr_t)pHostMem, REGISTRATION, REGISTRATION);
    return found ? UR_RESULT_SUCCESS : UR_RESULT_ERROR_INVALID_VALUE;
}
#endif

ur_result_t UR_APICALL urUSMImportExp(ur_context_handle_t hContext, void *pMem, size_t size) {
    ENTER("%p %p %zu", (void *)hContext, pMem, size);
    REQUIRE_HANDLE(hContext);
    REQUIRE_POINTER(pMem);
    REQUIRE(hContext->adapter == LEVEL_ZERO && !no_import, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    uintptr_t host = (uintptr_t)pMem;
    pthread_mutex_lock(&mutex);
    if (!overlapping(REGISTRATION, host, size) && !allocated(host, size)) add(REGISTRATION, host, 0, size, 0);
    pthread_mutex_unlock(&mutex);
    return UR_RESULT_SUCCESS;
}

ur_result_t UR_APICALL urUSMReleaseExp(ur_context_handle_t hContext, void *pMem) {
    ENTER("%p %p", (void *)hContext, pMem);
    REQUIRE_HANDLE(hContext);
    REQUIRE_POINTER(pMem);
    REQUIRE(hContext->adapter == LEVEL_ZERO && !no_import, UR_RESULT_ERROR_UNSUPPORTED_FEATURE);
    give_back((uintptr_t)pMem, REGISTRATION, REGISTRATION);
    return UR_RESULT_SUCCESS;
}

// ---- memory ----

static ur_result_t allocate_usm(int kind, uintptr_t shift, ur_device_handle_t device, size_t size, void **memory) {
    REQUIRE_POINTER(memory);
    REQUIRE(size && size < DEVICE, UR_RESULT_ERROR_INVALID_USM_SIZE);
    uintptr_t address = allocate(kind, shift, size, device ? device_number(device) : 0);
    REQUIRE(address, UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY);
    *memory = (void *)address;
    return UR_RESULT_SUCCESS;
}

ur_result_t UR_APICALL urUSMHostAlloc(ur_context_handle_t hContext, const ur_usm_desc_t *pUSMDesc,
                                      ur_usm_pool_handle_t pool, size_t size, void **ppMem) {
    ENTER_WORKING("%p %p %p %zu", (void *)hContext, (void *)pUSMDesc, (void *)pool, size);
    REQUIRE_HANDLE(hContext);
    return allocate_usm(HOST_ALLOCATION, 0, NULL, size, ppMem);
}

ur_result_t UR_APICALL urUSMDeviceAlloc(ur_context_handle_t hContext, ur_device_handle_t hDevice,
                                        const ur_usm_desc_t *pUSMDesc, ur_usm_pool_handle_t pool, size_t size,
                                        void **ppMem) {
    ENTER_WORKING("%p %p %p %p %zu", (void *)hContext, (void *)hDevice, (void *)pUSMDesc, (void *)pool, size);
    REQUIRE_HANDLE(hContext && hDevice);
    return allocate_usm(DEVICE_ALLOCATION, DEVICE, hDevice, size, ppMem);
}

ur_result_t UR_APICALL urUSMSharedAlloc(ur_context_handle_t hContext, ur_device_handle_t hDevice,
                                        const ur_usm_desc_t *pUSMDesc, ur_usm_pool_handle_t pool, size_t size,
                                        void **ppMem) {
    ENTER_WORKING("%p %p %p %p %zu", (void *)hContext, (void *)hDevice, (void *)pUSMDesc, (void *)pool, size);
    REQUIRE_HANDLE(hContext && hDevice);
    return allocate_usm(SHARED_ALLOCATION, 0, hDevice, size, ppMem);
}

ur_result_t UR_APICALL urUSMFree(ur_context_handle_t hContext, void *pMem) {
    ENTER_WORKING("%p %p", (void *)hContext, pMem);
    REQUIRE_HANDLE(hContext);
    REQUIRE_POINTER(pMem);
    drain(-1);  // freed memory may still be in use
    bool found = give_back((uintptr_t)pMem, HOST_ALLOCATION, SHARED_ALLOCATION);
    return found ? UR_RESULT_SUCCESS : UR_RESULT_ERROR_INVALID_VALUE;
}

ur_result_t UR_APICALL urUSMGetMemAllocInfo(ur_context_handle_t hContext, const void *pMem,
                                            ur_usm_alloc_info_t propName, size_t propSize, void *pPropValue,
                                            size_t *pPropSizeRet) {
    ENTER("%p %p %d", (void *)hContext, pMem, propName);
    REQUIRE_HANDLE(hContext);
    REQUIRE_POINTER(pMem);
    static const ur_usm_type_t types[] = {UR_USM_TYPE_HOST, UR_USM_TYPE_HOST, UR_USM_TYPE_DEVICE, UR_USM_TYPE_SHARED};
    ur_usm_type_t type = UR_USM_TYPE_UNKNOWN;
    ur_device_handle_t device = NULL;
    uintptr_t base = 0;
    size_t size = 0;
    struct range range = range_at((uintptr_t)pMem);
    if (range.kind >= 0) type = types[range.kind], base = range.host + range.shift, size = range.size;
    if (range.kind >= DEVICE_ALLOCATION) device = range.flags == MAX_DEVICES ? &opencl_device : &devices[range.flags];
    switch (propName) {
    case UR_USM_ALLOC_INFO_TYPE: return tell(&type, sizeof type, propSize, pPropValue, pPropSizeRet);
    case UR_USM_ALLOC_INFO_BASE_PTR: return tell(&base, sizeof base, propSize, pPropValue, pPropSizeRet);
    case UR_USM_ALLOC_INFO_DEVICE: return tell(&device, sizeof device, propSize, pPropValue, pPropSizeRet);
    case UR_USM_ALLOC_INFO_SIZE: return tell(&size, sizeof size, propSize, pPropValue, pPropSizeRet);
    default: return UR_RESULT_ERROR_INVALID_ENUMERATION;
    }
}

#include "queue_calls.h"
