// SPDX-License-Identifier: Apache-2.0
// What an OpenMP program's data movement costs: large maps and updates, many small ones, nested regions, threads, and
// single operations. Prints one JSON object. Nothing in it knows of the tool.
//
//   transfers [MIB [locked]]     the largest buffer; "locked": all large buffers are locked by hand first, by the NVIDIA
//                                driver where there is one, else by mlock
#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { steady = 7, mib = 1 << 20 };

static int by_hand, first_figure = 1;

static void figure(const char *name, double value) {
  printf("%s\n  \"%s\": %.6g", first_figure ? "{" : ",", name, value);
  first_figure = 0;
}

static int compare(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static double median(double *times, int count) {
  qsort(times, count, sizeof *times, compare);
  return times[count / 2];
}

// ---- buffers ----

static int (*cuda_register)(void *, size_t, unsigned), (*cuda_unregister)(void *);

static void start_cuda(void) {
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *context;
  if (!cuda) return;
  int (*retain)(void **, int) = (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain");
  int (*push)(void *) = (int (*)(void *))dlsym(cuda, "cuCtxPushCurrent_v2");
  int (*init)(unsigned) = (int (*)(unsigned))dlsym(cuda, "cuInit");
  if (init(0) || retain(&context, 0) || push(context)) return;
  cuda_register = (int (*)(void *, size_t, unsigned))dlsym(cuda, "cuMemHostRegister_v2");
  cuda_unregister = (int (*)(void *))dlsym(cuda, "cuMemHostUnregister");
}

static char *buffer(size_t size) {
  char *p = malloc(size);
  if (!p) exit(fprintf(stderr, "out of memory\n"));
  memset(p, 1, size);
  if (by_hand && (cuda_register ? cuda_register(p, size, 1) : mlock(p, size))) exit(fprintf(stderr, "cannot lock\n"));
  return p;
}

static void release(char *p, size_t size) {
  if (by_hand && (cuda_register ? cuda_unregister(p) : munlock(p, size))) exit(fprintf(stderr, "cannot unlock\n"));
  free(p);
}

// ---- one large buffer, again and again ----

static void map_to(char *p, size_t n) {
#pragma omp target enter data map(to : p[0 : n])
#pragma omp target exit data map(delete : p[0 : n])
}

static void map_from(char *p, size_t n) {
#pragma omp target enter data map(alloc : p[0 : n])
#pragma omp target exit data map(from : p[0 : n])
}

static void map_tofrom(char *p, size_t n) {
#pragma omp target data map(tofrom : p[0 : n])
  {}
}

static void update_to(char *p, size_t n) {
#pragma omp target update to(p[0 : n])
}

static void update_from(char *p, size_t n) {
#pragma omp target update from(p[0 : n])
}

static void large(const char *name, void (*move)(char *, size_t), size_t size, int bytes_moved, int stays_mapped) {
  char *p = buffer(size), key[64];
  double times[steady], first = 0;
  if (stays_mapped) {
#pragma omp target enter data map(alloc : p[0 : size])
  }
  for (int i = -3; i < steady; i++) {
    double start = omp_get_wtime();
    move(p, size);
    double took = omp_get_wtime() - start;
    if (i >= 0) times[i] = took;
    else first += took;
  }
  if (stays_mapped) {
#pragma omp target exit data map(delete : p[0 : size])
  }
  release(p, size);
  snprintf(key, sizeof key, "%s %zu MiB, GB/s", name, size / mib);
  figure(key, bytes_moved * (double)size / median(times, steady) / 1e9);
  snprintf(key, sizeof key, "%s %zu MiB, first three, ms", name, size / mib);
  figure(key, first * 1e3);
}

// ---- many small ones ----

static void small(size_t size) {
  enum { buffers = 64, rounds = 20 };
  char *p[buffers], key[64];
  double times[rounds];
  for (int i = 0; i < buffers; i++) memset(p[i] = malloc(size), 1, size);
  for (int round = -2; round < rounds; round++) {
    double start = omp_get_wtime();
    for (int i = 0; i < buffers; i++) {
      char *one = p[i];
#pragma omp target map(tofrom : one[0 : size])
      one[0]++;
    }
    if (round >= 0) times[round] = omp_get_wtime() - start;
  }
  for (int i = 0; i < buffers; i++) free(p[i]);
  snprintf(key, sizeof key, "map of %zu KiB with a kernel, us", size / 1024);
  figure(key, median(times, rounds) / buffers * 1e6);
}

static void nested(size_t size) {
  char *p = buffer(size);
  double times[steady];
  size_t part = size / 8;
  for (int i = -3; i < steady; i++) {
    double start = omp_get_wtime();
#pragma omp target data map(tofrom : p[0 : size])
    for (int k = 0; k < 8; k++) {
      char *one = p + k * part;
#pragma omp target data map(to : one[0 : part])
      {
#pragma omp target update from(one[0 : part])
      }
    }
    if (i >= 0) times[i] = omp_get_wtime() - start;
  }
  release(p, size);
  figure("nested regions, GB/s", 3.0 * size / median(times, steady) / 1e9);
}

static void threads(size_t size) {
  enum { count = 4 };
  char *p[count];
  double times[steady];
  for (int i = 0; i < count; i++) p[i] = buffer(size);
  for (int i = -3; i < steady; i++) {
    double start = omp_get_wtime();
#pragma omp parallel num_threads(count)
    map_tofrom(p[omp_get_thread_num()], size);
    if (i >= 0) times[i] = omp_get_wtime() - start;
  }
  for (int i = 0; i < count; i++) release(p[i], size);
  figure("four threads, GB/s", 2.0 * count * size / median(times, steady) / 1e9);
}

// ---- single operations ----

static void operations(size_t size) {
  enum { count = 20000, rounds = 5 };
  char *p = buffer(size), *other = malloc(4096);
  double times[rounds];
#pragma omp target enter data map(to : p[0 : size], other[0 : 4096])
  for (int i = 0; i < 3; i++) update_to(p, size);
  struct {
    const char *name;
    char *at;
  } updates[] = {{"update of 8 bytes beside large buffers, ns", other}, {"update of 8 bytes in a large buffer, ns", p + 64}};
  for (int which = 0; which < 2; which++) {
    for (int round = 0; round < rounds; round++) {
      double start = omp_get_wtime();
      for (int i = 0; i < count; i++) update_to(updates[which].at, 8);
      times[round] = omp_get_wtime() - start;
    }
    figure(updates[which].name, median(times, rounds) / count * 1e9);
  }
  for (int round = 0; round < rounds; round++) {
    char *one = other + 2048;
    double start = omp_get_wtime();
    for (int i = 0; i < count; i++) {
#pragma omp target data map(to : one[0 : 8])
      {}
    }
    times[round] = omp_get_wtime() - start;
  }
  figure("map that is there already, ns", median(times, rounds) / count * 1e9);
#pragma omp target exit data map(delete : other[0 : 4096])
  for (int round = 0; round < rounds; round++) {
    double start = omp_get_wtime();
    for (int i = 0; i < count; i++) map_to(other, 8);
    times[round] = omp_get_wtime() - start;
  }
  figure("map to and delete of 8 bytes, ns", median(times, rounds) / count * 1e9);
  for (int round = 0; round < rounds; round++) {
    double start = omp_get_wtime();
    for (int i = 0; i < 50 * count; i++) {
      char *volatile one = malloc(64);
      free(one);
    }
    times[round] = omp_get_wtime() - start;
  }
  figure("malloc and free of 64 bytes, ns", median(times, rounds) / count / 50 * 1e9);
#pragma omp target exit data map(delete : p[0 : size])
  release(p, size);
  free(other);
}

int main(int argc, char **argv) {
  size_t largest = (argc > 1 ? strtoull(argv[1], NULL, 0) : 1024) * mib;
  by_hand = argc > 2 && !strcmp(argv[2], "locked");
  if (by_hand) start_cuda();
  small(4096);  // starts the device
  for (size_t size = largest / 64; size <= largest; size *= 8) {
    if (size < mib) continue;
    large("map to", map_to, size, 1, 0);
    large("map from", map_from, size, 1, 0);
    large("map tofrom", map_tofrom, size, 2, 0);
    large("update to", update_to, size, 1, 1);
    large("update from", update_from, size, 1, 1);
  }
  small(256 << 10);
  nested(largest / 4);
  threads(largest / 16 > mib ? largest / 16 : mib);
  operations(largest / 16 > mib ? largest / 16 : mib);
  printf("\n}\n");
  return 0;
}
