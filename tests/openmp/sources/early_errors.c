// SPDX-License-Identifier: Apache-2.0
// A library whose constructor, which runs before those of preloaded libraries, looks for names that do not exist.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>

__attribute__((constructor)) static void look(void) {
  for (int i = 0; i < 3; i++) {
    if (dlsym(RTLD_DEFAULT, "pinning_has_no_such_name") != NULL) __builtin_trap();
    if (dlopen("libpinning_has_no_such_library.so", RTLD_NOW) != NULL) __builtin_trap();
  }
}
