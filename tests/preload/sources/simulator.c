// SPDX-License-Identifier: Apache-2.0
// A simulated driver under another name, with -DLIBRARY; otherwise a program that is linked to it, and has the real
// driver beside it if there is one. Prints what its copies return.
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int cuMemcpyHtoD_v2(unsigned long long dst, void const *src, size_t size);

#ifdef LIBRARY
int cuMemcpyHtoD_v2(unsigned long long dst, void const *src, size_t size) {
    memcpy((void *)dst, src, size);
    return 77;
}
#else
int main(void) {
    enum { SIZE = 8 << 20 };
    static char from[SIZE] = "bytes", to[SIZE];
    printf("%s\n", dlopen("libcuda.so.1", RTLD_NOW) != NULL ? "beside a driver" : "alone");
    for (size_t size = 8; size <= SIZE; size *= 1024) {
        to[0] = 0;
        printf("%d ", cuMemcpyHtoD_v2((unsigned long long)to, from, size));
        printf("%s\n", to);
    }
    return 0;
}
#endif
