// SPDX-License-Identifier: Apache-2.0
// Calls of the driver that must succeed.
#include <stdio.h>
#include <stdlib.h>

#define MUST(call)                                              \
    do {                                                        \
        int const code = (int)(call);                           \
        if (code != 0) {                                        \
            printf("%s: %d\n", #call, code);                    \
            exit(3);                                            \
        }                                                       \
    } while (0)
