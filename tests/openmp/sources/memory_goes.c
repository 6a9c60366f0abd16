// SPDX-License-Identifier: Apache-2.0
// A buffer is transferred until it is locked; then its pages are removed as the first argument names. Prints what is
// locked before, after, and once the same addresses were transferred again; the exit status says whether it worked.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#include "locked.h"

enum { N = 2 << 20, STACK = 16 << 20 };
static const int ours = MAP_PRIVATE | MAP_ANONYMOUS, read_write = PROT_READ | PROT_WRITE;

static void use(char *b) {
  for (int i = 0; i < 4; i++) {
#pragma omp target map(tofrom : b[0 : N])
    for (size_t k = 0; k < N; k += 4096) b[k] += 1;
  }
}

static char *shared;
static pthread_barrier_t barrier;

static void *keep_on_the_stack(void *ignored) {
  char b[N];
  memset(b, 0, N);
  shared = b;
  pthread_barrier_wait(&barrier);
  pthread_barrier_wait(&barrier);
  return ignored;
}

static int keep_on_the_stack_of_c11(void *ignored) { return keep_on_the_stack(ignored) != NULL; }

/// A system call that no library sees.
static long raw(long number, long a, long b, long c, long d, long e, long f) {
#if defined(__x86_64__)
  register long r10 __asm__("r10") = d, r8 __asm__("r8") = e, r9 __asm__("r9") = f;
  __asm__ volatile("syscall"
                   : "+a"(number)
                   : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return number;
#elif defined(__aarch64__)
  register long x8 __asm__("x8") = number, x0 __asm__("x0") = a, x1 __asm__("x1") = b, x2 __asm__("x2") = c;
  register long x3 __asm__("x3") = d, x4 __asm__("x4") = e, x5 __asm__("x5") = f;
  __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(x5) : "memory");
  return x0;
#else
  return syscall(number, a, b, c, d, e, f);
#endif
}

/// Replace the memory at `b` by other memory without calling any library.
static int replace(const char *how, char *b) {
  long place = (long)b, other = 0, anew = MAP_FIXED_NOREPLACE;
  if (!strncmp(how, "raw munmap", 10)) {
    if (raw(SYS_munmap, place, N, 0, 0, 0, 0) != 0) return 2;
  } else if (!strcmp(how, "raw mremap")) {
    other = raw(SYS_mmap, 0, N, PROT_NONE, ours, -1, 0);
    if (raw(SYS_mremap, place, N, N, MREMAP_MAYMOVE | MREMAP_FIXED, other, 0) != other) return 3;
    if (raw(SYS_munmap, other, N, 0, 0, 0, 0) != 0) return 4;
  } else {
    anew = MAP_FIXED;
  }
  return raw(SYS_mmap, place, N, read_write, ours | anew, -1, 0) == place ? 0 : 5;
}

enum { PIPES = 50 };
static int ends[PIPES][2];

/// Close all files, and put a byte into pipes that get their numbers.
static void take_the_numbers_of_files(void) {
  for (int i = 3; i < 1024; i++) close(i);
  for (int i = 0; i < PIPES; i++) {
    if (pipe2(ends[i], O_NONBLOCK) || write(ends[i][1], "x", 1) != 1) exit(7);
  }
}

static int bytes_lost(void) {
  int lost = 0;
  for (int i = 0; i < PIPES; i++) {
    char byte;
    lost += read(ends[i][0], &byte, 1) != 1;
  }
  return lost;
}

static void *end_without_a_word(void *id) {
  *(volatile pid_t *)id = gettid();
  syscall(SYS_exit, 0);
  return NULL;
}

static int advise(char *b, int advice) {
  int failed = madvise(b, N, advice);
  return failed && errno == EINVAL && madvise(NULL, 0, advice) ? 77 : failed;  // 77: an older kernel
}

// Advise the same addresses of another process, and pass a list of ranges whose second half cannot be read.
static int advise_elsewhere(char *b) {
  enum { page = 65536, pidfd_open = 434, process_madvise_ = 440, cold = 20 };
  pid_t child = fork();
  if (child == 0) {
    pause();
    _exit(0);
  }
  struct iovec one = {b, N};
  syscall(process_madvise_, syscall(pidfd_open, child, 0), &one, 1L, (long)cold, 0L);
  kill(child, SIGKILL);
  waitpid(child, NULL, 0);
  char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct iovec *last = (struct iovec *)(pages + page) - 1;
  *last = one;
  return mprotect(pages + page, page, PROT_NONE) != 0 ||
         syscall(process_madvise_, syscall(pidfd_open, getpid(), 0), last, 2L, (long)cold, 0L) != -1;
}

