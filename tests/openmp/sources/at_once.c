// SPDX-License-Identifier: Apache-2.0
// Concurrent threads: "budget" transfers parts of buffers, then all of them, and prints the most that was locked;
// "mandatory" transfers parts of one buffer; "stacks" transfers new buffers while other threads start and look up their
// stacks; "cancel" cancels threads during transfers, and prints whether they continued to the end.
#define _GNU_SOURCE
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "locked.h"

enum { N = 2 << 20 };

// The C library allocates and frees here while it holds a lock of this thread.
static void *ask(void *none) {
  pthread_attr_t attributes;
  for (int i = 0; i < 50; i++)
    if (pthread_getattr_np(pthread_self(), &attributes) == 0) pthread_attr_destroy(&attributes);
  return none;
}

static volatile int cancelled;

static void *move(void *done) {
  while (!cancelled) {}
  char *b = malloc(N);
  memset(b, 1, N);
  for (int i = 0; i < 20; i++) {
#pragma omp target map(tofrom : b[0 : N])
    for (size_t k = 0; k < N; k += 4096) b[k] += 1;
  }
  free(b);
  *(int *)done = 1;
  pthread_testcancel();
  return NULL;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  int rounds = argc > 2 ? atoi(argv[2]) : 1, host = omp_get_initial_device();
  if (!strcmp(how, "budget")) {
    long most = 0;
#pragma omp parallel num_threads(8) reduction(max : most)
    {
      int device = omp_get_thread_num() % omp_get_num_devices();
      char *copy = omp_target_alloc(N, device);
      for (int i = 0; i < rounds; i++) {
        char *b = mmap(NULL, N, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        memset(b, 1, N);
        omp_target_memcpy(copy, b, N / 8, 0, 0, device, host);
#pragma omp barrier
        omp_target_memcpy(copy, b, N, 0, 0, device, host);
        long locked = locked_kib();
        if (locked > most) most = locked;
#pragma omp barrier
        munmap(b, N);
#pragma omp barrier
      }
      omp_target_free(copy, device);
    }
    printf("%ld\n", most);
  } else if (!strcmp(how, "mandatory")) {
    char *b = calloc(N, 1);
#pragma omp parallel num_threads(8)
    {
      unsigned seed = (unsigned)omp_get_thread_num() + 1;
      int device = omp_get_thread_num() % omp_get_num_devices();
      char *copy = omp_target_alloc(N, device);
      for (int i = 0; i < rounds; i++) {
        size_t first = (size_t)rand_r(&seed) % (N / 2), size = 65536 + (size_t)rand_r(&seed) % (N / 2 - 65536);
        omp_target_memcpy(copy, b, size, 0, first, device, host);
      }
      omp_target_free(copy, device);
    }
    printf("done\n");
  } else if (!strcmp(how, "stacks")) {
#pragma omp parallel num_threads(8)
    {
      int device = omp_get_thread_num() % omp_get_num_devices();
      char *copy = omp_target_alloc(N, device);
      for (int i = 0; i < rounds; i++) {
        if (omp_get_thread_num() % 2) {
          pthread_t threads[2];
          for (int k = 0; k < 2; k++) pthread_create(&threads[k], NULL, ask, NULL);
          for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
        } else {
          char *b = calloc(1, 4096);
          omp_target_memcpy(copy, b, 4096, 0, 0, device, host);
          free(b);
        }
      }
      omp_target_free(copy, device);
    }
    printf("done\n");
  } else {
    pthread_t threads[4];
    int done[4] = {0};
    void *result;
    char b[1] = {0};
#pragma omp target map(tofrom : b)
    b[0] = 1;
    for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, move, &done[i]);
    for (int i = 0; i < 4; i++) pthread_cancel(threads[i]);
    cancelled = 1;
    for (int i = 0; i < 4; i++) {
      pthread_join(threads[i], &result);
      printf("%d%d ", done[i], result == PTHREAD_CANCELED);
    }
    printf("\n");
  }
  return 0;
}
