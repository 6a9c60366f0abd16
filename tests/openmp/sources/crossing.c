// SPDX-License-Identifier: Apache-2.0
// Two threads transfer overlapping parts of one buffer at once, one by maps, one by copies, with a new buffer in each
// round: each crosses the other's lock while data is in flight. Prints how many values arrived wrong.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  size_t n = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1024) << 8;  // argument: KiB
  int rounds = argc > 2 ? atoi(argv[2]) : 20, device = omp_get_default_device(), host = omp_get_initial_device();
  long wrong = 0, failed = 0;
  for (int round = 0; round < rounds; round++) {
    int *a = malloc(n * sizeof *a), *back = malloc(n * sizeof *a);
    for (size_t i = 0; i < n; i++) a[i] = (int)i ^ round;
    size_t head = n / 2 + n / 8, tail = n / 2 - n / 8, rest = (n - tail) * sizeof *a;
#pragma omp parallel num_threads(2) reduction(+ : wrong, failed)
    if (omp_get_thread_num() == 0) {
      for (int k = 0; k < 6; k++) {
        long bad = 0;
#pragma omp target map(to : a[0 : head]) map(tofrom : bad)
        for (size_t i = 0; i < head; i++) bad += a[i] != ((int)i ^ round);
        wrong += bad;
      }
    } else {
      void *copy = omp_target_alloc(rest, device);
      for (int k = 0; k < 6; k++) {
        failed += omp_target_memcpy(copy, a, rest, 0, tail * sizeof *a, device, host) != 0;
        failed += omp_target_memcpy(back, copy, rest, tail * sizeof *a, 0, host, device) != 0;
        for (size_t i = tail; i < n; i++) wrong += back[i] != ((int)i ^ round);
      }
      omp_target_free(copy, device);
    }
    free(a), free(back);
  }
  printf("%ld wrong, %ld failed\n", wrong, failed);
  return wrong || failed;
}
