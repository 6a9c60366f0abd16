// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the NVIDIA driver, libcuda.so.1. It answers the calls that pinning makes, with the errors that cuda.h
// documents, and it compiles only against the prototypes of the real header. It checks the ABI and the sequence of
// calls; what a real driver does with the memory, it can't know.
//
// Device addresses differ from host addresses in their top bits, so that a mix-up is caught: REGISTERED is added to the
// host address of registered memory, DEVICE to that of device memory. Both lie above every address of a process.
//
// The variable STANDIN_CUDA, or a call of standin_configure, tells it what to do; entries are separated by ';':
//   log=PATH              append one line for each call: the function and its arguments, before the call takes effect
//   devices=N             number of devices (at load only; 1 unless told)
//   no_read_only          the devices do not support CU_MEMHOSTREGISTER_READ_ONLY
//   fail=FUNCTION:N:CODE  the N-th call of FUNCTION, or of any function for '*', returns CODE and has no effect
//   delay=FUNCTION:MS     each call of FUNCTION takes MS longer, or until the next standin_configure

#include <cuda.h>

#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define REGISTERED ((uintptr_t)1 << 47)
#define DEVICE ((uintptr_t)1 << 48)

enum { MAX_DEVICES = 8, MAX_DEPTH = 16, MAX_RULES = 16 };

// ---- state, all of it under `mutex` except the threads' own context stacks ----

struct range {
    enum { REGISTRATION, HOST_ALLOCATION, DEVICE_ALLOCATION, MANAGED_ALLOCATION } kind;
    uintptr_t host, shift;  // the device address of a byte is its host address plus shift
    size_t size;
    unsigned flags;
    struct range *next;
};

