// SPDX-License-Identifier: Apache-2.0
// Heat that spreads over a plate: the plate stays on the device in a data region, and every few steps the host takes a
// picture (target update from) and heats the first rows again (target update to, a part of the plate).
//
//   clang -O2 -fopenmp -fopenmp-targets=x86_64-pc-linux-gnu stencil.c -o stencil
//   ./stencil; pinning run --report -- ./stencil
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
  int n = argc > 1 ? atoi(argv[1]) : 1024, steps = argc > 2 ? atoi(argv[2]) : 40;
  size_t size = (size_t)n * n;
  float *now = calloc(size, sizeof *now), *next = calloc(size, sizeof *next);
  if (!now || !next || n < 8) return fprintf(stderr, "usage: stencil [WIDTH, at least 8] [STEPS]\n"), 1;

#pragma omp target data map(tofrom : now[0 : size]) map(alloc : next[0 : size])
  for (int step = 0; step < steps; step++) {
    if (step % 10 == 0) {
#pragma omp target update from(now[0 : size])
      double heat = 0;
      for (size_t i = 0; i < size; i++) heat += now[i];
      printf("step %d: heat %.3f\n", step, heat);
      for (int x = 0; x < 4 * n; x++) now[x] = 100;
#pragma omp target update to(now[0 : 4 * n])
    }
#pragma omp target teams distribute parallel for collapse(2)
    for (int y = 1; y < n - 1; y++) {
      for (int x = 1; x < n - 1; x++) {
        size_t i = (size_t)y * n + x;
        next[i] = now[i] + 0.2f * (now[i - 1] + now[i + 1] + now[i - n] + now[i + n] - 4 * now[i]);
      }
    }
#pragma omp target teams distribute parallel for collapse(2)
    for (int y = 1; y < n - 1; y++) {
      for (int x = 1; x < n - 1; x++) now[(size_t)y * n + x] = next[(size_t)y * n + x];
    }
  }
  double heat = 0;
  for (size_t i = 0; i < size; i++) heat += now[i];
  printf("end: heat %.3f\n", heat);
  free(now), free(next);
  return 0;
}
