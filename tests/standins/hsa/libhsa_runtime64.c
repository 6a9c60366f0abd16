// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for AMD's HSA runtime, libhsa-runtime64.so.1. It answers the calls that pinning makes, with the errors
// that hsa.h and hsa_ext_amd.h document, and it compiles only against the prototypes of the real headers. It checks the
// ABI and the sequence of calls; what a real runtime does with the memory, it can't know.
//
// As ROCr does it, locks may overlap, and unlocking what is not locked succeeds and does nothing; so does unlocking a
// base of two locks of different sizes.
//
// standin.h says how it is configured; besides what every stand-in understands:
//   gpus=N        number of GPU agents (at load only; 1 unless told)
//   svm           locks are by shared virtual memory: addresses are the same, and hsa_amd_pointer_info does not know them
//   slow_copy     asynchronous copies begin at the next standin_configure
//   failing_copy  asynchronous copies fail under way

#define STANDIN "HSA"

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#include "standin.h"

enum { CPU = 0xC0, GPU = 0xD0, MAX_GPUS = 8, SVM = 0x100 };  // handles of agents; a flag of ranges

// The pools of an agent have its handle times 16 plus their index as handle.
struct pool {
    hsa_amd_segment_t segment;
    uint32_t flags;
};

static const struct pool cpu_pools[] = {
    {HSA_AMD_SEGMENT_GLOBAL, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT | HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED},
    {HSA_AMD_SEGMENT_GLOBAL, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED},
    {HSA_AMD_SEGMENT_GLOBAL, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED},
};
static const struct pool gpu_pools[] = {
    {HSA_AMD_SEGMENT_GROUP, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED},
    {HSA_AMD_SEGMENT_GLOBAL, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED},
    {HSA_AMD_SEGMENT_GLOBAL, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED},
};
enum { CPU_POOLS = sizeof cpu_pools / sizeof *cpu_pools, GPU_POOLS = sizeof gpu_pools / sizeof *gpu_pools };

struct signal {
    hsa_signal_value_t value;
    int copies;  // under way
};

static int gpu_count = 1;
static bool svm, slow_copy, failing_copy;
static _Atomic pid_t initialised_in;
static pthread_cond_t signalled = PTHREAD_COND_INITIALIZER;

static bool standin_option(const char *entry) {
    if (!entry) svm = slow_copy = failing_copy = false;
    else if (!strcmp(entry, "svm")) svm = true;
    else if (!strcmp(entry, "slow_copy")) slow_copy = true;
    else if (!strcmp(entry, "failing_copy")) failing_copy = true;
    else return sscanf(entry, "gpus=%d", &gpu_count) == 1 && gpu_count <= MAX_GPUS;
    return true;
}

// ---- what every call does first ----

#define ENTER(...)                                                                   \
    do {                                                                             \
        int failure = enter(__func__, __VA_ARGS__);                                  \
        if (failure) return failure;                                                 \
        if (initialised_in != getpid()) return HSA_STATUS_ERROR_NOT_INITIALIZED;     \
    } while (0)

// ---- initialisation ----

hsa_status_t hsa_init(void);  // the header has no prototype of it, as C understands "()"

