// SPDX-License-Identifier: Apache-2.0
// For programs that lock memory beside threads: memory that is populated, and an end with the reason.
#include <pinning/pinning.h>

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static void check(int right, const char *what) {
    if (right) return;
    fprintf(stderr, "%s: %s\n", what, pinning_last_error());
    exit(1);
}

static char *pages(size_t size) {
    char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    check(memory != MAP_FAILED, "mmap");
    memory[0] = 1;
    return memory;
}
