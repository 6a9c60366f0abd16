// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the part of the C library that pinning_host calls, loaded before it (LD_PRELOAD). Each call is passed on
// to the C library, unless standin.h's configuration lets it fail: then it gives -1, and the code is its errno.

#define _GNU_SOURCE
#define STANDIN "HOST"

#include <dlfcn.h>
#include <sys/mman.h>

#include "standin.h"

static bool standin_option(const char *entry) { return !entry; }

#define PASS_ON(function, ...)                                           \
    do {                                                                 \
        int code = enter(#function, "%p %zu", __VA_ARGS__);               \
        if (code) return errno = code, -1;                               \
        return ((__typeof__(&function))dlsym(RTLD_NEXT, #function))(__VA_ARGS__); \
    } while (0)

int mlock(const void *addr, size_t len) { PASS_ON(mlock, (void *)addr, len); }
int munlock(const void *addr, size_t len) { PASS_ON(munlock, (void *)addr, len); }
