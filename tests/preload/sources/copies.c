// SPDX-License-Identifier: Apache-2.0
// Copies a buffer to the device and back by one pair of the driver's functions, found in one way, and compares:
//
//     copies WAY FORM MEMORY
//
// WAY: linked, dlsym, default (dlsym of RTLD_DEFAULT), proc, proc1 (cuGetProcAddress, its first version), llvm (as the
// CUDA plugin of LLVM's OpenMP runtime does it). FORM and MEMORY: see below. Prints the outcome; the stand-in's log
// shows the calls.
#define _GNU_SOURCE
#include <cuda.h>
#undef cuMemcpyHtoD
#undef cuMemcpyDtoH
#undef cuMemcpyHtoDAsync
#undef cuMemcpyDtoHAsync
#undef cuMemcpy2D
#undef cuMemcpy2DUnaligned
#undef cuMemcpy2DAsync
#undef cuMemcpyBatchAsync
#undef cuMemcpyWithAttributesAsync
#include <dlfcn.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "must.h"

enum { MIB = 1 << 20, SIZE = 4 * MIB };

static char const *way;

#ifdef LINKED
extern int cuMemcpyHtoD_v2_ptds(), cuMemcpyDtoH_v2_ptds(), cuMemcpyHtoDAsync_v2_ptsz(), cuMemcpyDtoHAsync_v2_ptsz(),
    cuMemcpy_ptds(), cuMemcpyAsync_ptsz();
#define LISTED(name) {#name, (void *)name}
static struct { char const *name; void *function; } const linked[] = {
    LISTED(cuMemcpyHtoD_v2), LISTED(cuMemcpyHtoD_v2_ptds), LISTED(cuMemcpyDtoH_v2), LISTED(cuMemcpyDtoH_v2_ptds),
    LISTED(cuMemcpyHtoDAsync_v2), LISTED(cuMemcpyHtoDAsync_v2_ptsz), LISTED(cuMemcpyDtoHAsync_v2),
    LISTED(cuMemcpyDtoHAsync_v2_ptsz), LISTED(cuMemcpy), LISTED(cuMemcpy_ptds), LISTED(cuMemcpyAsync),
    LISTED(cuMemcpyAsync_ptsz),
};
#endif

// Finds a function as LLVM's DynamicLibrary does, without LLVM's headers and without linking to it.
static void *by_llvm(char const *exported) {
    void *const llvm = dlopen("libLLVM.so.19.1", RTLD_NOW);
    void *(*const open)(char const *, void *) =
        dlsym(llvm, "_ZN4llvm3sys14DynamicLibrary19getPermanentLibraryEPKcPNSt7__cxx1112basic_stringIcSt11char_traits"
                    "IcESaIcEEE");
    void *(*const address)(void **, char const *) =
        dlsym(llvm, "_ZN4llvm3sys14DynamicLibrary18getAddressOfSymbolEPKc");
    static void *library;
    if (library == NULL) library = open("libcuda.so", NULL);  // as libomptarget does
    return address(&library, exported);
}

// Finds a function by its exported name, such as cuMemcpyHtoD_v2_ptds; with cuGetProcAddress, by its base name.
static void *function(char const *exported) {
    void *found = NULL;
#ifdef LINKED
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++) {
        if (!strcmp(linked[i].name, exported)) return linked[i].function;
    }
#endif
    if (!strcmp(way, "llvm")) return by_llvm(exported);
    void *const library = dlopen("libcuda.so.1", RTLD_NOW | (!strcmp(way, "default") ? RTLD_GLOBAL : RTLD_LOCAL));
    if (library == NULL) exit(4);
    if (strncmp(way, "proc", 4) != 0) {
        found = dlsym(!strcmp(way, "default") ? RTLD_DEFAULT : library, exported);
    } else {
        char name[64];
        snprintf(name, sizeof name, "%s", exported);
        cuuint64_t const flags = strstr(name, "_pt") != NULL ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
        char *const end = strstr(name, "_");
        if (end != NULL) *end = 0;
        CUdriverProcAddressQueryResult status;
        bool const first = !strcmp(way, "proc1");
        int (*get)(char const *, void **, int, cuuint64_t, void *) =
            dlsym(library, first ? "cuGetProcAddress" : "cuGetProcAddress_v2");
        if (!first) MUST(get("cuGetProcAddress", (void **)&get, 12000, 0, &status));  // the one with five arguments
        bool const is_first_batch = strstr(exported, "Batch") != NULL && strstr(exported, "_v2") == NULL;
        int const version = is_first_batch ? 12090 : 13020;
        for (int i = 0; i < 3; i++) {
            int const answer = get(name, &found, i == 0 ? 11060 : version, flags, first ? NULL : &status);
            if (i > 0) MUST(answer);
        }
    }
    if (found == NULL) {
        printf("%s: not found\n", exported);
        exit(4);
    }
    return found;
}

