// SPDX-License-Identifier: Apache-2.0
// One buffer in nested and changing regions: parts of it, then all of it, then a copy that reaches over several maps,
// buffers on the stack, read-only data, and memory that is freed and allocated again at the same address.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int table[4] = {1, 2, 3, 4};

static long sum_of(const int *p, size_t n) {
  long sum = 0;
  for (size_t i = 0; i < n; i++) sum += p[i];
  return sum;
}

int main(int argc, char **argv) {
  size_t n = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1024) << 8, half = n / 2;  // argument: KiB
  int device = omp_get_default_device(), host = omp_get_initial_device();
  int *a = malloc(n * sizeof *a), on_stack[2048];
  for (size_t i = 0; i < n; i++) a[i] = (int)(i % 97);
  memset(on_stack, 0, sizeof on_stack);

  for (int round = 0; round < 4; round++) {
#pragma omp target data map(tofrom : a[0 : half])
    {
#pragma omp target map(tofrom : a[0 : half]) map(to : table) map(tofrom : on_stack)
      for (size_t i = 0; i < half; i++) a[i] += table[i % 4], on_stack[i % 2048]++;
#pragma omp target update from(a[half / 4 : half / 4])
    }
    // The whole crosses the half that may be locked by now.
#pragma omp target data map(tofrom : a[0 : n])
    {
#pragma omp target map(tofrom : a[half : half])
      for (size_t i = half; i < n; i++) a[i] ^= 5;
#pragma omp target update to(a[half : half / 2])
    }
    // And this crosses its middle.
    int *copy = omp_target_alloc(n * sizeof *a, device);
    if (!copy) return 1;
    if (omp_target_memcpy(copy, a, half * sizeof *a, 0, half / 2 * sizeof *a, device, host)) return 2;
    if (omp_target_memcpy(a, copy, half * sizeof *a, half / 2 * sizeof *a, 0, host, device)) return 3;
    omp_target_free(copy, device);
    printf("round %d: %ld %ld\n", round, sum_of(a, n), sum_of(on_stack, 2048));
  }
  free(a);

  long sum = 0;
  for (int round = 0; round < 6; round++) {
    int *again = malloc(n * sizeof *again);
    for (size_t i = 0; i < n; i++) again[i] = (int)(i + round);
#pragma omp target teams distribute parallel for map(to : again[0 : n]) map(tofrom : sum) reduction(+ : sum)
    for (size_t i = 0; i < n; i++) sum += again[i];
    free(again);
  }
  printf("freed and mapped anew: %ld\n", sum);
  return 0;
}