hsa_status_t hsa_init(void) {
    int failure = enter(__func__, "");
    REQUIRE(!failure, failure);
    REQUIRE(!initialised_in || initialised_in == getpid(), HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    initialised_in = getpid();
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_status_string(hsa_status_t status, const char **status_string) {
    int failure = enter(__func__, "%#x", status);
    REQUIRE(!failure, failure);
    REQUIRE(status_string, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    switch ((int)status) {
#define NAMED(name) case name: *status_string = #name ": What happened, in a sentence."; return HSA_STATUS_SUCCESS
    NAMED(HSA_STATUS_ERROR);
    NAMED(HSA_STATUS_ERROR_INVALID_ARGUMENT);
    NAMED(HSA_STATUS_ERROR_INVALID_ALLOCATION);
    NAMED(HSA_STATUS_ERROR_INVALID_AGENT);
    NAMED(HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    NAMED(HSA_STATUS_ERROR_NOT_INITIALIZED);
    NAMED(HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
    }
    return HSA_STATUS_ERROR_INVALID_ARGUMENT;
}

hsa_status_t hsa_system_get_info(hsa_system_info_t attribute, void *value) {
    ENTER("%d", attribute);
    REQUIRE(value && attribute <= HSA_SYSTEM_INFO_VERSION_MINOR, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    *(uint16_t *)value = 1;
    return HSA_STATUS_SUCCESS;
}

// ---- agents ----

static bool is_gpu(hsa_agent_t agent) { return agent.handle - GPU < (uint64_t)gpu_count; }
static bool is_agent(hsa_agent_t agent) { return agent.handle == CPU || is_gpu(agent); }

hsa_status_t hsa_iterate_agents(hsa_status_t (*callback)(hsa_agent_t, void *), void *data) {
    ENTER("");
    REQUIRE(callback, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    hsa_status_t status = callback((hsa_agent_t){CPU}, data);
    for (int i = 0; !status && i < gpu_count; ++i) status = callback((hsa_agent_t){GPU + i}, data);
    return status;
}

hsa_status_t hsa_agent_get_info(hsa_agent_t agent, hsa_agent_info_t attribute, void *value) {
    ENTER("%#lx %#x", agent.handle, attribute);
    REQUIRE(is_agent(agent), HSA_STATUS_ERROR_INVALID_AGENT);
    REQUIRE(value, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    switch ((int)attribute) {
    case HSA_AGENT_INFO_NAME:
        strncpy(value, is_gpu(agent) ? "gfx942" : "Stand-in CPU", 64);
        return HSA_STATUS_SUCCESS;
    case HSA_AMD_AGENT_INFO_PRODUCT_NAME:
        memset(value, 0, 64);
        sprintf(value, "Stand-in %d", (int)(agent.handle - GPU));
        return HSA_STATUS_SUCCESS;
    case HSA_AGENT_INFO_DEVICE:
        *(hsa_device_type_t *)value = is_gpu(agent) ? HSA_DEVICE_TYPE_GPU : HSA_DEVICE_TYPE_CPU;
        return HSA_STATUS_SUCCESS;
    }
    return HSA_STATUS_ERROR_INVALID_ARGUMENT;
}

// ---- pools ----

static const struct pool *find_pool(hsa_amd_memory_pool_t pool) {
    hsa_agent_t agent = {pool.handle / 16};
    uint64_t index = pool.handle % 16;
    if (agent.handle == CPU) return index < CPU_POOLS ? &cpu_pools[index] : NULL;
    return is_gpu(agent) && index < GPU_POOLS ? &gpu_pools[index] : NULL;
}

hsa_status_t hsa_amd_agent_iterate_memory_pools(
    hsa_agent_t agent, hsa_status_t (*callback)(hsa_amd_memory_pool_t, void *), void *data) {
    ENTER("%#lx", agent.handle);
    REQUIRE(is_agent(agent), HSA_STATUS_ERROR_INVALID_AGENT);
    REQUIRE(callback, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    hsa_status_t status = HSA_STATUS_SUCCESS;
    hsa_amd_memory_pool_t pool = {agent.handle * 16};
    for (; !status && find_pool(pool); ++pool.handle) status = callback(pool, data);
    return status;
}

hsa_status_t hsa_amd_memory_pool_get_info(hsa_amd_memory_pool_t memory_pool, hsa_amd_memory_pool_info_t attribute,
                                          void *value) {
    ENTER("%#lx %d", memory_pool.handle, attribute);
    const struct pool *pool = find_pool(memory_pool);
    REQUIRE(pool, (hsa_status_t)HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
    REQUIRE(value, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    switch (attribute) {
    case HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS:
        *(uint32_t *)value = pool->flags;
        return HSA_STATUS_SUCCESS;
    case HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED:
        *(bool *)value = pool->segment == HSA_AMD_SEGMENT_GLOBAL;
        return HSA_STATUS_SUCCESS;
    default:
        return HSA_STATUS_ERROR_INVALID_ARGUMENT;
    }
}

hsa_status_t hsa_amd_memory_pool_allocate(hsa_amd_memory_pool_t memory_pool, size_t size, uint32_t flags, void **ptr) {
    ENTER("%#lx %zu %u", memory_pool.handle, size, flags);
    const struct pool *pool = find_pool(memory_pool);
    REQUIRE(size && ptr && !flags, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(pool, (hsa_status_t)HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
    REQUIRE(pool->segment == HSA_AMD_SEGMENT_GLOBAL, HSA_STATUS_ERROR_INVALID_ALLOCATION);
    bool host = memory_pool.handle / 16 == CPU;
    uintptr_t address = allocate(host ? HOST_ALLOCATION : DEVICE_ALLOCATION, host ? 0 : DEVICE, size);
    REQUIRE(address, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    pthread_mutex_lock(&mutex);
    holding(address)->flags = memory_pool.handle / 16;  // the owner
    pthread_mutex_unlock(&mutex);
    *ptr = (void *)address;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_pool_free(void *ptr) {
    ENTER("%p", ptr);
    REQUIRE(ptr, HSA_STATUS_SUCCESS);
    pthread_mutex_lock(&mutex);
    bool found = discard((uintptr_t)ptr, HOST_ALLOCATION, DEVICE_ALLOCATION);
    pthread_mutex_unlock(&mutex);
    return found ? HSA_STATUS_SUCCESS : HSA_STATUS_ERROR_INVALID_ALLOCATION;
}

// ---- locks ----

static hsa_status_t lock(void *host_ptr, size_t size, hsa_agent_t *agents, int num_agent, uint32_t grain,
                         void **agent_ptr) {
    uintptr_t host = (uintptr_t)host_ptr;
    *agent_ptr = NULL;
    REQUIRE(size && host && host + size > host && host + size <= REGISTERED, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(!agents == !num_agent, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    for (int i = 0; i < num_agent; ++i) REQUIRE(is_agent(agents[i]), HSA_STATUS_ERROR_INVALID_AGENT);
    pthread_mutex_lock(&mutex);
    uintptr_t shift = svm ? 0 : REGISTERED;
    bool done = !overlapping(HOST_ALLOCATION, host, size) && add(REGISTRATION, host, shift, size, grain | (svm ? SVM : 0));
    pthread_mutex_unlock(&mutex);
    REQUIRE(done, HSA_STATUS_ERROR);
    *agent_ptr = (void *)(host + shift);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_lock(void *host_ptr, size_t size, hsa_agent_t *agents, int num_agent, void **agent_ptr) {
    ENTER("%p %zu %d", host_ptr, size, num_agent);
    REQUIRE(agent_ptr, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    return lock(host_ptr, size, agents, num_agent, HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED, agent_ptr);
}

hsa_status_t hsa_amd_memory_lock_to_pool(void *host_ptr, size_t size, hsa_agent_t *agents, int num_agent,
                                         hsa_amd_memory_pool_t pool, uint32_t flags, void **agent_ptr) {
    ENTER("%p %zu %d %#lx %u", host_ptr, size, num_agent, pool.handle, flags);
    REQUIRE(agent_ptr && !flags, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(find_pool(pool) && pool.handle / 16 == CPU, (hsa_status_t)HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
    return lock(host_ptr, size, agents, num_agent, find_pool(pool)->flags, agent_ptr);
}

hsa_status_t hsa_amd_memory_unlock(void *host_ptr) {
    ENTER("%p", host_ptr);
    pthread_mutex_lock(&mutex);
    struct range *found = NULL;
    bool one_size = true;
    for (struct range *r = ranges; r; r = r->next) {
        if (r->kind != REGISTRATION || r->host != (uintptr_t)host_ptr) continue;
        if (found && found->size != r->size) one_size = false;
        found = r;
    }
    if (found && one_size) discard(found->host + found->shift, REGISTRATION, REGISTRATION);
    pthread_mutex_unlock(&mutex);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_pointer_info(const void *ptr, hsa_amd_pointer_info_t *info, void *(*alloc)(size_t),
                                  uint32_t *num_agents_accessible, hsa_agent_t **accessible) {
    ENTER("%p", ptr);
    REQUIRE(ptr && info && info->size, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(!alloc && !num_agents_accessible && !accessible, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    hsa_amd_pointer_info_t answer = {.size = info->size < sizeof answer ? info->size : sizeof answer};
    pthread_mutex_lock(&mutex);
    struct range *r = holding((uintptr_t)ptr);
    if (r && !(r->flags & SVM)) {
        bool locked = r->kind == REGISTRATION;
        answer.type = locked ? HSA_EXT_POINTER_TYPE_LOCKED : HSA_EXT_POINTER_TYPE_HSA;
        answer.agentBaseAddress = (void *)(r->host + r->shift);
        // ROCr says that the host reaches the memory of a device too.
        answer.hostBaseAddress = (void *)(locked ? r->host : r->host + r->shift);
        answer.sizeInBytes = r->size;
        answer.agentOwner.handle = locked ? CPU : r->flags;
        answer.global_flags = locked ? r->flags : 0;
    }
    pthread_mutex_unlock(&mutex);
    memcpy(info, &answer, answer.size);
    return HSA_STATUS_SUCCESS;
}

// ---- signals ----

hsa_status_t hsa_signal_create(hsa_signal_value_t initial_value, uint32_t num_consumers, const hsa_agent_t *consumers,
                               hsa_signal_t *signal) {
    ENTER("%ld %u", initial_value, num_consumers);
    REQUIRE(signal && !num_consumers == !consumers, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    struct signal *made = malloc(sizeof *made);
    *made = (struct signal){initial_value, 0};
    signal->handle = (uint64_t)made;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_signal_destroy(hsa_signal_t signal) {
    ENTER("%#lx", signal.handle);
    REQUIRE(signal.handle, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    struct signal *found = (struct signal *)signal.handle;
    pthread_mutex_lock(&mutex);
    if (found->copies) {
        fprintf(stderr, "HSA stand-in: a signal is destroyed that a copy will write\n");
        abort();
    }
    pthread_mutex_unlock(&mutex);
    free(found);
    return HSA_STATUS_SUCCESS;
}

// A failure that is asked for is a negative value, once the wait is over: there is no other way to say it.
hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t signal, hsa_signal_condition_t condition,
                                             hsa_signal_value_t compare_value, uint64_t timeout_hint,
                                             hsa_wait_state_t wait_state_hint) {
    int failure = enter(__func__, "%#lx %d %ld %#lx %d", signal.handle, condition, compare_value, timeout_hint,
                        wait_state_hint);
    if (condition != HSA_SIGNAL_CONDITION_LT || timeout_hint != UINT64_MAX) abort();
    struct signal *found = (struct signal *)signal.handle;
    pthread_mutex_lock(&mutex);
    while (found->value >= compare_value) pthread_cond_wait(&signalled, &mutex);
    hsa_signal_value_t value = found->value;
    pthread_mutex_unlock(&mutex);
    return failure ? -1 : value;
}

// ---- copies ----

struct copying {
    uintptr_t to, from;
    size_t size;
    struct signal *signal;
    int configuration;
    bool slow, failing;
};

// (mutex) The host address of bytes that a GPU reaches at `address`, or 0.
static uintptr_t reached(uintptr_t address, size_t size) {
    for (struct range *r = ranges; r; r = r->next) {
        uintptr_t offset = address - (r->host + r->shift);
        if (offset < r->size && size <= r->size - offset) return r->host + offset;
    }
    return 0;
}

static void *copy(void *argument) {
    struct copying copying = *(struct copying *)argument;
    free(argument);
    for (bool begin = !copying.slow; !begin;) {
        usleep(1000);
        pthread_mutex_lock(&mutex);
        begin = configuration != copying.configuration;
        pthread_mutex_unlock(&mutex);
    }
    if (!copying.failing) memmove((void *)copying.to, (void *)copying.from, copying.size);
    pthread_mutex_lock(&mutex);
    copying.signal->value = copying.failing ? -1 : copying.signal->value - 1;
    --copying.signal->copies;
    pthread_cond_broadcast(&signalled);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

hsa_status_t hsa_amd_memory_async_copy(void *dst, hsa_agent_t dst_agent, const void *src, hsa_agent_t src_agent,
                                       size_t size, uint32_t num_dep_signals, const hsa_signal_t *dep_signals,
                                       hsa_signal_t completion_signal) {
    ENTER("%p %#lx %p %#lx %zu %u", dst, dst_agent.handle, src, src_agent.handle, size, num_dep_signals);
    REQUIRE(dst && src && completion_signal.handle, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(is_agent(dst_agent) && is_agent(src_agent), HSA_STATUS_ERROR_INVALID_AGENT);
    REQUIRE(!num_dep_signals && !dep_signals, HSA_STATUS_ERROR_INVALID_SIGNAL);
    struct copying *copying = malloc(sizeof *copying);
    pthread_mutex_lock(&mutex);
    *copying = (struct copying){reached((uintptr_t)dst, size), reached((uintptr_t)src, size), size,
                                (struct signal *)completion_signal.handle, configuration, slow_copy, failing_copy};
    copying->failing |= !copying->to || !copying->from;  // of a real GPU, a fault
    ++copying->signal->copies;
    pthread_mutex_unlock(&mutex);
    pthread_t thread;
    if (pthread_create(&thread, NULL, copy, copying) || pthread_detach(thread)) abort();
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_memory_copy(void *dst, const void *src, size_t size) {
    ENTER("%p %p %zu", dst, src, size);
    REQUIRE(dst && src, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    pthread_mutex_lock(&mutex);
    if (to >= REGISTERED) to = reached(to, size);
    if (from >= REGISTERED) from = reached(from, size);
    pthread_mutex_unlock(&mutex);
    REQUIRE(to && from, HSA_STATUS_ERROR_INVALID_ALLOCATION);
    memmove((void *)to, (void *)from, size);
    return HSA_STATUS_SUCCESS;
}
