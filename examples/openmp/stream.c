// SPDX-License-Identifier: Apache-2.0
// STREAM's four kernels on a device, with the arrays moved there and back each time, as in a program that does its
// other work on the host. Targets of GPUs: nvptx64-nvidia-cuda, amdgcn-amd-amdhsa.
//
//   clang -O2 -fopenmp -fopenmp-targets=x86_64-pc-linux-gnu stream.c -o stream
//   ./stream
//   pinning run --report -- ./stream
//
// Prints the result, which is the same on all devices, to standard output, and the speed to standard error.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  size_t n = (argc > 1 ? strtoull(argv[1], NULL, 0) : 16) << 17;  // argument: MiB per array
  int rounds = argc > 2 ? atoi(argv[2]) : 10;
  double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c);
  if (!a || !b || !c) return fprintf(stderr, "out of memory\n"), 1;
  for (size_t i = 0; i < n; i++) a[i] = 1, b[i] = 2, c[i] = 0;

  double first = 0, rest = 0;
  for (int round = 0; round < rounds; round++) {
    double start = omp_get_wtime();
#pragma omp target teams distribute parallel for map(to : a[0 : n]) map(from : c[0 : n])
    for (size_t i = 0; i < n; i++) c[i] = a[i];
#pragma omp target teams distribute parallel for map(to : c[0 : n]) map(from : b[0 : n])
    for (size_t i = 0; i < n; i++) b[i] = 3 * c[i];
#pragma omp target teams distribute parallel for map(to : a[0 : n], b[0 : n]) map(from : c[0 : n])
    for (size_t i = 0; i < n; i++) c[i] = a[i] + b[i];
#pragma omp target teams distribute parallel for map(to : b[0 : n], c[0 : n]) map(from : a[0 : n])
    for (size_t i = 0; i < n; i++) a[i] = (b[i] + 3 * c[i]) / 15;
    double seconds = omp_get_wtime() - start;
    if (round < 2) first += seconds;
    else rest += seconds;
  }
  double sum = 0;
  for (size_t i = 0; i < n; i++) sum += a[i] + b[i] + c[i];
  printf("%zu MiB in each of three arrays, sum %.6f\n", n >> 17, sum);
  if (rounds > 2) {
    fprintf(stderr, "first two rounds %.1f ms, then %.1f ms each: %.2f GB/s moved\n", first * 1e3,
            rest / (rounds - 2) * 1e3, 10.0 * n * sizeof *a * (rounds - 2) / rest / 1e9);
  }
  free(a), free(b), free(c);
  return 0;
}
