// SPDX-License-Identifier: Apache-2.0
// Forks while threads lock and unlock; the children lock, and end: beside_threads THREADS
#define _GNU_SOURCE
#include <pinning/pinning.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FORKS = 300 };

static pinning_map *map;
static char *blocks[2];
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

int main(int count, char **arguments) {
    int threads = count > 1 ? atoi(arguments[1]) : 1;
    blocks[0] = malloc(1 << 20);  // the library's own memory is mapped between these
    check(pinning_map_open(&map, "host:0") == PINNING_OK, "open");
    blocks[1] = malloc(1 << 20);
    pthread_t all[64];
    for (int i = 0; i < threads; i++) check(pthread_create(&all[i], NULL, lock_and_unlock, NULL) == 0, "pthread_create");
    for (int i = 0; i < FORKS; i++) {
        usleep(500);
        pid_t child = fork();
        if (child == 0) in_a_child();
        int status;
        check(waitpid(child, &status, 0) == child && status == 0, "a child failed");
    }
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(all[i], NULL);
    puts("right");
    return 0;
}
