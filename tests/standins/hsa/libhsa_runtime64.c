// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for AMD's HSA runtime, libhsa-runtime64.so.1. It implements the calls that pinning makes, with the errors
// that hsa.h and hsa_ext_amd.h document, and it compiles only against the prototypes of the real headers. It checks the
// ABI and the sequence of calls; it cannot show what a real runtime does with the memory.
//
// As in ROCr, locks may overlap, and unlocking what is not locked succeeds and does nothing; so does unlocking an
// address at which two locks of different sizes begin.
//
// standin.h documents its configuration; besides the options of every stand-in:
//   gpus=N        number of GPU agents (at load only; default 1)
//   svm           locks use shared virtual memory: addresses are the same, and hsa_amd_pointer_info does not know them
//   slow_copy     asynchronous copies begin at the next standin_configure
//   failing_copy  asynchronous copies fail while in progress
//   slow_poll     copies that wait for signals check them only every 0.3 s
//   no_peers      GPUs cannot access one another's memory, and pools say so
//   no_rect       copies of rectangles are refused
//   lost=FUNCTION:N:CODE  all calls fail, and so do the copies
//
// Misuse ends the process: destroying or raising a signal that a copy will write or waits for, and copies by a GPU from
// or to memory that it may not access.

#define STANDIN "HSA"

#include <hsa/hsa.h>
#include <hsa/hsa_ext_amd.h>

#include "standin.h"

enum { CPU = 0xC0, GPU = 0xD0, MAX_GPUS = 8 };  // handles of agents
enum { OWNER = 0xFF, SVM = 0x100, ALLOWED = 0x10000 };  // flags of ranges; ALLOWED << index of each GPU

// The handle of a pool is its agent's handle times 16 plus its index.
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
    int copies;  // in progress, that write it or wait for it
};

static int gpu_count = 1;
static bool svm, slow_copy, slow_poll, failing_copy, no_peers, no_rect;
static _Atomic pid_t initialised_in;

static bool standin_option(const char *entry) {
    if (!entry) svm = slow_copy = slow_poll = failing_copy = no_peers = no_rect = false;
    else if (!strcmp(entry, "svm")) svm = true;
    else if (!strcmp(entry, "slow_copy")) slow_copy = true;
    else if (!strcmp(entry, "slow_poll")) slow_poll = true;
    else if (!strcmp(entry, "failing_copy")) failing_copy = true;
    else if (!strcmp(entry, "no_peers")) no_peers = true;
    else if (!strcmp(entry, "no_rect")) no_rect = true;
    else return sscanf(entry, "gpus=%d", &gpu_count) == 1 && gpu_count <= MAX_GPUS;
    return true;
}

// ---- what every call does first ----

#define ENTER(...)                                                                   \
    do {                                                                             \
        int failure = enter(__func__, __VA_ARGS__);                                  \
        if (failure) return failure;                                                 \
        if (initialised_in != getpid()) return HSA_STATUS_ERROR_NOT_INITIALIZED;     \
        lose(__func__);                                                              \
        if (lost) return lost;                                                       \
    } while (0)

// ---- initialisation ----

hsa_status_t hsa_init(void);  // in C, the header's "()" is no prototype

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
    NAMED(HSA_STATUS_ERROR_FATAL);
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
    uint64_t owner = memory_pool.handle / 16;
    uintptr_t address = allocate(host ? HOST_ALLOCATION : DEVICE_ALLOCATION, host ? 0 : DEVICE, size, owner);
    REQUIRE(address, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    *ptr = (void *)address;
    return HSA_STATUS_SUCCESS;
}

// Whether an agent can be given access. A GPU has access to its own memory from the start, and to no other memory.
static bool can_reach(hsa_agent_t agent, uint64_t owner) {
    return agent.handle == CPU || owner == CPU || agent.handle == owner || !no_peers;
}