typedef int Copy(CUdeviceptr, CUdeviceptr, size_t);
typedef int CopyAsync(CUdeviceptr, CUdeviceptr, size_t, CUstream);
typedef int Rows(CUDA_MEMCPY2D const *);
typedef int RowsAsync(CUDA_MEMCPY2D const *, CUstream);
typedef int Attributed(CUdeviceptr, CUdeviceptr, size_t, CUmemcpyAttributes *, CUstream);
typedef int Batch(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, CUstream);
typedef int FirstBatch(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *,
                       CUstream);

static char suffix[8];
static size_t rows = 1, pitch, shift, only_pitch, only_rows;
static int is_async, is_rows, is_halved, is_either, is_batch, is_first_batch, is_attributed;
static CUmemcpyAttributes attributes[2] = {{.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM},
                                           {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL}};
static CUstream stream;

// Two large parts and a small one; the first has other attributes than the rest.
static int copy_batch(char const *exported, CUdeviceptr dst, CUdeviceptr src, size_t size) {
    size_t const half = size / 2, small = size < 8192 ? 0 : 4096;
    size_t sizes[] = {half, half - small, small}, firsts[] = {0, 1}, failed = 99, count = small != 0 ? 3 : 2;
    CUdeviceptr dsts[] = {dst, dst + half, dst + size - small}, srcs[] = {src, src + half, src + size - small};
    if (!is_first_batch) return ((Batch *)function(exported))(dsts, srcs, sizes, count, attributes, firsts, 2, stream);
    int const code =
        ((FirstBatch *)function(exported))(dsts, srcs, sizes, count, attributes, firsts, 2, &failed, stream);
    if (code != 0) printf("at %d: ", (int)failed);
    return code;
}

static int copy_rows(CUDA_MEMCPY2D const *p) {
    char exported[64];
    snprintf(exported, sizeof exported, "cuMemcpy2D%s_v2%s", is_async ? "Async" : "", suffix);
    return is_async ? ((RowsAsync *)function(exported))(p, stream) : ((Rows *)function(exported))(p);
}

static int copy(char const *name, CUdeviceptr dst, CUdeviceptr src, size_t size) {
    char exported[64];
    int const to_device = strstr(name, "HtoD") != NULL;
    snprintf(exported, sizeof exported, "%s%s", name, suffix);
    if (is_rows) {
        CUDA_MEMCPY2D p = {.WidthInBytes = size / rows, .Height = rows};
        p.dstPitch = p.srcPitch = p.WidthInBytes;
        p.srcMemoryType = to_device ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        p.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
        if (to_device) p.srcHost = (void *)src, p.dstDevice = dst, p.dstPitch += pitch;
        else p.dstHost = (void *)dst, p.srcDevice = src, p.srcPitch += pitch;
        if (to_device) p.srcY = src == 0, p.dstXInBytes = shift;
        else p.dstY = dst == 0, p.srcXInBytes = shift;
        if (only_pitch != 0) p.dstPitch = p.srcPitch = only_pitch;
        if (only_rows != 0) p.WidthInBytes = size, p.Height = only_rows;
        if (is_halved) {  // the lower half is a part of the host's array, but all of the device's
            p.Height /= 2;
            MUST(copy_rows(&p));
            if (to_device) p.srcY = p.Height, p.dstDevice += p.Height * p.dstPitch;
            else p.dstY = p.Height, p.srcDevice += p.Height * p.srcPitch;
        }
        return copy_rows(&p);
    }
    if (is_batch) {
        snprintf(exported, sizeof exported, "cuMemcpyBatchAsync%s%s", is_first_batch ? "" : "_v2", suffix);
        return copy_batch(exported, dst, src, size);
    }
    if (is_attributed) {
        snprintf(exported, sizeof exported, "cuMemcpyWithAttributesAsync%s", suffix);
        return ((Attributed *)function(exported))(dst, src, size, attributes, stream);
    }
    if (is_either) snprintf(exported, sizeof exported, "cuMemcpy%s%s", is_async ? "Async" : "", suffix);
    return is_async ? ((CopyAsync *)function(exported))(dst, src, size, stream) : ((Copy *)function(exported))(dst, src, size);
}

