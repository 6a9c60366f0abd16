/* SPDX-License-Identifier: Apache-2.0 */
/* Preloaded into a program: holds a lock of 1 MiB, watched by the kernel, for the lifetime of each of its processes. */
#include <pinning/pinning.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

static pinning_status hold(void) {
  size_t const size = 1 << 20;
  void *const memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pinning_map *map;
  pinning_status const opened = pinning_map_open(&map, "host:0");
  return opened == PINNING_OK ? pinning_lock(map, memory, size, NULL) : opened;
}

/* The program may leave a child too little memory or too few descriptors for a lock. */
static void hold_in_child(void) { (void)hold(); }

__attribute__((constructor)) static void hold_from_the_start(void) {
  pthread_atfork(NULL, NULL, hold_in_child);
  if (hold() == PINNING_OK) return;
  fprintf(stderr, "no lock is held: %s\n", pinning_last_error());
  abort();
}
