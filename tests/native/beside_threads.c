// SPDX-License-Identifier: Apache-2.0
// Forks, in three ways, while threads make some calls all the time: beside_threads THREADS CALLS
// CALLS has names, such as move,free. A child of fork makes all of the calls itself; one of _Fork or clone only takes
// memory away. All of them end.
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "beside.h"

enum { FORKS = 150, SIZE = 1 << 14 };

extern pid_t _Fork(void) __attribute__((weak));  // from glibc 2.34 on

static pinning_map *map;
static volatile int stop;

// The calls, each with `SIZE` bytes of its own. They return whether all was right.

static int lock(char *memory) {
    return pinning_lock(map, memory, SIZE, NULL) == PINNING_OK && pinning_unlock(map, memory) == PINNING_OK;
}

static int lock_mapped(char *memory) {
    return pinning_lock_mapped(map, memory, SIZE, PINNING_ON, NULL) == PINNING_OK &&
           pinning_unlock_unmapped(map, memory) == PINNING_OK;
}

static int enter(char *memory) {
    return pinning_register(map, memory, SIZE, memory) == PINNING_OK && pinning_refresh(map) == PINNING_OK &&
           pinning_unregister(map, memory) == PINNING_OK;
}

static pinning_status add(void *self, void *ptr, size_t size, void **handle) {
    *handle = ptr;
    return self && size ? PINNING_OK : PINNING_VENDOR_ERROR;
}

static pinning_status take_back(void *self, void *handle) {
    return self && handle ? PINNING_OK : PINNING_VENDOR_ERROR;
}

static int add_a_registrar(char *memory) {
    const pinning_registrar registrar = {sizeof registrar, memory, "a registrar", 0, add, take_back};
    int right = pinning_add_registrar(map, &registrar) == PINNING_OK;
    return lock(memory) && pinning_remove_registrar(map, memory) == PINNING_OK && right;
}

static int change_the_budget(char *memory) {
    pinning_budget budget = {.struct_size = sizeof budget};
    return pinning_set_budget(UINT64_MAX) == PINNING_OK && lock(memory) &&
           pinning_give_back_idle(UINT64_MAX, NULL) == PINNING_OK && pinning_get_budget(&budget) == PINNING_OK;
}

static int look(char *memory) {
    pinning_region some[4];
    size_t count;
    (void)pinning_find(map, memory, 1, some);
    return pinning_regions(map, some, 4, &count) == PINNING_OK;
}

static int copy(char *memory) {
    return pinning_copy(map, memory, memory + SIZE / 2, SIZE / 2) == PINNING_OK;
}

static pinning_status lock_nothing(void *self, void *ptr, size_t size, void **device_ptr) {
    *device_ptr = ptr;
    return self || !size ? PINNING_VENDOR_ERROR : PINNING_OK;
}
static pinning_status unlock_nothing(void *self, void *ptr) { return self || !ptr ? PINNING_VENDOR_ERROR : PINNING_OK; }
static pinning_status nothing_is_pinned(void *self, const void *ptr, pinning_pinned *pinned) {
    return self || !ptr || !pinned ? PINNING_VENDOR_ERROR : PINNING_NOT_LOCKED;
}

static int make_a_map(char *memory) {
    const pinning_locker calls = {sizeof calls, NULL, lock_nothing, unlock_nothing, nothing_is_pinned};
    pinning_map *made;
    return pinning_map_create(&made, &calls) == PINNING_OK && pinning_lock(made, memory, SIZE, NULL) == PINNING_OK &&
           pinning_map_destroy(made) == PINNING_OK;
}

static int unmap(char *memory) {
    int right = pinning_lock(map, memory, SIZE, NULL) == PINNING_OK;
    munmap(memory, SIZE);
    return mmap(memory, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == memory && right;
}

static int replace(char *memory) {
    int right = pinning_lock(map, memory, SIZE, NULL) == PINNING_OK;
    int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    return mmap(memory, SIZE, PROT_READ | PROT_WRITE, flags, -1, 0) == memory && right;
}

static int discard(char *memory) {
    int right = pinning_lock(map, memory, SIZE, NULL) == PINNING_OK;
    (void)madvise(memory, SIZE, MADV_DONTNEED);
    return right;
}

static int move(char *memory) {
    char *own = pages(SIZE);
    int right = pinning_lock(map, own, SIZE, NULL) == PINNING_OK;
    return mremap(own, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, memory) == memory && right;
}

static int free_a_block(char *memory) {
    char *block = malloc(1 << 20);
    int right = block && pinning_lock(map, block, SIZE, NULL) == PINNING_OK;
    free(block);
    return memory && right;
}

static const struct {
    const char *name;
    int (*make)(char *memory);
} calls[] = {
    {"lock", lock}, {"lock_mapped", lock_mapped}, {"register", enter}, {"registrar", add_a_registrar},
    {"budget", change_the_budget}, {"look", look}, {"copy", copy}, {"create", make_a_map}, {"unmap", unmap},
    {"replace", replace}, {"discard", discard}, {"move", move}, {"free", free_a_block},
};
enum { CALLS = sizeof calls / sizeof *calls };

static void *call_all_the_time(void *name) {
    char *memory = pages(SIZE);
    for (int i = 0; !stop; i = (i + 1) % CALLS) {
        if (strstr(name, calls[i].name)) (void)calls[i].make(memory);
    }
    return NULL;
}

static void in_a_child_of_fork(void) {
    check(pinning_map_open(&map, "host:0") == PINNING_OK, "open in a child");
    for (int i = 0; i < CALLS; i++) {
        char *memory = pages(SIZE);
        check(calls[i].make(memory), calls[i].name);
        munmap(memory, SIZE);
    }
    _exit(0);
}

static void in_a_bare_child(void) {
    char *memory = pages(3 * SIZE);
    (void)madvise(memory, SIZE, MADV_DONTNEED);
    (void)mremap(memory, SIZE, SIZE, MREMAP_MAYMOVE | MREMAP_FIXED, memory + 2 * SIZE);
    munmap(memory, 3 * SIZE);
    _exit(0);
}

int main(int count, char **arguments) {
    check(count == 3, "beside_threads THREADS CALLS");
    int threads = atoi(arguments[1]);
    free(malloc(1 << 20));  // the library's own memory is mapped beside this
    check(pinning_map_open(&map, "host:0") == PINNING_OK, "open");
    pthread_t all[64];
    for (int i = 0; i < threads; i++) {
        check(pthread_create(&all[i], NULL, call_all_the_time, arguments[2]) == 0, "pthread_create");
    }
    for (int i = 0; i < FORKS; i++) {
        usleep(500);
        pid_t child = i % 3 == 0            ? fork()
                      : i % 3 == 1 && _Fork ? _Fork()
                                            : (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) i % 3 == 0 ? in_a_child_of_fork() : in_a_bare_child();
        int status;
        check(waitpid(child, &status, 0) == child && status == 0, "a child failed");
    }
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    puts("right");
    return 0;
}
