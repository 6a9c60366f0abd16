// SPDX-License-Identifier: Apache-2.0
// What one thread does to memory holds up no other thread, and no forked child, that uses other memory.
//
//     beside_threads fork THREADS     fork while threads lock and unmap; the children lock, and end
//     beside_threads storm WAY        lock and unlock while threads take other memory away: discard or unmap
#define _GNU_SOURCE
#include <pinning/pinning.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 300, PAIRS = 2000, STORMS = 6 };

static pinning_map *map;
static char *blocks[2], *moved;
static volatile int stop;

static void check(int right, const char *what) {
    if (right) return;
    fprintf(stderr, "%s: %s\n", what, pinning_last_error());
    exit(1);
}

static char *pages(size_t size) {
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    return memory;
}

static void *lock_and_unlock(void *argument) {
    for (int i = 0; !stop; i ^= 1) {
        if (pinning_lock(map, blocks[i], 1 << 17, NULL) == PINNING_OK) (void)pinning_unlock(map, blocks[i]);
    }
    return argument;
}

static void *discard(void *argument) {
    while (!stop) madvise(moved, 4096, MADV_DONTNEED);
    return argument;
}

static void *lock_then_unmap(void *argument) {
    while (!stop) {
        char *memory = pages(1 << 16);
        check(pinning_lock(map, memory, 1 << 16, NULL) == PINNING_OK, "lock");
        munmap(memory, 1 << 16);
    }
    return argument;
}

static void in_a_child(void) {
    char *memory = pages(1 << 16);
    pinning_map *own;
    check(pinning_map_open(&own, "host:0") == PINNING_OK, "open in a child");
    check(pinning_lock(own, memory, 1 << 14, NULL) == PINNING_OK, "lock in a child");
    check(pinning_unlock(own, memory) == PINNING_OK, "unlock in a child");
    free(malloc(1 << 20));
    munmap(memory, 1 << 16);
    _exit(0);
}

static pinning_status as_it_is(void *self, void *ptr, size_t size, void **device_ptr) {
    (void)self, (void)size;
    *device_ptr = ptr;
    return PINNING_OK;
}
static pinning_status nothing(void *self, void *ptr) { return (void)self, (void)ptr, PINNING_OK; }
static pinning_status not_pinned(void *self, const void *ptr, pinning_pinned *pinned) {
    return (void)self, (void)ptr, (void)pinned, PINNING_NOT_LOCKED;
}

int main(int count, char **arguments) {
    if (count < 3) return 2;
    int forks = !strcmp(arguments[1], "fork"), threads = forks ? atoi(arguments[2]) : STORMS;
    pinning_locker calls = {NULL, as_it_is, nothing, not_pinned};
    blocks[0] = malloc(1 << 20);  // the library's own memory is mapped between these
    if (forks) check(pinning_map_open(&map, "host:0") == PINNING_OK, "open");
    else check(pinning_map_create(&map, &calls) == PINNING_OK, "create");
    blocks[1] = malloc(1 << 20);
    check(pinning_lock(map, blocks[0], 1 << 14, NULL) == PINNING_OK, "lock");
    check(pinning_unlock(map, blocks[0]) == PINNING_OK, "unlock");

    moved = pages(1 << 14);
    memset(moved, 1, 1 << 14);
    check(pinning_lock(map, moved, 1 << 14, NULL) == PINNING_OK, "lock what moves");
    moved = mremap(moved, 1 << 14, 1 << 14, MREMAP_MAYMOVE | MREMAP_FIXED, pages(1 << 14));
    check(moved != MAP_FAILED, "mremap");

    void *(*work)(void *) = forks ? lock_and_unlock : !strcmp(arguments[2], "discard") ? discard : lock_then_unmap;
    pthread_t all[64];
    for (int i = 0; i < threads; i++) check(pthread_create(&all[i], NULL, work, NULL) == 0, "pthread_create");
    if (forks) {
        for (int i = 0; i < FORKS; i++) {
            usleep(500);
            pid_t child = fork();
            if (child == 0) in_a_child();
            int status;
            check(waitpid(child, &status, 0) == child && status == 0, "a child failed");
        }
    } else {
        for (int i = 0; i < PAIRS; i++) {
            check(pinning_lock(map, blocks[1], 1 << 16, NULL) == PINNING_OK, "lock");
            check(pinning_unlock(map, blocks[1]) == PINNING_OK, "unlock");
        }
    }
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    puts("right");
    return 0;
}