hsa_status_t hsa_amd_agent_memory_pool_get_info(hsa_agent_t agent, hsa_amd_memory_pool_t memory_pool,
                                                hsa_amd_agent_memory_pool_info_t attribute, void *value) {
    ENTER("%#lx %#lx %d", agent.handle, memory_pool.handle, attribute);
    REQUIRE(is_agent(agent), HSA_STATUS_ERROR_INVALID_AGENT);
    REQUIRE(find_pool(memory_pool), (hsa_status_t)HSA_STATUS_ERROR_INVALID_MEMORY_POOL);
    REQUIRE(value && attribute == HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    uint64_t owner = memory_pool.handle / 16;
    *(hsa_amd_memory_pool_access_t *)value = !can_reach(agent, owner)  ? HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED
                                             : agent.handle == owner ? HSA_AMD_MEMORY_POOL_ACCESS_ALLOWED_BY_DEFAULT
                                                                     : HSA_AMD_MEMORY_POOL_ACCESS_DISALLOWED_BY_DEFAULT;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_agents_allow_access(uint32_t num_agents, const hsa_agent_t *agents, const uint32_t *flags,
                                         const void *ptr) {
    ENTER("%u %p", num_agents, ptr);
    REQUIRE(num_agents && agents && !flags && ptr, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    for (uint32_t i = 0; i < num_agents; ++i) REQUIRE(is_agent(agents[i]), HSA_STATUS_ERROR_INVALID_AGENT);
    pthread_mutex_lock(&mutex);
    struct range *r = holding((uintptr_t)ptr);
    bool known = r && r->kind != REGISTRATION && r->host + r->shift == (uintptr_t)ptr, allowed = known;
    for (uint32_t i = 0; known && i < num_agents; ++i) allowed &= can_reach(agents[i], r->flags & OWNER);
    if (allowed) r->flags &= OWNER;
    for (uint32_t i = 0; allowed && i < num_agents; ++i)
        if (is_gpu(agents[i])) r->flags |= ALLOWED << (agents[i].handle - GPU);
    pthread_mutex_unlock(&mutex);
    return allowed ? HSA_STATUS_SUCCESS : known ? HSA_STATUS_ERROR_INVALID_ARGUMENT : HSA_STATUS_ERROR;
}

hsa_status_t hsa_amd_memory_pool_free(void *ptr) {
    ENTER("%p", ptr);
    REQUIRE(ptr, HSA_STATUS_SUCCESS);
    bool found = give_back((uintptr_t)ptr, HOST_ALLOCATION, DEVICE_ALLOCATION);
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
        // ROCr reports a host address of device memory too.
        answer.hostBaseAddress = (void *)(locked ? r->host : r->host + r->shift);
        answer.sizeInBytes = r->size;
        answer.agentOwner.handle = locked ? CPU : r->flags & OWNER;
        answer.global_flags = locked ? r->flags : 0;
    }
    pthread_mutex_unlock(&mutex);
    memcpy(info, &answer, answer.size);
    return HSA_STATUS_SUCCESS;
}

// ---- signals ----

static void misused(const char *what) {
    fprintf(stderr, "HSA stand-in: %s\n", what);
    abort();
}

hsa_status_t hsa_signal_create(hsa_signal_value_t initial_value, uint32_t num_consumers, const hsa_agent_t *consumers,
                               hsa_signal_t *signal) {
    ENTER("%ld %u", initial_value, num_consumers);
    REQUIRE(signal && !num_consumers == !consumers, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    struct signal *made = malloc(sizeof *made);
    *made = (struct signal){initial_value, 0};
    signal->handle = (uint64_t)made;
    pthread_mutex_lock(&mutex);
    ++live.signals;
    pthread_mutex_unlock(&mutex);
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_signal_destroy(hsa_signal_t signal) {
    ENTER("%#lx", signal.handle);
    REQUIRE(signal.handle, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    struct signal *found = (struct signal *)signal.handle;
    pthread_mutex_lock(&mutex);
    if (found->copies) misused("a signal is destroyed that a copy will write or waits for");
    --live.signals;
    pthread_mutex_unlock(&mutex);
    free(found);
    return HSA_STATUS_SUCCESS;
}

// These calls are not logged and cannot fail: a real signal's value is a word of memory.
hsa_signal_value_t hsa_signal_load_scacquire(hsa_signal_t signal) {
    pthread_mutex_lock(&mutex);
    hsa_signal_value_t value = ((struct signal *)signal.handle)->value;
    pthread_mutex_unlock(&mutex);
    return value;
}

static void set_value(hsa_signal_t handle, hsa_signal_value_t value, bool relative) {
    struct signal *signal = (struct signal *)handle.handle;
    pthread_mutex_lock(&mutex);
    if (!relative && value > 0 && signal->copies) misused("a signal is raised that a copy will write or waits for");
    signal->value = relative ? signal->value - value : value;
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&mutex);
}

void hsa_signal_store_screlease(hsa_signal_t signal, hsa_signal_value_t value) { set_value(signal, value, false); }
void hsa_signal_subtract_screlease(hsa_signal_t signal, hsa_signal_value_t value) { set_value(signal, value, true); }

// A configured failure is a negative value after the wait: the call cannot report it otherwise.
hsa_signal_value_t hsa_signal_wait_scacquire(hsa_signal_t signal, hsa_signal_condition_t condition,
                                             hsa_signal_value_t compare_value, uint64_t timeout_hint,
                                             hsa_wait_state_t wait_state_hint) {
    int failure = enter(__func__, "%#lx %d %ld %#lx %d", signal.handle, condition, compare_value, timeout_hint,
                        wait_state_hint);
    if (condition != HSA_SIGNAL_CONDITION_LT || timeout_hint != UINT64_MAX) abort();
    struct signal *found = (struct signal *)signal.handle;
    pthread_mutex_lock(&mutex);
    while (found->value >= compare_value) pthread_cond_wait(&progress, &mutex);
    hsa_signal_value_t value = found->value;
    pthread_mutex_unlock(&mutex);
    return failure ? -1 : value;
}

// ---- copies ----

enum { MAX_WAITS = 8 };

struct copying {
    uintptr_t to, from;
    size_t to_pitch, from_pitch, width, height;
    struct signal *signal, *waits[MAX_WAITS];
    unsigned wait_count;
    int configuration;
    bool slow, failing;
};

// (mutex) The host address of bytes that an agent accesses at `address`, or 0. A GPU must have access to them.
static uintptr_t reached(uintptr_t address, size_t size, hsa_agent_t agent) {
    for (struct range *r = ranges; r; r = r->next) {
        uintptr_t offset = address - (r->host + r->shift);
        if (offset >= r->size || size > r->size - offset) continue;
        bool allowed = r->kind == REGISTRATION || (r->flags & OWNER) == agent.handle || agent.handle == CPU ||
                       r->flags & ALLOWED << (agent.handle - GPU);
        if (!allowed) misused("a GPU copies from or to memory that it has not been let use");
        return r->host + offset;
    }
    return 0;
}

// (mutex) A copy waits for exactly 0: after a failure the value is negative, and it never begins.
static bool may_begin(const struct copying *copying) {
    bool begin = !copying->slow || configuration != copying->configuration;
    for (unsigned i = 0; i < copying->wait_count; ++i) begin &= copying->waits[i]->value == 0;
    return begin || lost;
}

static void *copy(void *argument) {
    struct copying copying = *(struct copying *)argument;
    free(argument);
    pthread_mutex_lock(&mutex);
    while (!may_begin(&copying)) {
        bool slowly = slow_poll && copying.wait_count;
        pthread_mutex_unlock(&mutex);
        usleep(slowly ? 300000 : 200);
        pthread_mutex_lock(&mutex);
    }
    copying.failing |= lost;
    pthread_mutex_unlock(&mutex);
    for (size_t row = 0; row < copying.height && !copying.failing; ++row)
        memmove((void *)(copying.to + row * copying.to_pitch), (void *)(copying.from + row * copying.from_pitch),
                copying.width);
    pthread_mutex_lock(&mutex);
    copying.signal->value = copying.failing ? -1 : copying.signal->value - 1;
    --copying.signal->copies;
    for (unsigned i = 0; i < copying.wait_count; ++i) --copying.waits[i]->copies;
    pthread_cond_broadcast(&progress);
    pthread_mutex_unlock(&mutex);
    return NULL;
}

static hsa_status_t begin(struct copying copying, hsa_agent_t agent, uint32_t waits, const hsa_signal_t *signals,
                          hsa_signal_t signal) {
    REQUIRE(signal.handle && !waits == !signals && waits <= MAX_WAITS, HSA_STATUS_ERROR_INVALID_SIGNAL);
    struct copying *begun = malloc(sizeof *begun);
    pthread_mutex_lock(&mutex);
    copying.to = reached(copying.to, (copying.height - 1) * copying.to_pitch + copying.width, agent);
    copying.from = reached(copying.from, (copying.height - 1) * copying.from_pitch + copying.width, agent);
    copying.configuration = configuration;
    copying.slow = slow_copy;
    copying.failing = failing_copy || !copying.to || !copying.from;  // a fault on a real GPU
    copying.signal = (struct signal *)signal.handle;
    ++copying.signal->copies;
    copying.wait_count = waits;
    for (uint32_t i = 0; i < waits; ++i) ++(copying.waits[i] = (struct signal *)signals[i].handle)->copies;
    *begun = copying;
    pthread_mutex_unlock(&mutex);
    pthread_t thread;
    if (pthread_create(&thread, NULL, copy, begun) || pthread_detach(thread)) abort();
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_amd_memory_async_copy(void *dst, hsa_agent_t dst_agent, const void *src, hsa_agent_t src_agent,
                                       size_t size, uint32_t num_dep_signals, const hsa_signal_t *dep_signals,
                                       hsa_signal_t completion_signal) {
    ENTER("%p %#lx %p %#lx %zu %u", dst, dst_agent.handle, src, src_agent.handle, size, num_dep_signals);
    REQUIRE(dst && src && completion_signal.handle, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(is_agent(dst_agent) && is_agent(src_agent), HSA_STATUS_ERROR_INVALID_AGENT);
    REQUIRE(size, HSA_STATUS_SUCCESS);  // the signal stays as it is
    struct copying copying = {.to = (uintptr_t)dst, .from = (uintptr_t)src, .width = size, .height = 1};
    hsa_agent_t engine = is_gpu(src_agent) ? src_agent : dst_agent;
    return begin(copying, engine, num_dep_signals, dep_signals, completion_signal);
}

hsa_status_t hsa_amd_memory_async_copy_rect(const hsa_pitched_ptr_t *dst, const hsa_dim3_t *dst_offset,
                                            const hsa_pitched_ptr_t *src, const hsa_dim3_t *src_offset,
                                            const hsa_dim3_t *range, hsa_agent_t copy_agent,
                                            hsa_amd_copy_direction_t dir, uint32_t num_dep_signals,
                                            const hsa_signal_t *dep_signals, hsa_signal_t completion_signal) {
    ENTER("%p %zu %p %zu %u %u %u %#lx %d %u", dst->base, dst->pitch, src->base, src->pitch, range->x, range->y,
          range->z, copy_agent.handle, dir, num_dep_signals);
    REQUIRE(!no_rect, HSA_STATUS_ERROR_OUT_OF_RESOURCES);
    REQUIRE(is_gpu(copy_agent), HSA_STATUS_ERROR_INVALID_AGENT);
    uintptr_t to = (uintptr_t)dst->base, from = (uintptr_t)src->base;
    REQUIRE((to | dst->pitch | dst->slice | from | src->pitch | src->slice) % 4 == 0, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(!dst_offset->x && !dst_offset->y && !dst_offset->z, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(!src_offset->x && !src_offset->y && !src_offset->z, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(range->x <= dst->pitch && range->x <= src->pitch && range->z == 1, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE(range->y <= dst->slice / dst->pitch && range->y <= src->slice / src->pitch, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE((dir == hsaHostToDevice) == (to >= DEVICE && from < DEVICE), HSA_STATUS_ERROR_INVALID_ARGUMENT);
    REQUIRE((dir == hsaDeviceToHost) == (to < DEVICE && from >= DEVICE), HSA_STATUS_ERROR_INVALID_ARGUMENT);
    struct copying copying = {.to = to, .from = from, .to_pitch = dst->pitch, .from_pitch = src->pitch,
                              .width = range->x, .height = range->y};
    return begin(copying, copy_agent, num_dep_signals, dep_signals, completion_signal);
}

hsa_status_t hsa_amd_memory_fill(void *ptr, uint32_t value, size_t count) {
    ENTER("%p %#x %zu", ptr, value, count);
    REQUIRE(ptr && (uintptr_t)ptr % 4 == 0, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    pthread_mutex_lock(&mutex);
    uint32_t *words = (uint32_t *)reached((uintptr_t)ptr, 4 * count, (hsa_agent_t){CPU});
    pthread_mutex_unlock(&mutex);
    REQUIRE(words, HSA_STATUS_ERROR_INVALID_ALLOCATION);
    for (size_t i = 0; i < count; ++i) words[i] = value;
    return HSA_STATUS_SUCCESS;
}

hsa_status_t hsa_memory_copy(void *dst, const void *src, size_t size) {
    ENTER("%p %p %zu", dst, src, size);
    REQUIRE(dst && src, HSA_STATUS_ERROR_INVALID_ARGUMENT);
    uintptr_t to = (uintptr_t)dst, from = (uintptr_t)src;
    pthread_mutex_lock(&mutex);
    if (to >= REGISTERED) to = reached(to, size, (hsa_agent_t){CPU});
    if (from >= REGISTERED) from = reached(from, size, (hsa_agent_t){CPU});
    pthread_mutex_unlock(&mutex);
    REQUIRE(to && from, HSA_STATUS_ERROR_INVALID_ALLOCATION);
    memmove((void *)to, (void *)from, size);
    return HSA_STATUS_SUCCESS;
}
