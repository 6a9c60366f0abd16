// SPDX-License-Identifier: Apache-2.0
//
// Virtual memory in the stand-in libcuda.c: reserved addresses, memory by handles, and mappings of it. A range of device
// memory is known to other calls from cuMemSetAccess until cuMemUnmap; then its bytes are lost, and touching them crashes.

enum { GRANULARITY = 2 << 20 };

static struct reserved {
    uintptr_t host;
    size_t size;
    struct physical *mapped;
    struct reserved *next;
} *reservations;

static struct physical {
    size_t size;
    int device;
    bool released, mapped;
    struct physical *next;
} *memories;

// Reserved ranges, and memory that is allocated; standin_virtual("reserved") and ("memory").
size_t standin_virtual(const char *what);

size_t standin_virtual(const char *what) {
    size_t count = 0;
    pthread_mutex_lock(&mutex);
    if (!strcmp(what, "reserved")) for (struct reserved *each = reservations; each; each = each->next) ++count;
    else for (struct physical *each = memories; each; each = each->next) ++count;
    pthread_mutex_unlock(&mutex);
    return count;
}

// (mutex) The link to what is reserved there, all of it; or NULL.
static struct reserved **reserved_at(CUdeviceptr ptr, size_t size) {
    for (struct reserved **link = &reservations; *link; link = &(*link)->next)
        if ((*link)->host + DEVICE == ptr && (*link)->size == size) return link;
    return NULL;
}

// (mutex) The link to this memory, or NULL.
static struct physical **memory_of(CUmemGenericAllocationHandle handle) {
    for (struct physical **link = &memories; *link; link = &(*link)->next)
        if ((uintptr_t)*link == handle && !(*link)->released) return link;
    return NULL;
}

static void forget_unused(void) {  // (mutex)
    for (struct physical **link = &memories; *link;) {
        struct physical *each = *link;
        if (!each->released || each->mapped) link = &each->next;
        else *link = each->next, free(each);
    }
}

static bool proper(const CUmemAllocationProp *prop) {
    return prop->type == CU_MEM_ALLOCATION_TYPE_PINNED && prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
           prop->location.id >= 0 && prop->location.id < device_count && prop->allocFlags.gpuDirectRDMACapable == 1;
}

CUresult CUDAAPI cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *prop,
                                               CUmemAllocationGranularity_flags option) {
    ENTER(DRIVER, "%d", (int)option);
    REQUIRE(proper(prop) && option == CU_MEM_ALLOC_GRANULARITY_MINIMUM, CUDA_ERROR_INVALID_VALUE);
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressReserve(CUdeviceptr *ptr, size_t size, size_t alignment, CUdeviceptr addr,
                                     unsigned long long flags) {
    ENTER(DRIVER, "%zu %zu %#llx %llu", size, alignment, addr, flags);
    REQUIRE(size && size % GRANULARITY == 0 && !alignment && !addr && !flags, CUDA_ERROR_INVALID_VALUE);
    char *host = mmap(NULL, size + GRANULARITY, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    REQUIRE(host != MAP_FAILED, CUDA_ERROR_OUT_OF_MEMORY);
    size_t before = -(uintptr_t)host % GRANULARITY;
    if (before) munmap(host, before);
    munmap(host + before + size, GRANULARITY - before);
    struct reserved *made = malloc(sizeof *made);
    pthread_mutex_lock(&mutex);
    *made = (struct reserved){(uintptr_t)host + before, size, NULL, reservations};
    reservations = made;
    pthread_mutex_unlock(&mutex);
    *ptr = made->host + DEVICE;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemAddressFree(CUdeviceptr ptr, size_t size) {
    ENTER(DRIVER, "%#llx %zu", ptr, size);
    pthread_mutex_lock(&mutex);
    struct reserved **link = reserved_at(ptr, size), *found = link && !(*link)->mapped ? *link : NULL;
    if (found) *link = found->next;
    pthread_mutex_unlock(&mutex);
    REQUIRE(found, CUDA_ERROR_INVALID_VALUE);
    munmap((void *)found->host, size);
    free(found);
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
                             unsigned long long flags) {
    ENTER(DRIVER, "%zu %d", size, prop->location.id);
    REQUIRE(proper(prop) && size && size % GRANULARITY == 0 && !flags, CUDA_ERROR_INVALID_VALUE);
    struct physical *made = malloc(sizeof *made);
    pthread_mutex_lock(&mutex);
    *made = (struct physical){size, prop->location.id, false, false, memories};
    memories = made;
    pthread_mutex_unlock(&mutex);
    *handle = (uintptr_t)made;
    return CUDA_SUCCESS;
}

CUresult CUDAAPI cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(DRIVER, "%#llx", handle);
    pthread_mutex_lock(&mutex);
    struct physical **link = memory_of(handle);
    if (link) (*link)->released = true;
    forget_unused();
    pthread_mutex_unlock(&mutex);
    return link ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemMap(CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
    ENTER(DRIVER, "%#llx %zu", ptr, size);
    pthread_mutex_lock(&mutex);
    struct reserved **at = reserved_at(ptr, size);
    struct physical **memory = memory_of(handle);
    bool fits = at && memory && !(*at)->mapped && !(*memory)->mapped && (*memory)->size == size && !offset && !flags;
    if (fits) (*at)->mapped = *memory, (*memory)->mapped = true;
    pthread_mutex_unlock(&mutex);
    return fits ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemSetAccess(CUdeviceptr ptr, size_t size, const CUmemAccessDesc *desc, size_t count) {
    ENTER(DRIVER, "%#llx %zu %zu", ptr, size, count);
    for (size_t i = 0; i < count; ++i) {
        const CUmemLocation *location = &desc[i].location;
        REQUIRE(location->type == CU_MEM_LOCATION_TYPE_DEVICE && location->id < device_count, CUDA_ERROR_INVALID_VALUE);
        REQUIRE(desc[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE, CUDA_ERROR_INVALID_VALUE);
    }
    pthread_mutex_lock(&mutex);
    struct reserved **at = reserved_at(ptr, size);
    bool mapped = at && (*at)->mapped && !holding(ptr);
    if (mapped) {
        mprotect((void *)(*at)->host, size, PROT_READ | PROT_WRITE);
        memset((void *)(*at)->host, 0xdb, size);  // undefined contents
        add(DEVICE_ALLOCATION, (*at)->host, DEVICE, size, (unsigned)(*at)->mapped->device);
    }
    pthread_mutex_unlock(&mutex);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult CUDAAPI cuMemUnmap(CUdeviceptr ptr, size_t size) {
    ENTER(DRIVER, "%#llx %zu", ptr, size);
    pthread_mutex_lock(&mutex);
    struct reserved **at = reserved_at(ptr, size);
    bool mapped = at && (*at)->mapped;
    if (mapped) {
        (*at)->mapped->mapped = false;
        (*at)->mapped = NULL;
        for (struct range **link = &ranges; *link; link = &(*link)->next) {
            struct range *r = *link;
            if (r->host != (*at)->host) continue;
            *link = r->next;
            free(r);
            break;
        }
        madvise((void *)(*at)->host, size, MADV_DONTNEED);
        mprotect((void *)(*at)->host, size, PROT_NONE);
        forget_unused();
    }
    pthread_mutex_unlock(&mutex);
    return mapped ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
