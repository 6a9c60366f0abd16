// SPDX-License-Identifier: Apache-2.0
// A program that moves a buffer, and on the way or at its end does what the first argument says.
#define _GNU_SOURCE
#include <fcntl.h>
#include <locale.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { N = 2 << 20 };

static void use(char *b) {
  for (int i = 0; i < 5; i++) {
#pragma omp target map(tofrom : b[0 : N])
    for (size_t k = 0; k < N; k += 4096) b[k] += 1;
  }
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  char *b = calloc(N, 1);
  if (!strcmp(how, "locale") && !setlocale(LC_ALL, argv[2])) return 77;
  use(b);
  if (!strcmp(how, "abort")) abort();
  if (!strcmp(how, "kill")) raise(SIGKILL);
  if (!strcmp(how, "quick_exit")) quick_exit(0);
  if (!strcmp(how, "fork")) {
    fflush(stdout);
    if (fork() == 0) exit(0);
    wait(NULL);
  }
  if (!strcmp(how, "fork by a system call")) {
    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
      free(b);
      _exit(0);
    }
    wait(NULL);
  }
  if (!strcmp(how, "limit")) {
    struct rlimit limit = {4096, 4096};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  if (!strcmp(how, "program")) {
    char command[4096];
    snprintf(command, sizeof command, "%s", argv[0]);
    if (system(command) != 0) return 3;
  }
  if (!strcmp(how, "closed") || !strcmp(how, "closed, and none left")) {
    int all = strcmp(how, "closed") != 0, first = all ? 3 : 2;
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    if (limit.rlim_cur > 1024) limit.rlim_cur = 1024;
    setrlimit(RLIMIT_NOFILE, &limit);
    for (int i = first; i < (int)limit.rlim_cur; i++) close(i);
    for (int i = first; i < (int)limit.rlim_cur - (all ? 0 : 8); i++) {
      if (open(argv[2], O_WRONLY | O_CREAT | O_APPEND, 0600) != i) return 4;
    }
  }
  use(b);
  free(b);
  return 0;
}
