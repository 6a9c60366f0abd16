// SPDX-License-Identifier: Apache-2.0
// Threads that concurrently map their own buffers and one that they share, also with deferred tasks.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  size_t n = (argc > 1 ? strtoull(argv[1], NULL, 0) : 512) << 8;  // argument: KiB
  int devices = omp_get_num_devices() > 0 ? omp_get_num_devices() : 1;
  int *shared = malloc(n * sizeof *shared);
  for (size_t i = 0; i < n; i++) shared[i] = (int)(i % 11);
  long sums[4] = {0};

#pragma omp parallel num_threads(4)
  {
    int me = omp_get_thread_num();
    for (int round = 0; round < 6; round++) {
      int *own = malloc(n * sizeof *own);
      for (size_t i = 0; i < n; i++) own[i] = me;
      long sum = 0;
#pragma omp target map(tofrom : own[0 : n], sum) map(to : shared[0 : n]) device(me % devices)
      for (size_t i = 0; i < n; i++) sum += own[i] += shared[i];
#pragma omp target map(tofrom : own[0 : n / 2]) device(me % devices) nowait
      for (size_t i = 0; i < n / 2; i++) own[i]++;
#pragma omp taskwait
      for (size_t i = 0; i < n; i++) sum += own[i];
      sums[me] += sum;
      free(own);
    }
  }
  for (int i = 0; i < 4; i++) printf("thread %d: %ld\n", i, sums[i]);
  free(shared);
  return 0;
}
