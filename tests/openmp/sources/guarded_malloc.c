// SPDX-License-Identifier: Apache-2.0
// An allocator without malloc_usable_size, with an inaccessible page before each block.
#define _GNU_SOURCE
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>

enum { page = 65536 };  // the largest of any kernel

struct head {
  char *block;
  size_t size;
};

static size_t mapped(size_t size) { return 2 * page + (size + page - 1) / page * page; }

// [head][inaccessible][block]
void *malloc(size_t size) {
  char *const start = mmap(NULL, mapped(size), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (start == MAP_FAILED) return NULL;
  struct head const head = {start + 2 * page, size};
  memcpy(start, &head, sizeof head);
  mprotect(start + page, page, PROT_NONE);
  return head.block;
}

void *calloc(size_t count, size_t size) { return malloc(count * size); }

void *aligned_alloc(size_t alignment, size_t size) { return alignment <= 4096 ? malloc(size) : NULL; }

int posix_memalign(void **block, size_t alignment, size_t size) {
  *block = aligned_alloc(alignment, size);
  return *block == NULL ? 12 : 0;
}

void free(void *block) {
  if (block == NULL) return;
  struct head head;
  memcpy(&head, (char *)block - 2 * page, sizeof head);
  munmap((char *)block - 2 * page, mapped(head.size));
}

void *realloc(void *block, size_t size) {
  void *const made = malloc(size);
  if (block == NULL || made == NULL) return made;
  struct head head;
  memcpy(&head, (char *)block - 2 * page, sizeof head);
  memcpy(made, block, head.size < size ? head.size : size);
  free(block);
  return made;
}
