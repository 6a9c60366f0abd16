// SPDX-License-Identifier: Apache-2.0
// Locks and unlocks memory beside threads that take other memory away without a pause: beside_storms [DEVICE]
// It ends once enough has been locked beside each storm, whatever the threads do.
#define _GNU_SOURCE
#include <pthread.h>
#include <string.h>

#include "beside.h"

enum { THREADS = 4, PAIRS = 1000, BLOCK = 1 << 14 };

static pinning_map *map;
static char *moved, *shared;
static volatile int stop;

static char *move(char *memory, size_t size, size_t new_size) {
    char *to = mremap(memory, size, new_size, MREMAP_MAYMOVE | MREMAP_FIXED, pages(new_size));
    check(to != MAP_FAILED, "mremap");
    return to;
}

static void *discard_what_has_moved(void *argument) {
    while (!stop) (void)madvise(moved, 4096, MADV_DONTNEED);
    return argument;
}

static void *discard_what_is_locked(void *argument) {
    char *memory = pages(BLOCK);
    while (!stop) {
        (void)pinning_lock(map, memory, BLOCK, NULL);
        for (int i = 0; i < 10; i++) (void)madvise(memory, BLOCK, MADV_DONTNEED);
    }
    munmap(memory, BLOCK);
    return argument;
}

static void *unmap(void *argument) {
    while (!stop) {
        char *memory = pages(BLOCK);
        (void)pinning_lock(map, memory, BLOCK, NULL);
        munmap(memory, BLOCK);
    }
    return argument;
}

static void *move_and_unmap(void *argument) {
    while (!stop) {
        char *memory = pages(BLOCK);
        (void)pinning_lock(map, memory, BLOCK, NULL);
        munmap(move(memory, BLOCK, 2 * BLOCK), 2 * BLOCK);
    }
    return argument;
}

/// What others lock meanwhile, too, and what only this thread locks.
static void beside(void *(*storm)(void *)) {
    pthread_t all[THREADS];
    stop = 0;
    for (int i = 0; i < THREADS; i++) check(pthread_create(&all[i], NULL, storm, NULL) == 0, "pthread_create");
    char *own = pages(BLOCK);
    for (int i = 0; i < PAIRS; i++) {
        check(pinning_lock(map, own, BLOCK, NULL) == PINNING_OK, "lock");
        check(pinning_find(map, own, BLOCK, NULL) == PINNING_OK, "find");
        check(pinning_unlock(map, own) == PINNING_OK, "unlock");
        check(pinning_lock(map, shared, BLOCK, NULL) == PINNING_OK, "lock of locked memory");
        check(pinning_unlock(map, shared) == PINNING_OK, "unlock of locked memory");
    }
    // It is watched although its watch has ended so often: a lock ends with the memory.
    check(pinning_lock(map, own, BLOCK, NULL) == PINNING_OK, "lock");
    // Its addresses are not given back, lest another thread locks memory there.
    check(mmap(own, BLOCK, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == own, "mmap");
    check(pinning_find(map, own, 1, NULL) != PINNING_OK, "found after it was unmapped");
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(all[i], NULL);
    munmap(own, BLOCK);
}

int main(int count, char **arguments) {
    check(pinning_map_open(&map, count > 1 ? arguments[1] : "host:0") == PINNING_OK, "open");
    shared = pages(BLOCK);
    check(pinning_lock(map, shared, BLOCK, NULL) == PINNING_OK, "lock");
    moved = pages(BLOCK);
    check(pinning_lock(map, moved, BLOCK, NULL) == PINNING_OK, "lock");
    moved = move(moved, BLOCK, 2 * BLOCK);  // what a move adds stays watched
    (void)munlock(moved, 2 * BLOCK);
    beside(discard_what_has_moved);
    beside(discard_what_is_locked);
    beside(unmap);
    beside(move_and_unmap);
    puts("right");
    return 0;
}
