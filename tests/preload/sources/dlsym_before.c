// SPDX-License-Identifier: Apache-2.0
// A library that implements dlsym by calling libc's, as call tracers do. RTLD_NEXT then means what comes after it.
#define _GNU_SOURCE
#include <dlfcn.h>

typedef void *Dlsym(void *, char const *);

void *dlsym(void *handle, char const *name) {
#if defined(__x86_64__)
    Dlsym *const libcs = (Dlsym *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5");
#else
    Dlsym *const libcs = (Dlsym *)dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.17");
#endif
    void *const found = libcs(handle, name);
    __asm__("" ::: "memory");  // no tail call: libc's must be called from here
    return found;
}
