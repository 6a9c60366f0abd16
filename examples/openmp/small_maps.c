// SPDX-License-Identifier: Apache-2.0
// Many small buffers, each mapped for one small kernel: nothing here is worth a lock, and the tool must cost nothing.
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>

enum { buffers = 64, n = 1024 };

int main(int argc, char **argv) {
  int rounds = argc > 1 ? atoi(argv[1]) : 20;
  int *buffer[buffers], scale = 1;
  for (int i = 0; i < buffers; i++) buffer[i] = calloc(n, sizeof(int));
  double start = omp_get_wtime();
  for (int round = 0; round < rounds; round++) {
    for (int i = 0; i < buffers; i++) {
      int *one = buffer[i];
#pragma omp target map(tofrom : one[0 : n]) map(to : scale)
      for (int k = 0; k < n; k++) one[k] += scale * (k % (i + 1));
    }
  }
  double seconds = omp_get_wtime() - start;
  long sum = 0;
  for (int i = 0; i < buffers; i++) {
    for (int k = 0; k < n; k++) sum += buffer[i][k];
    free(buffer[i]);
  }
  printf("sum %ld\n", sum);
  fprintf(stderr, "%.2f us a map\n", seconds * 1e6 / rounds / buffers);
  return 0;
}
