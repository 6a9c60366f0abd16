// SPDX-License-Identifier: Apache-2.0
// Many small buffers, as many bytes apart as each has, all mapped and then transferred often enough to be locked. Then
// prints how many of the program's own mappings and threads fail.
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static void *nothing(void *given) { return given; }

int main(int argc, char **argv) {
  size_t count = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000, size = argc > 2 ? strtoull(argv[2], NULL, 0) : 4096;
  char *all = mmap(NULL, 2 * count * size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(all, 1, 2 * count * size);
  for (size_t i = 0; i < count; i++) {
    char *p = all + 2 * i * size;
#pragma omp target enter data map(to : p[0 : size])
  }
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < count; i++) {
      char *p = all + 2 * i * size;
#pragma omp target update to(p[0 : size])
    }
  }
  int maps = 0, threads = 0;
  for (int i = 0; i < 64; i++) {
    pthread_t thread;
    maps += mmap(NULL, 1 << 20, PROT_READ | (i % 2 ? PROT_WRITE : 0), MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) == MAP_FAILED;
    if (pthread_create(&thread, NULL, nothing, NULL)) threads++;
    else pthread_join(thread, NULL);
  }
  for (size_t i = 0; i < count; i++) {
    char *p = all + 2 * i * size;
#pragma omp target exit data map(from : p[0 : size])
  }
  printf("%d mappings and %d threads failed\n", maps, threads);
  return 0;
}