static char *host_memory(char const *kind) {
    char *memory = NULL;
    if (!strcmp(kind, "pinned")) MUST(cuMemHostAlloc((void **)&memory, SIZE, 0));
    else if (!strcmp(kind, "managed")) MUST(cuMemAllocManaged((CUdeviceptr *)&memory, SIZE, CU_MEM_ATTACH_GLOBAL));
    else memory = aligned_alloc(4096, SIZE);
    for (size_t i = 0; i < SIZE; i++) memory[i] = (char)(i * 7 + i / 4099);
    return memory;
}

// Two device allocations of SIZE, the second just behind the first; returns the first.
static CUdeviceptr neighbours(void) {
    enum { TRIES = 16 };
    CUdeviceptr made[TRIES];
    for (int i = 0; i < TRIES; i++) {
        MUST(cuMemAlloc(&made[i], SIZE));
        for (int j = 0; j < i; j++) {
            if (made[j] - made[i] - SIZE < MIB) return made[i];
            if (made[i] - made[j] - SIZE < MIB) return made[j];
        }
    }
    printf("no neighbours\n");
    exit(4);
}

static void *in_thread(void *context) {
    MUST(cuCtxSetCurrent(context));
    CUdeviceptr memory;
    MUST(cuMemAlloc(&memory, SIZE));
    for (int turn = 0; turn < 8; turn++) {
        char *const source = host_memory("pageable"), *const result = malloc(SIZE);
        source[turn] ^= 1;
        MUST(copy(is_async ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyHtoD_v2", memory, (CUdeviceptr)source, SIZE));
        char const kept = source[turn];
        memset(source, 9, SIZE);  // the driver has read it
        MUST(copy(is_async ? "cuMemcpyDtoHAsync_v2" : "cuMemcpyDtoH_v2", (CUdeviceptr)result, memory, SIZE));
        if (result[turn] != kept || result[SIZE - 1] == 9) exit(5);
        free(source);
        free(result);
    }
    MUST(cuMemFree(memory));
    return NULL;
}

// One staged copy of 256 KiB in each direction.
static void small_copies(int seed) {
    enum { SMALL = 256 << 10 };
    static char source[SMALL], result[SMALL];
    CUdeviceptr memory;
    MUST(cuMemAlloc(&memory, SMALL));
    memset(source, seed, SMALL);
    MUST(copy("cuMemcpyHtoDAsync_v2", memory, (CUdeviceptr)source, SMALL));
    memset(source, ~seed, SMALL);
    MUST(copy("cuMemcpyDtoHAsync_v2", (CUdeviceptr)result, memory, SMALL));
    for (int i = 0; i < SMALL; i++) {
        if (result[i] != (char)seed) exit(5);
    }
    MUST(cuMemFree(memory));
}

// From now on, system calls that the driver's copies do not make end the process.
static void forbid_more(void) {
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_memfd_create, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pipe2, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_sched_getaffinity, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    struct sock_fprog const program = {sizeof filter / sizeof *filter, filter};
    MUST(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
    MUST(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0));
}

// Makes a page accessible when it is used, as garbage collectors do.
static void give_access(int signal, siginfo_t *info, void *context) {
    (void)signal, (void)context;
    char *const page = (char *)((uintptr_t)info->si_addr & ~(uintptr_t)4095);
    if (mprotect(page, 4096, PROT_READ | PROT_WRITE) != 0) _exit(8);
}

static void guard(char *source, char *result) {
    struct sigaction const action = {.sa_sigaction = give_access, .sa_flags = SA_SIGINFO};
    MUST(sigaction(SIGSEGV, &action, NULL));
    for (size_t at = 0; at < SIZE; at += MIB) {
        MUST(mprotect(source + at, 4096, PROT_NONE));
        MUST(mprotect(result + at, 4096, PROT_READ));
    }
}

// Asks about system calls, and fails to forbid them.
static void ask_about_system_calls(void) {
    unsigned const allowed = SECCOMP_RET_ALLOW;
    MUST(syscall(SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &allowed));
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, NULL) != -1) exit(6);
    if (prctl(PR_SET_SECCOMP, 99, 0, 0, 0) != -1 || syscall(SYS_prctl, PR_SET_SECCOMP, 99, 0, 0, 0) != -1) exit(6);
}

