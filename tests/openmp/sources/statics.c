// SPDX-License-Identifier: Apache-2.0
// The program's own static data, mapped, declared for the device, and copied by address without a mapping.
#include <omp.h>
#include <stdio.h>

enum { N = 2 << 20 };
static char mapped[N], copied[N];
#pragma omp declare target
char declared[N];
#pragma omp end declare target

int main(void) {
  int device = omp_get_default_device(), host = omp_get_initial_device();
  char *copy = omp_target_alloc(N, device);
  for (int i = 0; i < 4; i++) {
#pragma omp target map(tofrom : mapped)
    for (int k = 0; k < N; k += 4096) mapped[k] += 1;
    declared[0]++;
#pragma omp target update to(declared)
    omp_target_memcpy(copy, copied, N, 0, 0, device, host);
  }
  omp_target_free(copy, device);
  printf("%d %d\n", mapped[4096], declared[0]);
  return 0;
}
