// SPDX-License-Identifier: Apache-2.0
// A library that answers dlsym by libc's, as tracers of calls do. What is behind it is then what RTLD_NEXT means.
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
    __asm__("" ::: "memory");  // so that libc's is called from here
    return found;
}