static void copy_in_a_fork(CUdeviceptr device, char const *source) {
    pid_t const child = fork();
    if (child == 0) _exit(copy("cuMemcpyHtoD_v2", device, (CUdeviceptr)source, SIZE) == CUDA_ERROR_NOT_INITIALIZED ? 6 : 7);
    int status;
    waitpid(child, &status, 0);
    printf("child %d\n", WEXITSTATUS(status));
}

// A child of vfork forbids itself system calls, and executes a program.
static void forbid_in_a_child(void) {
    struct sock_filter allow = BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog const program = {1, &allow};
    pid_t const child = vfork();
    if (child == 0) {
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) _exit(5);
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) _exit(6);
        execl("/bin/sh", "sh", "-c", "exit 0", NULL);
        _exit(7);
    }
    int status;
    waitpid(child, &status, 0);
    MUST(status);
}

// Copies of so many bytes that they would pass the end of all addresses.
static int refused_in_little_memory(char const *to_device, char const *to_host, CUdeviceptr device, char *memory) {
    struct rlimit const most = {(rlim_t)4 << 30, (rlim_t)4 << 30};
    MUST(setrlimit(RLIMIT_AS, &most));
    int const code = copy(to_device, device + 4096, (CUdeviceptr)memory, (size_t)-1);
    struct rusage usage;
    printf("%d %d ", code, copy(to_host, (CUdeviceptr)memory, device + 4096, (size_t)-1));
    MUST(getrusage(RUSAGE_SELF, &usage));
    puts(usage.ru_maxrss < 1 << 20 ? "in little memory" : "in much memory");
    return 0;
}

struct waiting {
    CUcontext context;
    CUdeviceptr device;
    char const *name, *source;
};

static void *copy_in_a_thread(void *given) {
    struct waiting const *waiting = given;
    MUST(cuCtxSetCurrent(waiting->context));
    MUST(copy(waiting->name, waiting->device, (CUdeviceptr)waiting->source, SIZE));
    return NULL;
}

// Captures the stream while a copy in it waits for earlier work.
static int capture_during_a_copy(struct waiting waiting) {
    unsigned volatile *word;
    pthread_t thread;
    CUgraph graph;
    MUST(cuMemHostAlloc((void **)&word, 4096, 0));
    *word = 0;
    copy_in_a_thread(&waiting);  // so that the next one is submitted at once
    MUST(cuStreamSynchronize(stream));
    MUST(cuStreamWaitValue32(stream, (CUdeviceptr)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
    MUST(pthread_create(&thread, NULL, copy_in_a_thread, &waiting));
    usleep(200000);
    MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED));
    usleep(200000);
    printf("capture %d\n", (int)cuStreamEndCapture(stream, &graph));
    *word = 1;
    MUST(pthread_join(thread, NULL));
    MUST(cuStreamSynchronize(stream));
    return 0;
}

