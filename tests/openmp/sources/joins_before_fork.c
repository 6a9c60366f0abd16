// SPDX-License-Identifier: Apache-2.0
// A library that ends its threads before a fork and starts them after it, as OpenBLAS does; or, compiled with PROGRAM,
// a program that is linked to it and forks.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

void start_threads(void);

#ifdef PROGRAM
int main(void) {
  start_threads();
  for (int i = 0; i < 20; i++) {
    pid_t const child = fork();
    if (child == 0) _exit(7);
    int status;
    if (waitpid(child, &status, 0) != child || WEXITSTATUS(status) != 7) return 1;
  }
  printf("20 children\n");
  return 0;
}
#else
enum { count = 3 };
static pthread_t threads[count];
static int pipes[2], started;

static void *work(void *nothing) {
  char end;
  free(malloc(1 << 18));
  return read(pipes[0], &end, 1) == 1 ? nothing : NULL;
}

static void start_in_parent(void) {
  if (started) start_threads();
}

static void stop_threads(void) {
  if (!started) return;
  if (write(pipes[1], "xxx", count) != count) abort();
  for (int i = 0; i < count; i++) pthread_join(threads[i], NULL);
}

void start_threads(void) {
  started = 1;
  for (int i = 0; i < count; i++) {
    if (pthread_create(&threads[i], NULL, work, NULL) != 0) abort();
  }
}

__attribute__((constructor)) static void begin(void) {
  if (pipe(pipes) != 0 || pthread_atfork(stop_threads, start_in_parent, start_in_parent) != 0) abort();
}
#endif
