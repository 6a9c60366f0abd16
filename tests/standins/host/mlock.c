// SPDX-License-Identifier: Apache-2.0
//
// A stand-in for the part of the C library that locks memory, loaded before it (LD_PRELOAD). Each call is passed on to
// the C library, unless standin.h's configuration makes it fail: then it returns -1, with the code as errno. Besides:
//   interrupt=N           Ctrl-C arrives during the N-th call of mlock

#define STANDIN "HOST"

#include <dlfcn.h>
#include <signal.h>
#include <sys/mman.h>

#include "standin.h"

static int interrupt_at, calls;

static bool standin_option(const char *entry) {
    if (!entry) return interrupt_at = calls = 0, true;
    return sscanf(entry, "interrupt=%d", &interrupt_at) == 1;
}

#define PASS_ON(function, ...)                                           \
    do {                                                                 \
        int code = enter(#function, "%p %zu", __VA_ARGS__);               \
        if (code) return errno = code, -1;                               \
        return ((__typeof__(&function))dlsym(RTLD_NEXT, #function))(__VA_ARGS__); \
    } while (0)

int mlock(const void *addr, size_t len) {
    if (__atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == interrupt_at) kill(getpid(), SIGINT);
    PASS_ON(mlock, (void *)addr, len);
}
int munlock(const void *addr, size_t len) { PASS_ON(munlock, (void *)addr, len); }
