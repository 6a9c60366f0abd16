/* SPDX-License-Identifier: Apache-2.0 */
#include "mapping.h"

#include <stdio.h>
#include <stdlib.h>

typedef struct entry {
  char *host, *device;
  size_t size, count;
  struct entry *next;
} entry;

static entry *mapped; /* not thread-safe: this example has one thread */
size_t fast_copies, slow_copies;

static int refuse(const char *what, const void *host, size_t size) {
  fprintf(stderr, "%s: %zu bytes at %p\n", what, size, host);
  return 1;
}

/* The link to the entry that overlaps the range, or to the end of the list. */
static entry **find(const char *host, size_t size) {
  entry **link = &mapped;
  while (*link && (host >= (*link)->host + (*link)->size || (*link)->host >= host + size)) link = &(*link)->next;
  return link;
}

static int holds(const entry *each, const char *host, size_t size) {
  return host >= each->host && size <= each->size - (size_t)(host - each->host);
}

/*
 * The library plans the copy: locked memory is copied directly, also if only a part is locked; large pageable memory is
 * staged. The lookup here is only for the report: no vendor call, a few nanoseconds.
 */
static int copy(const environment *by, entry *each, char *host, size_t size, int type) {
  char *const there = each->device + (host - each->host);
  ++*(pinning_find(by->locks, host, size, NULL) == PINNING_OK ? &fast_copies : &slow_copies);
  return type == MAP_TO ? pinning_queue_copy(by->queue, there, host, size, NULL, 0, NULL)
                        : pinning_queue_copy(by->queue, host, there, size, NULL, 0, NULL);
}

int data_begin(const environment *to, void *host, size_t size, int type) {
  entry *each = *find(host, size);
  if (each) {
    if (!holds(each, host, size)) return refuse("mapped already, but not all of it", host, size);
    ++each->count;
    return 0;
  }
  each = malloc(sizeof *each);
  if (!each) return refuse("no memory to map", host, size);
  *each = (entry){host, NULL, size, 1, mapped};
  void *there;
  if (to->device->allocate(size, &there)) {
    free(each);
    return refuse("no device memory to map", host, size);
  }
  each->device = there;
  /* PINNING_ON: memory that cannot be locked is copied slowly. Locked before the first copy, so that this is fast. */
  if (pinning_lock_mapped(to->locks, host, size, PINNING_ON, NULL)) fprintf(stderr, "%s\n", pinning_last_error());
  if (type & MAP_TO && copy(to, each, host, size, MAP_TO)) {
    pinning_unlock_unmapped(to->locks, host);
    to->device->release(there);
    free(each);
    return refuse("cannot copy to the device", host, size);
  }
  mapped = each;
  return 0;
}

int data_end(const environment *from, void *host, size_t size, int type) {
  entry **link = find(host, size), *each = *link;
  if (!each || !holds(each, host, size)) return refuse("not mapped", host, size);
  if (each->count > 1) {
    --each->count;
    return 0;
  }
  if ((type & MAP_FROM && copy(from, each, host, size, MAP_FROM)) || pinning_queue_synchronize(from->queue)) {
    return refuse("cannot copy from the device", host, size);
  }
  /* By the address that was locked: the last mapping may be a part. The copy is complete, so the lock is not needed. */
  if (pinning_unlock_unmapped(from->locks, each->host)) {
    fprintf(stderr, "%s\n", pinning_last_error());
    return refuse("still locked, so still mapped", host, size);
  }
  *link = each->next;
  int const failed = from->device->release(each->device);
  free(each);
  return failed;
}

int data_update(const environment *where, void *host, size_t size, int type) {
  entry *each = *find(host, size);
  if (!each || !holds(each, host, size)) return refuse("not mapped", host, size);
  return copy(where, each, host, size, type) || pinning_queue_synchronize(where->queue);
}

void *device_address(const void *host) {
  entry *each = *find(host, 1);
  return each ? each->device + ((const char *)host - each->host) : NULL;
}
