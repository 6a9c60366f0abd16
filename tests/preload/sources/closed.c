// SPDX-License-Identifier: Apache-2.0
// Opens the driver, copies and closes it, three times: closed WAY, which is dlsym or proc (cuGetProcAddress). Between
// the times other memory takes the addresses at which a library that was unloaded has been.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef unsigned long long Device;

static void *driver;

static void *function(char const *name) {
    void *const found = dlsym(driver, name);
    if (found == NULL) exit(4);
    return found;
}

static int copy_once(char const *way) {
    driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver == NULL) return 3;
    int (*const init)(unsigned) = function("cuInit");
    int (*const retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
    int (*const set)(void *) = function("cuCtxSetCurrent"), (*const release)(Device) = function("cuMemFree_v2");
    int (*const allocate)(Device *, size_t) = function("cuMemAlloc_v2");
    int (*copy)(Device, void const *, size_t) = NULL;
    if (!strcmp(way, "proc")) {
        int (*const get)(char const *, void *, int, unsigned long long, int *) = function("cuGetProcAddress_v2");
        int status;
        if (get("cuMemcpyHtoD", &copy, 12000, 0, &status) != 0) return 5;
    } else {
        copy = function("cuMemcpyHtoD_v2");
    }
    void *context;
    Device memory;
    static char const source[1 << 20];
    if (init(0) != 0 || retain(&context, 0) != 0 || set(context) != 0) return 6;
    if (allocate(&memory, sizeof source) != 0) return 6;
    if (copy(memory, source, sizeof source) != 0 || release(memory) != 0) return 7;
    return dlclose(driver);
}

int main(int count, char **arguments) {
    for (int i = 0; i < 3; i++) {
        int const failed = copy_once(count > 1 ? arguments[1] : "");
        if (failed != 0) return failed;
        for (int j = 0; j < 400; j++) mmap(NULL, 1 << 16, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    }
    puts("copied");
    return 0;
}