int main(int argc, char **argv) {
  const char *how = argc > 1 ? argv[1] : "";
  int failed = 0;
  char *b;
  if (!strncmp(how, "stack", 5)) {
    pthread_t thread;
    thrd_t c11;
    pthread_attr_t attributes;
    pthread_barrier_init(&barrier, NULL, 2);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK);
    int is_c11 = !strcmp(how, "stack of C11");
    if (is_c11) thrd_create(&c11, keep_on_the_stack_of_c11, NULL);
    else pthread_create(&thread, &attributes, keep_on_the_stack, NULL);
    pthread_barrier_wait(&barrier);
    use(b = shared);
    printf("%ld", locked_kib());
    pthread_barrier_wait(&barrier);
    if (is_c11) thrd_join(c11, NULL);
    else pthread_join(thread, NULL);
    printf(" %ld\n", locked_kib());
    return 0;
  }
  b = mmap((void *)(1L << 36), N, read_write, ours, -1, 0);  // where no other mapping takes its place
  memset(b, 1, N);
  use(b);
  printf("%ld", locked_kib());
  fflush(stdout);
  if (!strcmp(how, "thread")) {  // its stack is unmapped after it
    pthread_t thread;
    pthread_attr_t attributes;
    char *stack = mmap(NULL, STACK, read_write, ours, -1, 0), *other = mmap(NULL, N, read_write, ours, -1, 0);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    volatile pid_t id = 0;
    if (pthread_create(&thread, &attributes, end_without_a_word, (void *)&id)) return 3;
    while (id == 0 || syscall(SYS_tgkill, getpid(), id, 0) == 0) usleep(1000);
    munmap(stack, STACK);
    use(other);
    printf(" %ld\n", locked_kib());
    fflush(stdout);
    _exit(0);
  }
  if (!strcmp(how, "shmat")) {
    int id = shmget(IPC_PRIVATE, N, IPC_CREAT | 0600);
    failed = shmat(id, b, SHM_REMAP) != b;
    shmctl(id, IPC_RMID, NULL);
  } else if (!strcmp(how, "mremap")) {
    char *const place = mmap(NULL, 3 * N, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(place, 3 * N);  // the kernel's own choice would be the end of this
    char *const moved = mremap(b, N, N, MREMAP_MAYMOVE | 4 /* MREMAP_DONTUNMAP */, place);
    failed = moved == MAP_FAILED;
    if (!failed && moved != place) return 4;
  } else if (!strcmp(how, "process_madvise")) {
    enum { page = 65536, before = 40 };  // more ranges than are read at once
    struct iovec all[before + 1];
    char *other = mmap(NULL, page, read_write, ours, -1, 0);
    for (int i = 0; i < before; i++) all[i] = (struct iovec){other, page};
    all[before] = (struct iovec){b, N};
    long self = syscall(434 /* pidfd_open */, getpid(), 0);
    failed = self < 0 ? 77 : syscall(440 /* process_madvise */, self, all, before + 1L, 20L /* MADV_COLD */, 0L) != N + before * page;
    if (failed && errno == ENOSYS) failed = 77;
  } else if (!strcmp(how, "refused")) {  // or does nothing
    failed = munmap(b, 0) != -1 || munmap(b + 1, N) != -1 || madvise(b + 1, N, MADV_DONTNEED) != -1 ||
             madvise(b + 4096, 0, MADV_DONTNEED) != 0 || madvise(b, N, 9999) != -1 ||
             mremap(b + 1, N, N, MREMAP_MAYMOVE) != MAP_FAILED || mremap(b, N, 0, MREMAP_MAYMOVE) != MAP_FAILED ||
             mmap(b + 1, N, read_write, ours | MAP_FIXED, -1, 0) != MAP_FAILED ||
             syscall(SYS_mmap, b, (long)N, (long)read_write, (long)(ours | MAP_FIXED), -1L, 1L) != -1 ||
             syscall(SYS_madvise, b + 1, (long)N, (long)MADV_DONTNEED) != -1 || advise_elsewhere(b);
  } else if (!strcmp(how, "syscall")) {
    failed = syscall(SYS_munmap, b, (long)N) != 0;
    if (mmap(b, N, read_write, ours | MAP_FIXED_NOREPLACE, -1, 0) != b) failed = 2;
  } else if (!strncmp(how, "raw", 3)) {
    int closed = strstr(how, "closed") != NULL;
    if (closed) take_the_numbers_of_files();
    failed = replace(how, b);
    if (closed && !failed && bytes_lost()) failed = 8;
  } else {
    failed = advise(b, atoi(how));
    if (atoi(how) == 102) advise(b, 103);
  }
  printf(" %ld", locked_kib());
  memset(b, 2, N);
  use(b);
  printf(" %ld\n", locked_kib());
  return failed;
}
