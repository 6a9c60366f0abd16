/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a compiler makes of a few OpenMP constructs, with the runtime in mapping.c. The "device" is the host: memory
 * that only copies and the kernel access. With a vendor's `allocate` and `release` instead, "host:0" becomes "cuda:0".
 *
 *     cc $(python -c 'import pinning; print(*(f"-I{d}" for d in pinning.build.include_dirs()))') *.c -lpinning \
 *        $(python -c 'import pinning; print(*(f"-L{d} -Wl,-rpath,{d}" for d in pinning.build.library_dirs()))') -o program
 */
#include <stdio.h>
#include <stdlib.h>

#include "mapping.h"

static size_t alive;

static int allocate(size_t size, void **device) {
  *device = malloc(size);
  alive += *device != NULL;
  return *device == NULL;
}
static int release(void *device) {
  free(device);
  --alive;
  return 0;
}
static const target host_as_target = {allocate, release};

static void add(double *y, const double *x, size_t n) { /* the kernel, which sees device addresses */
  for (size_t i = 0; i < n; ++i) y[i] += x[i];
}

#define CHECK(call) \
  if (call) return fprintf(stderr, "%s failed\n", #call), 1

int main(int count, char **arguments) {
  enum { N = 1 << 16, BYTES = N * sizeof(double) };
  environment device = {NULL, NULL, &host_as_target};
  if (pinning_map_open(&device.locks, count > 1 ? arguments[1] : "host:0") ||
      pinning_queue_create(device.locks, &device.queue)) {
    return puts(pinning_last_error()), 1;
  }

  double *x = malloc(BYTES), *y = malloc(BYTES);
  for (size_t i = 0; i < N; ++i) x[i] = (double)i, y[i] = 1;

  CHECK(data_begin(&device, x, BYTES, MAP_TO)); /* #pragma omp target data map(to: x) map(tofrom: y) */
  CHECK(data_begin(&device, y, BYTES, MAP_TOFROM));
  pinning_region region;
  printf("x is locked: %s\n", pinning_find(device.locks, x, BYTES, &region) ? "no" : "yes");
  for (int round = 0; round < 3; ++round) {
    CHECK(data_begin(&device, x, BYTES, MAP_TO)); /* a target region inside: mapped already, no copy */
    CHECK(data_begin(&device, y + 8, 64, MAP_TOFROM)); /* and a part of y */
    CHECK(pinning_queue_synchronize(device.queue)); /* this kernel runs on the host, not in a stream behind the copies */
    add(device_address(y), device_address(x), N);
    CHECK(data_end(&device, y + 8, 64, MAP_TOFROM));
    CHECK(data_end(&device, x, BYTES, MAP_TO));
  }
  CHECK(data_update(&device, y, 100 * sizeof *y, MAP_FROM)); /* #pragma omp target update from(y[:100]) */
  printf("y[99] after the update: %g\n", y[99]);
  CHECK(data_end(&device, y, BYTES, MAP_TOFROM));
  CHECK(data_end(&device, x, BYTES, MAP_TO));
  printf("y[%d] at the end: %g\n", N - 1, y[N - 1]);

  CHECK(data_begin(&device, x, 64, MAP_TO));
  printf("more than is mapped: %s\n", data_begin(&device, x, BYTES, MAP_TO) ? "refused" : "mapped");
  CHECK(data_end(&device, x, 64, MAP_TO));
  size_t regions;
  CHECK(pinning_regions(device.locks, NULL, 0, &regions));
  printf("copies: %zu fast, %zu slow; left: %zu locked, %zu on the device\n", fast_copies, slow_copies, regions, alive);
  CHECK(pinning_queue_destroy(device.queue));
  free(x);
  free(y);
  return 0;
}
