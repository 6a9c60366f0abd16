// SPDX-License-Identifier: Apache-2.0
// One way of using a buffer, named by the first argument; the second is its size in bytes.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <omp.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "locked.h"

void *llvm_omp_target_lock_mem(void *ptr, size_t size, int device);
void llvm_omp_target_unlock_mem(void *ptr, int device);
void *llvm_omp_target_alloc_host(size_t size, int device);
void llvm_omp_target_free_host(void *ptr, int device);

static size_t n;

static void add(char *p, int times) {
  for (int i = 0; i < times; i++) {
#pragma omp target map(tofrom : p[0 : n])
    for (size_t k = 0; k < n; k++) p[k] += 1;
  }
}

static long sum(const char *p) {
  long all = 0;
  for (size_t k = 0; k < n; k++) all += p[k];
  return all;
}

static void *add_in_thread(void *p) {
  add(p, 5);
  return NULL;
}

static void *load_libraries(void *going) {
  while (*(volatile int *)going) {
    void *library = dlopen("libresolv.so.2", RTLD_NOW | RTLD_LOCAL);
    if (!library) exit(5);
    dlclose(library);
  }
  return NULL;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "heap";
  n = argc > 2 ? strtoull(argv[2], NULL, 0) : 1 << 20;
  char *p = NULL;
  if (!strcmp(how, "heap")) {
    add(p = calloc(n, 1), 5);
    printf("%ld\n", sum(p));
    fprintf(stderr, "locked KiB: %ld\n", locked_kib());
    free(p);
    fprintf(stderr, "locked KiB after free: %ld\n", locked_kib());
  } else if (!strcmp(how, "smaller")) {
    for (int i = 0; i < 2; i++, n /= 2) {
      add(p = calloc(n, 1), 5);
      printf("%ld\n", sum(p));
      free(p);
    }
  } else if (!strncmp(how, "stack", 5)) {
    char on_stack[n];
    pthread_t thread;
    memset(on_stack, 0, n);
    if (!strcmp(how, "stack")) add(on_stack, 5);
    else pthread_create(&thread, NULL, add_in_thread, on_stack), pthread_join(thread, NULL);
    printf("%ld\n", sum(on_stack));
    fprintf(stderr, "locked KiB: %ld\n", locked_kib());
  } else if (!strcmp(how, "library")) {
    void *library = dlopen(argv[3], RTLD_NOW);
    if (!library) return 6;
    add(p = dlsym(library, "bytes"), 5);
    printf("%ld\n", sum(p));
    fprintf(stderr, "locked KiB: %ld\n", locked_kib());
    dlclose(library);
  } else if (!strcmp(how, "read-only")) {
    char name[] = "/tmp/pinning-XXXXXX";
    int file = mkstemp(name);
    unlink(name);
    if (ftruncate(file, (off_t)n)) return 3;
    p = mmap(NULL, n, PROT_READ, MAP_PRIVATE, file, 0);
    long found = 0;
    for (int i = 0; i < 5; i++) {
#pragma omp target map(to : p[0 : n]) map(tofrom : found)
      for (size_t k = 0; k < n; k++) found += p[k] + 1;
    }
    printf("%ld\n", found);
    munmap(p, n);
  } else if (!strcmp(how, "freed while mapped")) {
    void *apart = (void *)(1L << 36);  // where no other mapping takes its place
    p = mmap(apart, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(p, 1, n);
#pragma omp target enter data map(to : p[0 : n])
#pragma omp target update to(p[0 : n])
    munmap(p, n);
    fprintf(stderr, "locked KiB: %ld\n", locked_kib());
    if (mmap(p, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != p) return 4;
    memset(p, 2, n);
#pragma omp target update to(p[0 : n])
    memset(p, 0, n);
#pragma omp target exit data map(from : p[0 : n])
    printf("%ld\n", sum(p));
  } else if (!strcmp(how, "through views")) {
    p = calloc(n, 1);
    char *half = p + n / 2;
    for (int i = 0; i < 5; i++) {
#pragma omp target map(tofrom : half[0 : n / 2])
      for (size_t k = 0; k < n / 2; k++) half[k] += 1;
#pragma omp target map(tofrom : p[0 : n / 4])
      for (size_t k = 0; k < n / 4; k++) p[k] += 1;
      add(p, 1);
    }
    printf("%ld\n", sum(p));
    fprintf(stderr, "locked KiB: %ld\n", locked_kib());
  } else if (!strcmp(how, "threads")) {
    pthread_t threads[2];
    p = calloc(n, 1);
#pragma omp target enter data map(to : p[0 : n])
    pthread_create(&threads[0], NULL, add_in_thread, p);
    pthread_create(&threads[1], NULL, add_in_thread, p);
    pthread_join(threads[0], NULL);
    pthread_join(threads[1], NULL);
    for (int i = 0; i < 3; i++) {
#pragma omp target update from(p[0 : n])
    }
#pragma omp target exit data map(delete : p[0 : n])
    printf("%d\n", sum(p) > 0);
  } else if (!strcmp(how, "while libraries are loaded")) {
    pthread_t thread;
    volatile int going = 1;
    long all = 0;
    size_t whole = n;
    char *low = malloc(n = 65536), *high = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(low, 0, n);
    add(low, 2), add(high, 2);  // so that what the loader frees lies between two locks
    pthread_create(&thread, NULL, load_libraries, (void *)&going);
    for (int i = 0; i < 200; i++) {
      n = i % 2 ? whole : 65536;
      add(p = calloc(n, 1), 2);
      all += sum(p);
      free(p);
    }
    going = 0;
    pthread_join(thread, NULL);
    printf("%ld\n", all);
  } else if (!strcmp(how, "fork")) {
    add(p = calloc(n, 1), 5);
    fflush(stdout);
    if (fork() == 0) {
      free(p);
      _exit(locked_kib() == 0 ? 0 : 9);
    }
    int status;
    wait(&status);
    printf("%ld %d\n", sum(p), WEXITSTATUS(status));
  } else if (!strcmp(how, "own lock")) {
    p = calloc(n, 1);
    int same = llvm_omp_target_lock_mem(p, n, 0) == p;
    long whole = locked_kib();
    same += llvm_omp_target_lock_mem(p + 5, 1, 1) == p + 5;
    fprintf(stderr, "locked KiB: %ld\n", whole);
    llvm_omp_target_unlock_mem(p, 0);
    llvm_omp_target_unlock_mem(p, 0);
    fprintf(stderr, "locked KiB after unlock: %ld\n", locked_kib());
    char *host = llvm_omp_target_alloc_host(n, 0);
    fprintf(stderr, "locked KiB of an allocation: %ld\n", locked_kib());
    memset(host, 1, n);
    printf("%d %ld\n", same, sum(host));
    llvm_omp_target_free_host(host, 0);
    fprintf(stderr, "locked KiB at the end: %ld\n", locked_kib());
  } else if (!strcmp(how, "beside an own lock")) {
    llvm_omp_target_lock_mem(p = calloc(n, 1), n, 0);
    add(calloc(n, 1), 5);
  } else if (!strcmp(how, "around an own lock")) {
    p = calloc(n, 1);
    llvm_omp_target_lock_mem(p + n / 2, n / 2, 0);
#pragma omp target enter data map(alloc : p[0 : n])
    for (int i = 0; i < 5; i++) {
#pragma omp target update to(p[0 : n / 4])
    }
#pragma omp target exit data map(delete : p[0 : n])
  } else {
    return 2;
  }
  return 0;
}
