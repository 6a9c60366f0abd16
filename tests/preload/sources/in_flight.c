// SPDX-License-Identifier: Apache-2.0
// What other streams see when a synchronous copy of pageable memory to the device has returned:
//
//     in_flight CALL MIB
//
// CALL: a copy by its exported name, such as cuMemcpyHtoD_v2; `rows NAME`: copies of rows with a pitch. Several copies of MIB
// MiB. After each, a non-blocking stream that waits for nothing reads all but the last MiB, latest bytes first. Prints the
// number of pages that were seen old, or the code of a copy that fails.
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "begin.h"

enum { MIB = 1 << 20, PITCH = MIB, WIDTH = MIB - 4096, ROUNDS = 6 };

int main(int count, char **words) {
    if (count < 3) return 2;
    int const in_rows = !strncmp(words[1], "rows ", 5);
    char const *const name = words[1] + (in_rows ? 5 : 0);
    size_t const size = (size_t)atoi(words[2]) * MIB;
    void *const copy = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (copy == NULL) return 4;
    CUdeviceptr device;
    CUstream stream;
    unsigned char *seen, *const source = malloc(size);
    begin(size, &device, &seen, &stream);
    size_t old = 0;
    for (int round = 0; round < ROUNDS; ++round) {
        memset(source, round + 1, size);
        MUST(cuCtxSynchronize());
        if (in_rows) {
            CUDA_MEMCPY2D const rows = {.srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = source, .srcPitch = PITCH,
                                        .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = device, .dstPitch = PITCH,
                                        .WidthInBytes = WIDTH, .Height = size / PITCH};
            MUST(((int (*)(CUDA_MEMCPY2D const *))copy)(&rows));
        } else {
            MUST(((int (*)(CUdeviceptr, void const *, size_t))copy)(device, source, size));
        }
        for (size_t at = size - MIB; at > 0; at -= MIB) {
            MUST(cuMemcpyAsync((CUdeviceptr)(seen + at - MIB), device + at - MIB, MIB, stream));
        }
        MUST(cuStreamSynchronize(stream));
        for (size_t at = 0; at < size - MIB; at += 4096) {
            if (!in_rows || at % PITCH < WIDTH) old += seen[at] != (unsigned char)(round + 1);
        }
    }
    printf("%zu\n", old);
    return 0;
}