int main(int count, char **arguments) {
    if (count < 4) return 2;
    way = arguments[1];
    char const *const form = arguments[2], *const kind = arguments[3];
    is_async = strstr(form, "async") != NULL;
    is_rows = strstr(form, "rows") != NULL;
    is_halved = strstr(form, "halved") != NULL;
    is_either = strstr(form, "either") != NULL;
    is_first_batch = strstr(form, "batch1") != NULL;
    is_batch = strstr(form, "batch") != NULL;
    is_attributed = strstr(form, "attributes") != NULL;
    if (strstr(form, "any") != NULL) attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_ANY;
    if (strstr(form, "wrong") != NULL) attributes[0].srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_INVALID;
    if (strstr(form, "thread") != NULL) strcpy(suffix, is_async ? "_ptsz" : "_ptds");
    if (is_rows) rows = strstr(form, "narrowest") != NULL ? SIZE / (64 << 10) : 8;
    if (strstr(form, "pitched") != NULL) pitch = 512;
    if (strstr(form, "shifted") != NULL) shift = 512;
    if (strstr(form, "wraps") != NULL) only_rows = ((size_t)1 << 42) + 1, only_pitch = pitch != 0 ? 2 * SIZE : SIZE;
    if (strstr(form, "thin") != NULL) rows = 1, only_pitch = 100;
    if (strstr(form, "wide") != NULL) rows = 1, only_pitch = (size_t)1 << 31;
    size_t const device_size = SIZE + rows * pitch + shift;
    MUST(cuInit(0));
    CUcontext context;
    if (!strcmp(kind, "own context")) MUST(cuCtxCreate(&context, NULL, 0, 0));
    else MUST(cuDevicePrimaryCtxRetain(&context, 0));
    MUST(cuCtxSetCurrent(context));
    if (strstr(form, "stream") != NULL) MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
    if (!strcmp(kind, "threads") || !strcmp(kind, "small threads")) {
        pthread_t threads[4];
        pthread_attr_t how;
        MUST(pthread_attr_init(&how));
        if (kind[0] == 's') MUST(pthread_attr_setstacksize(&how, 64 << 10));
        for (int i = 0; i < 4; i++) MUST(pthread_create(&threads[i], &how, in_thread, context));
        for (int i = 0; i < 4; i++) MUST(pthread_join(threads[i], NULL));
        printf("same\n");
        return 0;
    }
    if (!strcmp(kind, "streams at once")) {
        is_async = true;
        enum { STREAMS = 64 };
        static CUstream streams[STREAMS];
        for (int i = 0; i < STREAMS; i++) MUST(cuStreamCreate(&streams[i], CU_STREAM_NON_BLOCKING));
        for (int i = 0; i < STREAMS; i++) stream = streams[i], small_copies(i);
        printf("same\n");
        return 0;
    }
    if (!strcmp(kind, "many streams")) {
        is_async = true;
        for (int i = 0; i < 1000; i++) {
            MUST(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            if (i % 250 == 0) in_thread(context);
            else small_copies(i);
            MUST(cuStreamDestroy(stream));
        }
        printf("same\n");
        return 0;
    }
    CUdeviceptr device;
    MUST(cuMemAlloc(&device, device_size));
    char *const source = host_memory(kind), *const result = host_memory(kind), *const pattern = malloc(SIZE);
    memcpy(pattern, source, SIZE);
    memset(result, 0, SIZE);
    if (!strcmp(kind, "on the device") || !strcmp(kind, "in the host")) {
        CUdeviceptr other;
        MUST(cuMemAlloc(&other, device_size));
        bool const is_host = kind[0] == 'i';
        int const answer = copy("", is_host ? (CUdeviceptr)result : other, is_host ? (CUdeviceptr)source : device, SIZE);
        MUST(cuCtxSynchronize());
        printf("%d %s\n", answer, !is_host || memcmp(result, pattern, SIZE) == 0 ? "same" : "different");
        return 0;
    }
    if (!strcmp(kind, "no context")) MUST(cuCtxSetCurrent(NULL));
    if (!strcmp(kind, "registered")) {
        MUST(cuMemHostRegister(source, SIZE, 0));
        MUST(cuMemHostRegister(result, SIZE, 0));
    }
    if (!strcmp(kind, "half registered")) {
        MUST(cuMemHostRegister(source + SIZE / 2, SIZE / 2, 0));
        MUST(cuMemHostRegister(result + SIZE / 2, SIZE / 2, 0));
    }
    if (!strcmp(kind, "registered part")) MUST(cuMemHostRegister(source, 4096, 0));
    if (!strcmp(kind, "captured")) MUST(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
    if (!strcmp(kind, "beside capture")) {
        CUstream other;
        MUST(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
        MUST(cuStreamBeginCapture(other, CU_STREAM_CAPTURE_MODE_GLOBAL));
    }
    if (!strcmp(kind, "fork")) copy_in_a_fork(device, source);
    if (!strcmp(kind, "vfork")) forbid_in_a_child();
    if (!strcmp(kind, "asks about system calls")) ask_about_system_calls();
    if (!strcmp(kind, "sandboxed")) forbid_more();
    if (!strcmp(kind, "guarded")) guard(source, result);
    char const *const to_device = is_async ? "cuMemcpyHtoDAsync_v2" : "cuMemcpyHtoD_v2";
    char const *const to_host = is_async ? "cuMemcpyDtoHAsync_v2" : "cuMemcpyDtoH_v2";
    if (!strcmp(kind, "captured meanwhile")) {
        return capture_during_a_copy((struct waiting){context, device, to_device, source});
    }
    if (!strcmp(kind, "wraps")) return refused_in_little_memory(to_device, to_host, device, source);
    if (!strcmp(kind, "null")) {
        int const code = copy(to_device, device, 0, SIZE);
        printf("%d %d\n", code, copy(to_host, 0, device, SIZE));
        return 0;
    }
    if (!strcmp(kind, "two allocations")) {
        CUdeviceptr const across = neighbours() + MIB;
        int const code = copy(to_device, across, (CUdeviceptr)source, SIZE);
        memset(source, 1, SIZE), memset(result, 1, SIZE);
        printf("%d %d ", code, copy(to_host, (CUdeviceptr)result, across, SIZE));
        MUST(cuCtxSynchronize());
        printf("%s, ", memcmp(result, source, SIZE) == 0 ? "untouched" : "changed");
        memset(source, 0, SIZE);  // as the memory was
        MUST(cuMemcpyDtoH_v2(result, across, 4096));
        printf("%s\n", memcmp(result, source, 4096) == 0 ? "untouched" : "changed");
        return 0;
    }
    bool const is_before = !strcmp(kind, "before the beginning");
    size_t const size = !strcmp(kind, "small") ? 4096 : SIZE, past = !strcmp(kind, "past the end") ? MIB : 0;
    int const code = copy(to_device, device + past - (is_before ? MIB : 0), (CUdeviceptr)source, size);
    if (code != 0) {
        printf("error %d\n", code);
        if (!is_before) return 0;
        MUST(cuMemcpyDtoH_v2(result, device + MIB, 4096));
        printf("%s\n", memcmp(result, result + 4096, 4096) == 0 ? "untouched" : "changed");  // zeros, as the memory was
        return 0;
    }
    if (!strcmp(kind, "captured")) {
        CUgraph graph;
        printf("capture %d\n", (int)cuStreamEndCapture(stream, &graph));
        return 0;
    }
    if (strcmp(kind, "pinned") != 0 && strstr(kind, "registered") == NULL) memset(source, 9, size);  // it has been read
    if (!strcmp(kind, "exit")) exit(0);
    MUST(copy(to_host, (CUdeviceptr)result, device, size));
    if (!is_rows) MUST(cuCtxSynchronize());
    if (!strcmp(kind, "fork")) copy_in_a_fork(device, source);
    printf("%s\n", memcmp(result, pattern, size) == 0 ? "same" : "different");
    if (!strcmp(kind, "own context")) {  // then another one at the same address, with its own pinned memory
        MUST(cuCtxDestroy(context));
        MUST(cuCtxCreate(&context, NULL, 0, 0));
        MUST(cuMemAlloc(&device, SIZE));
        memcpy(source, pattern, SIZE), memset(result, 0, SIZE);
        MUST(copy(to_device, device, (CUdeviceptr)source, SIZE));
        MUST(copy(to_host, (CUdeviceptr)result, device, SIZE));
        printf("%s\n", memcmp(result, pattern, SIZE) == 0 ? "same" : "different");
    }
    return 0;
}
