// SPDX-License-Identifier: Apache-2.0
// A program without OpenMP that locks nothing and does what the first argument says. Its output and exit status are the
// same whatever library is loaded before it.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/shm.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <threads.h>
#include <unistd.h>

#define CHECK(condition) \
  do { \
    if (!(condition)) fail(#condition, __LINE__); \
  } while (0)

static void fail(char const *condition, int line) {
  char text[256];
  int const length = snprintf(text, sizeof text, "line %d: %s is not so, errno %d\n", line, condition, errno);
  if (write(2, text, (size_t)length) != length) _exit(3);
  _exit(2);
}

static void use_memory(void) {
  for (size_t size = 16; size <= 1 << 20; size *= 4) {
    char *block = malloc(size);
    CHECK(block != NULL);
    memset(block, 1, size);
    char *larger = realloc(block, 2 * size);
    CHECK(larger != NULL && larger[size - 1] == 1);
    free(larger);
  }
  char *pages = mmap(NULL, 1 << 16, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(pages != MAP_FAILED);
  memset(pages, 1, 1 << 16);
  CHECK(madvise(pages, 1 << 16, MADV_DONTNEED) == 0 && pages[0] == 0);
  CHECK(munmap(pages, 1 << 16) == 0);
}

static void *in_thread(void *argument) {
  use_memory();
  return argument;
}

static int in_c11_thread(void *argument) {
  use_memory();
  return argument == NULL ? 0 : 1;
}

static void use_threads(size_t stack) {
  for (int i = 0; i < 4; i++) {
    pthread_t thread;
    pthread_attr_t attributes;
    CHECK(pthread_attr_init(&attributes) == 0);
    if (stack != 0) CHECK(pthread_attr_setstacksize(&attributes, stack) == 0);
    CHECK(pthread_create(&thread, &attributes, in_thread, stdout) == 0);
    void *result = NULL;
    CHECK(pthread_join(thread, &result) == 0 && result == stdout);
    pthread_attr_destroy(&attributes);
    thrd_t other;
    if (stack == 0) CHECK(thrd_create(&other, in_c11_thread, NULL) == thrd_success && thrd_join(other, NULL) == thrd_success);
  }
}

static int ended(pid_t child) {
  int status;
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

// ---- each way ----

// Allow only the system calls that this program makes if nothing is loaded before it; any other kills the process.
static void forbid_all_but_these(void) {
  static long const calls[] = {
      SYS_read, SYS_write, SYS_exit, SYS_exit_group, SYS_brk, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_madvise, SYS_mremap,
      SYS_futex, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_rt_sigprocmask, SYS_rt_sigaction, SYS_shmat, SYS_shmdt,
      SYS_process_madvise, SYS_gettimeofday, SYS_clock_gettime, SYS_getrandom,
  };
  enum { count = sizeof calls / sizeof *calls };
  struct sock_filter filter[count + 3];
  filter[0] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
  for (int i = 0; i < count; i++) {
    filter[1 + i] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (unsigned)calls[i], (unsigned char)(count - i), 0);
  }
  filter[1 + count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
  filter[2 + count] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
  struct sock_fprog const program = {count + 3, filter};
  CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
  if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) exit(77);
}

static void sandboxed(void) {
  int const id = shmget(IPC_PRIVATE, 4096, 0600);
  CHECK(id >= 0);
  void *const place = shmat(id, NULL, 0);
  CHECK(place != (void *)-1 && shmctl(id, IPC_RMID, NULL) == 0);
  printf("sandboxed\n");
  fflush(stdout);
  forbid_all_but_these();
  use_memory();
  use_threads(0);
  CHECK(shmat(id, place, SHM_REMAP) == place && shmdt(place) == 0);
  struct iovec const range = {place, 4096};
  CHECK(process_madvise(-1, &range, 1, MADV_COLD, 0) < 0);
}

static void refused_advice(void) {
  int const self = (int)syscall(SYS_pidfd_open, getpid(), 0);
  struct iovec *const nowhere = (struct iovec *)8;
  for (int advice = MADV_COLD; advice <= MADV_PAGEOUT; advice++) {
    for (size_t count = 1; count != 0; count <<= 13) {
      errno = 0;
      long const by_name = process_madvise(self, nowhere, count, advice, 0);
      int const error = errno;
      long const by_number = syscall(SYS_process_madvise, self, nowhere, count, advice, 0);
      printf("%zu: %ld %s, %ld %s\n", count, by_name, strerror(error), by_number, strerror(errno));
    }
  }
}

static int child(void *argument) {
  (void)argument;
  _exit(7);
}

static void children(void) {
  extern char **environ;
  char *arguments[] = {"sh", "-c", "exit 7", NULL};
  pid_t spawned;
  CHECK(posix_spawnp(&spawned, "sh", NULL, NULL, arguments, environ) == 0 && ended(spawned) == 7);
  pid_t forked = fork();
  if (forked == 0) {
    use_memory();
    use_threads(0);
    forked = fork();
    if (forked == 0) child(NULL);
    _exit(ended(forked));
  }
  CHECK(ended(forked) == 7);
  pid_t const vforked = vfork();
  if (vforked == 0) {
    execvp("sh", arguments);
    _exit(1);
  }
  CHECK(ended(vforked) == 7);
  static char stack[1 << 16] __attribute__((aligned(16)));
  CHECK(ended(clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL)) == 7);
  pid_t const copied = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
  if (copied == 0) {
    use_memory();
    child(NULL);
  }
  CHECK(ended(copied) == 7);
  CHECK(WEXITSTATUS(system("exit 7")) == 7);
}

static void limit(int what, rlim_t most) {
  struct rlimit const limits = {most, most};
  CHECK(setrlimit(what, &limits) == 0);
}

static void descriptors(void) {
  int last = -1;
  for (int file; (file = open("/dev/null", O_RDONLY)) >= 0;) last = file;
  CHECK(errno == EMFILE);
  use_memory();
  use_threads(0);
  printf("%d descriptors\n", last + 1);
}

static void no_streams(void) {
  CHECK(open("/dev/null", O_RDWR) == 0 && open("/dev/null", O_RDWR) == 1 && open("/dev/null", O_RDWR) == 2);
  use_memory();
  use_threads(0);
}

static pthread_barrier_t all_are_there;

static void *wait_idle(void *nothing) {
  pthread_barrier_wait(&all_are_there);
  pthread_barrier_wait(&all_are_there);
  return nothing;
}

/// Threads that allocate nothing need no memory beyond their stacks: an arena of malloc would take 64 MiB of addresses.
static void idle_threads(void) {
  enum { threads = 8, stack = 256 << 10, room = 200 << 20 };
  long pages = 0;
  FILE *const status = fopen("/proc/self/statm", "r");
  CHECK(status != NULL && fscanf(status, "%ld", &pages) == 1 && fclose(status) == 0);
  struct rlimit const most = {(rlim_t)pages * 4096 + room, RLIM_INFINITY};
  CHECK(setrlimit(RLIMIT_AS, &most) == 0);
  pthread_t thread[threads];
  pthread_attr_t attributes;
  CHECK(pthread_attr_init(&attributes) == 0 && pthread_attr_setstacksize(&attributes, stack) == 0);
  CHECK(pthread_barrier_init(&all_are_there, NULL, threads + 1) == 0);
  for (int i = 0; i < threads; i++) CHECK(pthread_create(&thread[i], &attributes, wait_idle, NULL) == 0);
  pthread_barrier_wait(&all_are_there);
  void *const half = mmap(NULL, room / 2, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  pthread_barrier_wait(&all_are_there);
  CHECK(half != MAP_FAILED);
  for (int i = 0; i < threads; i++) CHECK(pthread_join(thread[i], NULL) == 0);
}

static void libraries(void) {
  for (int i = 0; i < 3; i++) {
    void *const library = dlopen("libresolv.so.2", RTLD_NOW);
    CHECK(library != NULL && dlclose(library) == 0);
    use_threads(0);
  }
}

static void traced(void) {
  pid_t const traced_child = fork();
  if (traced_child == 0) {
    CHECK(ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0 && raise(SIGSTOP) == 0);
    use_memory();
    use_threads(0);
    _exit(7);
  }
  int status;
  for (;;) {
    CHECK(waitpid(traced_child, &status, 0) == traced_child);
    if (!WIFSTOPPED(status)) break;
    int const signal = WSTOPSIG(status);
    long const over = ptrace(PTRACE_SYSCALL, traced_child, NULL, signal == SIGTRAP || signal == SIGSTOP ? 0 : (long)signal);
    CHECK(over == 0);
  }
  printf("%d\n", WEXITSTATUS(status));
}

int main(int count, char **arguments) {
  char const *const how = count > 1 ? arguments[1] : "";
  if (!strcmp(how, "sandboxed")) sandboxed();
  if (!strcmp(how, "refused advice")) refused_advice();
  if (!strcmp(how, "children")) children();
  if (!strcmp(how, "no descriptors")) {
    limit(RLIMIT_NOFILE, 3);
    descriptors();
  }
  if (!strcmp(how, "ten descriptors")) {
    limit(RLIMIT_NOFILE, 10);
    descriptors();
  }
  if (!strcmp(how, "no streams")) no_streams();
  if (!strcmp(how, "libraries")) libraries();
  if (!strcmp(how, "idle threads")) idle_threads();
  if (!strcmp(how, "traced")) traced();
  if (!strcmp(how, "small stacks")) use_threads(PTHREAD_STACK_MIN);
  if (!strcmp(how, "no processes")) {
    limit(RLIMIT_NPROC, 1);
    use_memory();
  }
  if (!strcmp(how, "few addresses")) {
    limit(RLIMIT_AS, 256 << 20);
    use_memory();
    use_threads(0);
  }
  if (!strcmp(how, "changed root")) {
    if (chroot("/proc") != 0) return 77;
    use_memory();
    use_threads(0);
  }
  if (!strcmp(how, "memory")) use_memory();
  printf("done\n");
  return 5;
}