struct rule {
    char function[48];
    int nth, code, milliseconds, seen;  // nth is 0 for a delay
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct range *ranges;
static struct rule rules[MAX_RULES];
static int rule_count, configuration;  // `configuration` tells a delayed call that it is over
static int log_file = -1, device_count = 1, read_only_supported = 1;
static _Atomic pid_t initialised_in;
static struct CUctx_st { _Atomic int retained; } primary[MAX_DEVICES];

static _Thread_local CUcontext stack[MAX_DEPTH];
static _Thread_local int depth;

// ---- the controls of the tests ----

void standin_configure(const char *text);
size_t standin_registrations(uint64_t *pairs, size_t room);

void standin_configure(const char *text) {
    char *copy = strdup(text), *rest = copy, *entry;
    pthread_mutex_lock(&mutex);
    rule_count = 0;
    read_only_supported = 1;
    ++configuration;
    while ((entry = strsep(&rest, ";"))) {
        struct rule rule = {0};
        if (!strncmp(entry, "log=", 4)) {
            if (log_file >= 0) close(log_file);
            log_file = open(entry + 4, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        } else if (sscanf(entry, "devices=%d", &device_count) == 1) {
        } else if (!strcmp(entry, "no_read_only")) {
            read_only_supported = 0;
        } else if (sscanf(entry, "fail=%47[^:]:%d:%d", rule.function, &rule.nth, &rule.code) == 3 ||
                   sscanf(entry, "delay=%47[^:]:%d", rule.function, &rule.milliseconds) == 2) {
            if (rule_count < MAX_RULES) rules[rule_count++] = rule;
        } else if (*entry) {
            fprintf(stderr, "libcuda stand-in: cannot understand '%s'\n", entry);
            abort();
        }
    }
    pthread_mutex_unlock(&mutex);
    free(copy);
}

// Host address and size of each registration, in pairs; returns how many there are.
size_t standin_registrations(uint64_t *pairs, size_t room) {
    size_t count = 0;
    pthread_mutex_lock(&mutex);
    for (struct range *r = ranges; r; r = r->next) {
        if (r->kind != REGISTRATION) continue;
        if (count < room) pairs[2 * count] = r->host, pairs[2 * count + 1] = r->size;
        ++count;
    }
    pthread_mutex_unlock(&mutex);
    return count;
}

__attribute__((constructor)) static void load(void) {
    const char *text = getenv("STANDIN_CUDA");
    if (text) standin_configure(text);
}

// ---- what every call does first ----

static CUresult enter(const char *symbol, bool needs_init, bool needs_context, const char *format, ...) {
    char line[256], function[48];
    snprintf(function, sizeof function, "%s", symbol);
    char *version = strstr(function, "_v");
    if (version) *version = 0;
    int length = snprintf(line, sizeof line, "%s ", function);
    va_list arguments;
    va_start(arguments, format);
    length += vsnprintf(line + length, sizeof line - length - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';

    CUresult failure = CUDA_SUCCESS;
    int milliseconds = 0;
    pthread_mutex_lock(&mutex);
    int current = configuration;
    if (log_file >= 0 && write(log_file, line, length) != length) abort();
    for (struct rule *rule = rules; rule < rules + rule_count; ++rule) {
        if (strcmp(rule->function, function) && strcmp(rule->function, "*")) continue;
        if (rule->nth == 0) milliseconds += rule->milliseconds;
        else if (++rule->seen == rule->nth) failure = rule->code;
    }
    bool over = !milliseconds;
    pthread_mutex_unlock(&mutex);
    while (!over) {
        usleep(1000);
        pthread_mutex_lock(&mutex);
        over = --milliseconds <= 0 || configuration != current;
        pthread_mutex_unlock(&mutex);
    }
    if (failure) return failure;
    if (needs_init && initialised_in != getpid()) return CUDA_ERROR_NOT_INITIALIZED;
    if (needs_context && (!depth || !stack[depth - 1] || !stack[depth - 1]->retained)) return CUDA_ERROR_INVALID_CONTEXT;
    return CUDA_SUCCESS;
}

#define ENTER(init, context, ...)                                   \
    do {                                                            \
        CUresult code = enter(__func__, init, context, __VA_ARGS__); \
        if (code) return code;                                      \
    } while (0)
#define REQUIRE(condition, code) \
    do {                         \
        if (!(condition)) return code; \
    } while (0)

// ---- ranges ----

static struct range *holding(uintptr_t address) {  // by host or by device address
    for (struct range *r = ranges; r; r = r->next)
        if (address - r->host < r->size || address - (r->host + r->shift) < r->size) return r;
    return NULL;
}

static bool overlapping(int kind, uintptr_t host, size_t size) {
    for (struct range *r = ranges; r; r = r->next)
        if ((int)r->kind == kind && host < r->host + r->size && r->host < host + size) return true;
    return false;
}

static void add(int kind, uintptr_t host, uintptr_t shift, size_t size, unsigned flags) {
    struct range *r = malloc(sizeof *r);
    *r = (struct range){kind, host, shift, size, flags, ranges};
    ranges = r;
}

static bool discard(uintptr_t address, int first_kind, int last_kind) {  // `address`: the device address of the base
    for (struct range **link = &ranges; *link; link = &(*link)->next) {
        struct range *r = *link;
        if (r->host + r->shift != address || (int)r->kind < first_kind || (int)r->kind > last_kind) continue;
        *link = r->next;
        if (r->kind != REGISTRATION) free((void *)r->host);
        free(r);
        return true;
    }
    return false;
}

static CUresult allocate(int kind, uintptr_t shift, size_t size, uintptr_t *address) {
    REQUIRE(size, CUDA_ERROR_INVALID_VALUE);
    void *host = aligned_alloc(4096, (size + 4095) / 4096 * 4096);
    REQUIRE(host, CUDA_ERROR_OUT_OF_MEMORY);
    pthread_mutex_lock(&mutex);
    add(kind, (uintptr_t)host, shift, size, 0);
    pthread_mutex_unlock(&mutex);
    *address = (uintptr_t)host + shift;
    return CUDA_SUCCESS;
}

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
    ENTER(false, false, "%u", Flags);
    REQUIRE(device_count, CUDA_ERROR_NO_DEVICE);
    REQUIRE(!initialised_in || initialised_in == getpid(), CUDA_ERROR_NOT_INITIALIZED);
    initialised_in = getpid();
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDriverGetVersion(int *driverVersion) {
    ENTER(false, false, "");
    *driverVersion = CUDA_VERSION;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetCount(int *count) {
    ENTER(true, false, "");
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGet(CUdevice *device, int ordinal) {
    ENTER(true, false, "%d", ordinal);
    REQUIRE(ordinal >= 0 && ordinal < device_count, CUDA_ERROR_INVALID_DEVICE);
    *device = ordinal;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetName(char *name, int len, CUdevice dev) {
    ENTER(true, false, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    snprintf(name, len, "Stand-in %d", dev);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDeviceGetAttribute(int *pi, CUdevice_attribute attrib, CUdevice dev) {
    ENTER(true, false, "%d %d", attrib, dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    REQUIRE(attrib == CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, CUDA_ERROR_INVALID_VALUE);
    *pi = read_only_supported;
    return CUDA_SUCCESS;
}

// ---- contexts ----

CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev) {
    ENTER(true, false, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    ++primary[dev].retained;
    pthread_mutex_unlock(&mutex);
    *pctx = &primary[dev];
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice dev) {
    ENTER(true, false, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    pthread_mutex_lock(&mutex);
    bool held = primary[dev].retained > 0;
    if (held) --primary[dev].retained;
    pthread_mutex_unlock(&mutex);
    return held ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active) {
    ENTER(true, false, "%d", dev);
    REQUIRE(dev >= 0 && dev < device_count, CUDA_ERROR_INVALID_DEVICE);
    *flags = 0;
    *active = primary[dev].retained > 0;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPushCurrent(CUcontext ctx) {
    ENTER(true, false, "%p", (void *)ctx);
    REQUIRE(ctx && ctx->retained && depth < MAX_DEPTH, CUDA_ERROR_INVALID_CONTEXT);
    stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxPopCurrent(CUcontext *pctx) {
    ENTER(true, false, "");
    REQUIRE(depth, CUDA_ERROR_INVALID_CONTEXT);
    CUcontext popped = stack[--depth];
    if (pctx) *pctx = popped;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxSetCurrent(CUcontext ctx) {
    ENTER(true, false, "%p", (void *)ctx);
    if (depth) --depth;
    if (ctx) stack[depth++] = ctx;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCtxGetCurrent(CUcontext *pctx) {
    ENTER(true, false, "");
    *pctx = depth ? stack[depth - 1] : NULL;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuStreamSynchronize(CUstream hStream) {
    ENTER(true, true, "%p", (void *)hStream);
    return CUDA_SUCCESS;
}

// ---- host memory ----

CUresult CUDAAPI cuMemHostRegister(void *p, size_t bytesize, unsigned int Flags) {
    ENTER(true, true, "%p %zu %u", p, bytesize, Flags);
    uintptr_t host = (uintptr_t)p;
    REQUIRE(host && bytesize && host + bytesize > host && host + bytesize <= REGISTERED, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(Flags < 16, CUDA_ERROR_INVALID_VALUE);
    REQUIRE(read_only_supported || !(Flags & CU_MEMHOSTREGISTER_READ_ONLY), CUDA_ERROR_NOT_SUPPORTED);
    pthread_mutex_lock(&mutex);
    CUresult code = CUDA_SUCCESS;
    if (overlapping(REGISTRATION, host, bytesize)) code = CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    // Of memory that the driver itself has allocated it says this (seen on an H200, driver 580.159).
    else if (overlapping(HOST_ALLOCATION, host, bytesize)) code = CUDA_ERROR_INVALID_VALUE;
    else add(REGISTRATION, host, REGISTERED, bytesize, Flags);
    pthread_mutex_unlock(&mutex);
    return code;
}

CUresult CUDAAPI cuMemHostUnregister(void *p) {
    ENTER(true, true, "%p", p);
    REQUIRE(p, CUDA_ERROR_INVALID_VALUE);
    pthread_mutex_lock(&mutex);
    bool found = discard((uintptr_t)p + REGISTERED, REGISTRATION, REGISTRATION);
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
}

CUresult CUDAAPI cuMemHostGetDevicePointer(CUdeviceptr *pdptr, void *p, unsigned int Flags) {
    ENTER(true, true, "%p %u", p, Flags);
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
    ENTER(true, true, "%zu %u", bytesize, Flags);
    return allocate(HOST_ALLOCATION, 0, bytesize, (uintptr_t *)pp);
}

CUresult CUDAAPI cuMemFreeHost(void *p) {
    ENTER(true, true, "%p", p);
    pthread_mutex_lock(&mutex);
    bool found = discard((uintptr_t)p, HOST_ALLOCATION, HOST_ALLOCATION);
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

// ---- device memory ----

CUresult CUDAAPI cuMemAlloc(CUdeviceptr *dptr, size_t bytesize) {
    ENTER(true, true, "%zu", bytesize);
    uintptr_t address;
    CUresult code = allocate(DEVICE_ALLOCATION, DEVICE, bytesize, &address);
    if (!code) *dptr = address;
    return code;
}

CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr *dptr, size_t bytesize, unsigned int flags) {
    ENTER(true, true, "%zu %u", bytesize, flags);
    uintptr_t address;
    CUresult code = allocate(MANAGED_ALLOCATION, 0, bytesize, &address);
    if (!code) *dptr = address;
    return code;
}

CUresult CUDAAPI cuMemFree(CUdeviceptr dptr) {
    ENTER(true, true, "%#llx", dptr);
    pthread_mutex_lock(&mutex);
    bool found = discard(dptr, DEVICE_ALLOCATION, MANAGED_ALLOCATION);
    pthread_mutex_unlock(&mutex);
    return found ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemcpy(CUdeviceptr dst, CUdeviceptr src, size_t ByteCount) {
    ENTER(true, true, "%#llx %#llx %zu", dst, src, ByteCount);
    pthread_mutex_lock(&mutex);
    uintptr_t to = reachable(dst, ByteCount), from = reachable(src, ByteCount);
    pthread_mutex_unlock(&mutex);
    REQUIRE(to && from, CUDA_ERROR_INVALID_VALUE);
    memmove((void *)to, (void *)from, ByteCount);
    return CUDA_SUCCESS;
}

// ---- pointers ----

CUresult CUDAAPI cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr ptr) {
    // Only the device pointer is a question to the current context.
    ENTER(true, attribute == CU_POINTER_ATTRIBUTE_DEVICE_POINTER, "%d %#llx", attribute, ptr);
    pthread_mutex_lock(&mutex);
    struct range *found = holding(ptr), r = found ? *found : (struct range){0};
    pthread_mutex_unlock(&mutex);
    REQUIRE(found, CUDA_ERROR_INVALID_VALUE);
    uintptr_t host = ptr - (ptr - r.host < r.size ? 0 : r.shift);
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = r.kind == DEVICE_ALLOCATION ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned char *)data = r.kind == MANAGED_ALLOCATION;
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
    default:
        return CUDA_ERROR_INVALID_VALUE;
    }
}

// ---- the one export that cuda.bindings looks up ----

#define FUNCTION(name, since) {#name, (void *)name, since}

CUresult CUDAAPI cuGetProcAddress(const char *symbol, void **pfn, int cudaVersion, cuuint64_t flags,
                                  CUdriverProcAddressQueryResult *symbolStatus) {
    (void)flags;
    static const struct { const char *name; void *function; int since; } functions[] = {
        FUNCTION(cuInit, 2000),
        FUNCTION(cuDriverGetVersion, 2020),
        FUNCTION(cuDeviceGetCount, 2000),
        FUNCTION(cuDeviceGet, 2000),
        FUNCTION(cuDeviceGetName, 2000),
        FUNCTION(cuDeviceGetAttribute, 2000),
        FUNCTION(cuDevicePrimaryCtxRetain, 7000),
        FUNCTION(cuDevicePrimaryCtxRelease, 11000),
        FUNCTION(cuDevicePrimaryCtxGetState, 7000),
        FUNCTION(cuCtxPushCurrent, 4000),
        FUNCTION(cuCtxPopCurrent, 4000),
        FUNCTION(cuCtxSetCurrent, 4000),
        FUNCTION(cuCtxGetCurrent, 4000),
        FUNCTION(cuStreamSynchronize, 2000),
        FUNCTION(cuMemHostRegister, 6050),
        FUNCTION(cuMemHostUnregister, 4000),
        FUNCTION(cuMemHostGetDevicePointer, 3020),
        FUNCTION(cuMemHostAlloc, 2020),
        FUNCTION(cuMemFreeHost, 2000),
        FUNCTION(cuMemAlloc, 3020),
        FUNCTION(cuMemAllocManaged, 6000),
        FUNCTION(cuMemFree, 3020),
        FUNCTION(cuMemcpy, 4000),
        FUNCTION(cuPointerGetAttribute, 4000),
        FUNCTION(cuGetProcAddress, 12000),
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
        if (strcmp(functions[i].name, symbol) || cudaVersion < functions[i].since) continue;
        *pfn = functions[i].function;
        if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SUCCESS;
        return CUDA_SUCCESS;
    }
    *pfn = NULL;
    if (symbolStatus) *symbolStatus = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return CUDA_ERROR_NOT_FOUND;
}
