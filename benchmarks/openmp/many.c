// SPDX-License-Identifier: Apache-2.0
// Maps many small buffers with as many bytes between them, moves each twice, unmaps them, and reads all bytes.
//
//     many COUNT BYTES [mlock | watched]
//
// `mlock` locks each at its second transfer and unlocks all at the end, as the tool does, but without any bookkeeping;
// `watched` also registers each with userfaultfd meanwhile.
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static int watcher(void) {
  int file = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | 1 /* UFFD_USER_MODE_ONLY */);
  struct uffdio_api api = {UFFD_API, UFFD_FEATURE_EVENT_REMOVE, 0};  // an unread UNMAP event would block munmap
  if (file < 0 || ioctl(file, UFFDIO_API, &api) != 0) exit((perror("userfaultfd"), 1));
  return file;
}

int main(int argc, char **argv) {
  size_t count = strtoull(argv[1], NULL, 0), size = strtoull(argv[2], NULL, 0);
  int by_hand = argc > 3, file = by_hand && strcmp(argv[3], "watched") == 0 ? watcher() : -1;
  char *all = malloc(2 * count * size);
  memset(all, 1, 2 * count * size);
  for (size_t i = 0; i < count; i++) {
    char *p = all + 2 * i * size;
#pragma omp target enter data map(to : p[0 : size])
  }
  for (int round = 0; round < 2; round++) {
    for (size_t i = 0; i < count; i++) {
      char *p = all + 2 * i * size;
      struct uffdio_register watched = {{(uintptr_t)p & -4096, size + 4096}, UFFDIO_REGISTER_MODE_WP, 0};
      if (round == 1 && file >= 0 && ioctl(file, UFFDIO_REGISTER, &watched) != 0) exit((perror("register"), 1));
      if (round == 1 && by_hand && mlock(p, size) != 0) exit((perror("mlock"), 1));
#pragma omp target update to(p[0 : size])
    }
  }
  for (size_t i = 0; i < count; i++) {
    char *p = all + 2 * i * size;
#pragma omp target exit data map(from : p[0 : size])
  }
  uint64_t sum = 14695981039346656037u;
  for (size_t i = 0; i < 2 * count * size; i++) sum = (sum ^ (unsigned char)all[i]) * 1099511628211u;
  for (size_t i = 0; by_hand && i < count; i++) {
    char *p = all + 2 * i * size;
    munlock(p, size);
    struct uffdio_range watched = {(uintptr_t)p & -4096, size + 4096};
    if (file >= 0) ioctl(file, UFFDIO_UNREGISTER, &watched);
  }
  printf("%016llx\n", (unsigned long long)sum);
  free(all);
  return 0;
}
