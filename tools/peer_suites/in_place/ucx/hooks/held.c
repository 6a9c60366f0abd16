/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program: holds a lock of 1 MiB, watched by the kernel, for the lifetime of the process. */
#include <pinning/pinning.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

__attribute__((constructor)) static void hold(void) {
  size_t const size = 1 << 20;
  void *const memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pinning_map *map;
  if (pinning_map_open(&map, "host:0") == PINNING_OK && pinning_lock(map, memory, size, NULL) == PINNING_OK) return;
  fprintf(stderr, "no lock is held: %s\n", pinning_last_error());
  abort();
}
