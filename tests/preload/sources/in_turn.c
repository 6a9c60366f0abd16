// SPDX-License-Identifier: Apache-2.0
// Copies of pageable memory that a function of the stream writes before: in_turn MIB. Prints the number of pages that
// reached the device as they were before.
#define _GNU_SOURCE
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "begin.h"

enum { MIB = 1 << 20, ROUNDS = 4 };

static unsigned char *source;
static size_t size;

static void CUDA_CB write_source(void *value) {
    usleep(20000);
    memset(source, *(int *)value, size);
}

int main(int count, char **words) {
    if (count < 2) return 2;
    size = (size_t)atoi(words[1]) * MIB;
    source = malloc(size);
    CUdeviceptr device;
    CUstream stream;
    unsigned char *seen;
    begin(size, &device, &seen, &stream);
    size_t old = 0;
    for (int round = 1; round <= ROUNDS; ++round) {
        memset(source, 0, size);
        MUST(cuLaunchHostFunc(stream, write_source, &round));
        MUST(cuMemcpyHtoDAsync(device, source, size, stream));
        MUST(cuMemcpyDtoHAsync(seen, device, size, stream));
        MUST(cuStreamSynchronize(stream));
        for (size_t at = 0; at < size; at += 4096) old += seen[at] != (unsigned char)round;
    }
    printf("%zu\n", old);
    return 0;
}
