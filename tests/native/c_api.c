/* SPDX-License-Identifier: Apache-2.0 */
/* <pinning/pinning.h> used by a C99 program with its own locker: what each call returns, and the state it leaves. */
#define _POSIX_C_SOURCE 200112L
#include <pinning/pinning.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define EXPECT(condition)                                                        \
  do {                                                                           \
    if (!(condition)) {                                                          \
      printf("VIOLATION line %d: %s (%s)\n", __LINE__, #condition, pinning_last_error()); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)
#define GIVES(status, call) EXPECT((call) == (status))
#define SAYS(words) EXPECT(strstr(pinning_last_error(), words))

/* ---- a vendor with at most one lock, one range that others have pinned, and a count of its calls ---- */

enum { OFFSET = 1 << 20 };
static char memory[1 << 16];
static struct vendor {
  pinning_pinned locked, foreign;
  pinning_status refuses; /* the status of the next call */
  const char *because;
  int calls;
} vendor;

static pinning_status refused(struct vendor *self) {
  pinning_status const status = self->refuses;
  self->refuses = PINNING_OK;
  ++self->calls;
  return status && self->because ? pinning_fail(status, self->because) : status;
}
static pinning_status vendor_lock(void *self, void *ptr, size_t size, void **device_ptr) {
  struct vendor *const v = self;
  pinning_status const status = refused(v);
  if (status) return status;
  char *const start = ptr, *const foreign = v->foreign.base;
  if (foreign && start < foreign + v->foreign.size && foreign < start + size) return PINNING_ALREADY_PINNED;
  EXPECT(!v->locked.base);
  v->locked = (pinning_pinned){ptr, size, start + OFFSET};
  *device_ptr = v->locked.device_ptr;
  return PINNING_OK;
}
static pinning_status vendor_unlock(void *self, void *ptr) {
  struct vendor *const v = self;
  pinning_status const status = refused(v);
  if (status) return status;
  EXPECT(v->locked.base == ptr);
  v->locked.base = NULL;
  return PINNING_OK;
}
static pinning_status vendor_is_pinned(void *self, const void *ptr, pinning_pinned *pinned) {
  struct vendor *const v = self;
  pinning_status const status = refused(v);
  if (status) return status;
  size_t const offset = (size_t)((const char *)ptr - (char *)v->foreign.base);
  if (!v->foreign.base || offset >= v->foreign.size) return PINNING_NOT_LOCKED;
  *pinned = v->foreign;
  return PINNING_OK;
}
static const pinning_locker locker = {sizeof(pinning_locker), &vendor, vendor_lock, vendor_unlock, vendor_is_pinned};

static size_t count(pinning_map *map) {
  size_t all = 99;
  GIVES(PINNING_OK, pinning_regions(map, NULL, 0, &all));
  return all;
}
static uint32_t references(pinning_map *map, const void *ptr) {
  pinning_region region;
  GIVES(PINNING_OK, pinning_find(map, ptr, 1, &region));
  return region.references;
}

/* ---- scenes ---- */

static void arguments(pinning_map *map) {
  void *untouched = memory;
  pinning_map *none = map;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(NULL, &locker));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(&none, NULL));
  SAYS("the locker is null");
  pinning_locker hollow = locker;
  hollow.lock = NULL;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(&none, &hollow));
  hollow = locker, hollow.unlock = NULL;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(&none, &hollow));
  hollow = locker, hollow.is_pinned = NULL;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(&none, &hollow));
  struct {
    pinning_locker known;
    size_t more;
  } newer = {locker, 1};
  newer.known.struct_size = sizeof newer;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(&none, &newer.known));
  SAYS("fields that release " PINNING_VERSION " does not know");
  newer.more = 0;
  GIVES(PINNING_OK, pinning_map_create(&none, &newer.known));
  GIVES(PINNING_OK, pinning_map_destroy(none));
  none = map;
  hollow = locker;
  hollow.struct_size = sizeof hollow - 1;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_create(&none, &hollow));
  SAYS("sizeof(pinning_locker)");
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_open(NULL, "host:0"));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_open(&none, NULL));
  static const char *const names[] = {"host:", "HOST:0", "foo", "host:x", "host:-1", "host:01", "host:0 ", "host:99999999999", ":", "host:0:0"};
  for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
    GIVES(PINNING_INVALID_ARGUMENT, pinning_map_open(&none, names[i]));
    SAYS(names[i]);
  }
  GIVES(PINNING_UNAVAILABLE, pinning_map_open(&none, "host:1"));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_open(&none, "abacus"));
  SAYS("abacus:0");
  EXPECT(none == map);

  GIVES(PINNING_INVALID_ARGUMENT, pinning_lock(NULL, memory, 1, &untouched));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_unlock(NULL, memory));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_register(NULL, memory, 1, memory));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_unregister(NULL, memory));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_refresh(NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_lock_mapped(NULL, memory, 1, PINNING_ON, &untouched));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_lock_mapped(map, memory, 1, (pinning_policy)3, &untouched));
  SAYS("policy 3");
  GIVES(PINNING_INVALID_ARGUMENT, pinning_unlock_unmapped(NULL, memory));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_find(NULL, memory, 1, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_regions(map, NULL, 0, NULL));
  size_t all;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_regions(map, NULL, 1, &all));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_destroy(NULL));

  GIVES(PINNING_INVALID_RANGE, pinning_lock(map, NULL, 1, &untouched));
  GIVES(PINNING_INVALID_RANGE, pinning_lock(map, memory, 0, &untouched));
  SAYS("0 bytes");
  GIVES(PINNING_INVALID_RANGE, pinning_lock(map, memory, SIZE_MAX, &untouched));
  GIVES(PINNING_INVALID_RANGE, pinning_register(map, memory, 0, memory));
  GIVES(PINNING_INVALID_RANGE, pinning_lock_mapped(map, memory, 0, PINNING_ON, &untouched));
  EXPECT(untouched == memory && count(map) == 0 && vendor.calls == 0);
}

static void locks(pinning_map *map) {
  void *device;
  pinning_region region, regions[2];
  GIVES(PINNING_OK, pinning_lock(map, memory + 100, 1000, &device));
  EXPECT(device == memory + 100 + OFFSET);
  GIVES(PINNING_OK, pinning_lock(map, memory + 200, 50, &device));
  EXPECT(device == memory + 200 + OFFSET && vendor.calls == 1);
  GIVES(PINNING_OK, pinning_lock(map, memory + 100, 1000, NULL));

  GIVES(PINNING_OK, pinning_find(map, memory + 1099, 1, &region));
  EXPECT(region.start == memory + 100 && region.size == 1000 && region.device_ptr == memory + 100 + OFFSET);
  EXPECT(region.references == 3 && region.external == 0 && region.piece == 1000);
  EXPECT(pinning_device_ptr_of(&region, memory + 1099) == memory + 1099 + OFFSET);
  pinning_fail(PINNING_OK, "as it was");
  GIVES(PINNING_NOT_LOCKED, pinning_find(map, memory + 1099, 2, &region));
  GIVES(PINNING_NOT_LOCKED, pinning_find(map, memory + 99, 1, NULL));
  GIVES(PINNING_NOT_LOCKED, pinning_find(map, memory + 100, 0, NULL));
  SAYS("as it was");
  GIVES(PINNING_OK, pinning_find(map, memory + 100, 1000, NULL));

  GIVES(PINNING_PARTIAL_OVERLAP, pinning_lock(map, memory, 101, &device));
  GIVES(PINNING_PARTIAL_OVERLAP, pinning_lock(map, memory + 1099, 2, &device));
  GIVES(PINNING_PARTIAL_OVERLAP, pinning_lock(map, memory, 5000, &device));
  SAYS("(1000 bytes)");
  EXPECT(vendor.calls == 1);

  GIVES(PINNING_OK, pinning_register(map, memory + 5000, 100, memory));
  GIVES(PINNING_PARTIAL_OVERLAP, pinning_register(map, memory + 5050, 10, memory));
  size_t all = 0;
  GIVES(PINNING_OK, pinning_regions(map, regions, 1, &all));
  EXPECT(all == 2 && regions[0].start == memory + 100);
  GIVES(PINNING_OK, pinning_regions(map, regions, 2, &all));
  EXPECT(all == 2 && regions[1].start == memory + 5000 && regions[1].external == 1 && regions[1].device_ptr == memory);
  GIVES(PINNING_OK, pinning_lock(map, memory + 5010, 1, &device));
  EXPECT(device == memory + 10);
  GIVES(PINNING_STILL_LOCKED, pinning_unregister(map, memory + 5099));
  GIVES(PINNING_OK, pinning_unlock(map, memory + 5000));
  GIVES(PINNING_NOT_LOCKED, pinning_unlock(map, memory + 5000));
  GIVES(PINNING_OK, pinning_unregister(map, memory + 5099));
  GIVES(PINNING_NOT_LOCKED, pinning_unregister(map, memory + 5099));

  GIVES(PINNING_OK, pinning_unlock(map, memory + 1099));
  GIVES(PINNING_OK, pinning_unlock(map, memory + 100));
  EXPECT(vendor.calls == 1);
  GIVES(PINNING_OK, pinning_unlock(map, memory + 300));
  EXPECT(vendor.calls == 2 && !vendor.locked.base && count(map) == 0);
  GIVES(PINNING_NOT_LOCKED, pinning_unlock(map, memory + 300));
  SAYS("no locked region holds 0x");
}

static void refusals(pinning_map *map) {
  void *device = memory;
  vendor.refuses = PINNING_LOCK_LIMIT, vendor.because = "three locks a day: come back tomorrow";
  GIVES(PINNING_LOCK_LIMIT, pinning_lock(map, memory, 100, &device));
  SAYS("three locks a day");
  EXPECT(device == memory && count(map) == 0);
  vendor.refuses = PINNING_VENDOR_ERROR, vendor.because = NULL; /* no text: the previous one must not be reported */
  GIVES(PINNING_VENDOR_ERROR, pinning_lock(map, memory, 100, &device));
  SAYS(pinning_error_string(PINNING_VENDOR_ERROR));

  vendor.refuses = (pinning_status)77;
  GIVES(PINNING_UNKNOWN_ERROR, pinning_lock(map, memory, 100, &device));
  SAYS("the locker's lock returned 77, which is no pinning_status");
  vendor.refuses = (pinning_status)77, vendor.because = "not today";
  GIVES(PINNING_UNKNOWN_ERROR, pinning_lock(map, memory, 100, &device));
  SAYS("not today");
  vendor.because = NULL;

  GIVES(PINNING_OK, pinning_lock(map, memory, 100, NULL));
  vendor.refuses = PINNING_VENDOR_ERROR;
  GIVES(PINNING_VENDOR_ERROR, pinning_unlock(map, memory));
  EXPECT(references(map, memory) == 1);
  vendor.refuses = PINNING_VENDOR_ERROR;
  GIVES(PINNING_VENDOR_ERROR, pinning_map_destroy(map));
  EXPECT(references(map, memory) == 1);
  GIVES(PINNING_OK, pinning_unlock(map, memory));
}

static void others(pinning_map *map) {
  void *device;
  vendor.foreign = (pinning_pinned){memory + 1000, 1000, memory + 7};
  GIVES(PINNING_OK, pinning_lock(map, memory + 1100, 10, &device));
  EXPECT(device == memory + 107);
  pinning_region region;
  GIVES(PINNING_OK, pinning_find(map, memory + 1000, 1000, &region));
  EXPECT(region.external == 1 && region.references == 1);
  GIVES(PINNING_PARTIAL_OVERLAP, pinning_lock(map, memory + 1999, 2, NULL));
  SAYS("someone else");
  vendor.refuses = PINNING_VENDOR_ERROR, vendor.because = "cannot tell";
  GIVES(PINNING_VENDOR_ERROR, pinning_refresh(map));
  SAYS("cannot tell");
  GIVES(PINNING_OK, pinning_refresh(map));
  EXPECT(count(map) == 1);
  vendor.foreign.base = NULL;
  GIVES(PINNING_OK, pinning_refresh(map));
  EXPECT(count(map) == 0);
}

static struct book {
  char *start;
  size_t size;
  int calls;
  pinning_status refuse;
} book;

static pinning_status book_add(void *self, void *ptr, size_t size, void **handle) {
  struct book *ours = self;
  EXPECT(vendor.locked.base);  // the vendor locks first
  ++ours->calls;
  if (ours->refuse) return pinning_fail(ours->refuse, "the book is full");
  ours->start = ptr;
  ours->size = size;
  *handle = ours;
  return PINNING_OK;
}
static pinning_status book_remove(void *self, void *handle) {
  EXPECT(self == handle && vendor.locked.base);
  ((struct book *)self)->start = NULL;
  return PINNING_OK;
}

static void registrars(pinning_map *map) {
  const pinning_registrar registrar = {sizeof registrar, &book, "library", 0, book_add, book_remove}, hollow = {0};
  GIVES(PINNING_INVALID_ARGUMENT, pinning_add_registrar(map, NULL));
  SAYS("the registrar is null");
  GIVES(PINNING_INVALID_ARGUMENT, pinning_add_registrar(map, &hollow));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_add_registrar(NULL, &registrar));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_remove_registrar(map, &book));
  GIVES(PINNING_OK, pinning_lock(map, memory, 100, NULL));
  GIVES(PINNING_OK, pinning_add_registrar(map, &registrar));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_add_registrar(map, &registrar));
  EXPECT(book.start == memory && book.size == 100);
  GIVES(PINNING_OK, pinning_lock(map, memory + 50, 10, NULL));
  GIVES(PINNING_OK, pinning_unlock(map, memory));
  EXPECT(book.start == memory && book.calls == 1);
  GIVES(PINNING_OK, pinning_unlock(map, memory));
  EXPECT(!book.start && !vendor.locked.base);
  book.refuse = PINNING_LOCK_LIMIT;
  GIVES(PINNING_LOCK_LIMIT, pinning_lock(map, memory, 100, NULL));
  SAYS("the registrar library refused: the book is full");
  EXPECT(!vendor.locked.base && count(map) == 0);
  GIVES(PINNING_OK, pinning_remove_registrar(map, &book));
  GIVES(PINNING_OK, pinning_lock(map, memory, 100, NULL));
  GIVES(PINNING_OK, pinning_unlock(map, memory));
  EXPECT(book.calls == 2);
  const pinning_registrar in_pieces = {sizeof in_pieces, &book, "card", 60, book_add, book_remove};
  book.refuse = PINNING_OK;
  GIVES(PINNING_OK, pinning_add_registrar(map, &in_pieces));
  GIVES(PINNING_OK, pinning_lock(map, memory, 100, NULL));
  EXPECT(book.start == memory + 60 && book.size == 40 && book.calls == 4);
  GIVES(PINNING_OK, pinning_unlock(map, memory));
  GIVES(PINNING_OK, pinning_remove_registrar(map, &book));
}

static void mappings(pinning_map *map) {
  void *device = memory;
  GIVES(PINNING_OK, pinning_lock_mapped(map, memory, 100, PINNING_OFF, &device));
  EXPECT(device == NULL && count(map) == 0);
  GIVES(PINNING_OK, pinning_unlock_unmapped(map, memory));
  vendor.refuses = PINNING_VENDOR_ERROR;
  GIVES(PINNING_OK, pinning_lock_mapped(map, memory, 100, PINNING_ON, &device)); /* is_pinned fails */
  EXPECT(device == NULL);
  GIVES(PINNING_OK, pinning_unlock_unmapped(map, memory));
  vendor.refuses = PINNING_VENDOR_ERROR, vendor.because = "no";
  GIVES(PINNING_VENDOR_ERROR, pinning_lock_mapped(map, memory, 100, PINNING_MANDATORY, &device));
  GIVES(PINNING_OK, pinning_lock_mapped(map, memory, 100, PINNING_MANDATORY, &device));
  EXPECT(device == memory + OFFSET);
  GIVES(PINNING_OK, pinning_lock_mapped(map, memory + 10, 10, PINNING_OFF, NULL));
  EXPECT(references(map, memory) == 2);
  GIVES(PINNING_OK, pinning_unlock_unmapped(map, memory + 10));
  GIVES(PINNING_OK, pinning_unlock_unmapped(map, memory + 10));
  EXPECT(references(map, memory) == 1);
  vendor.refuses = PINNING_VENDOR_ERROR;
  GIVES(PINNING_VENDOR_ERROR, pinning_unlock_unmapped(map, memory));
  GIVES(PINNING_OK, pinning_unlock_unmapped(map, memory));
  EXPECT(count(map) == 0);
}

static void queues(pinning_map *map, pinning_map *host, char *to, char *from) {
  pinning_queue *queue;
  pinning_event *copied, *rows, *batch, *all, *wrong[] = {NULL};
  pinning_path path;
  pinning_reason reason;
  int done;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_create(map, &queue)); /* a private map has no queues */
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_create(NULL, &queue));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_create(host, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_adopt(host, NULL, &queue)); /* the host has no default stream */
  GIVES(PINNING_OK, pinning_queue_create(host, &queue));
  memset(to, 0, 300);
  for (int i = 0; i < 100; ++i) from[i] = (char)('q' + i % 7);
  GIVES(PINNING_OK, pinning_queue_copy(queue, to, from, 100, NULL, 0, &copied));
  GIVES(PINNING_OK, pinning_queue_copy_2d(queue, to + 100, 20, to, 10, 10, 5, &copied, 1, &rows));
  void *dsts[] = {to + 200};
  const void *srcs[] = {to + 100};
  const size_t sizes[] = {10};
  pinning_event *both[] = {copied, rows};
  GIVES(PINNING_OK, pinning_queue_copy_batch(queue, dsts, srcs, sizes, 1, both, 2, &batch));
  GIVES(PINNING_OK, pinning_queue_wait(queue, both, 2));
  GIVES(PINNING_OK, pinning_queue_record(queue, &all));
  GIVES(PINNING_OK, pinning_event_wait(all));
  GIVES(PINNING_OK, pinning_event_done(all, &done));
  EXPECT(done && to[200] == 'q' && !memcmp(to, from, 100));
  for (int row = 0; row < 5; ++row) EXPECT(!memcmp(to + 100 + 20 * row, from + 10 * row, 10) && !to[110 + 20 * row]);
  GIVES(PINNING_OK, pinning_event_path(batch, &path));
  GIVES(PINNING_OK, pinning_event_reason(batch, &reason));
  EXPECT(reason == PINNING_REASON_IN_HOST);
  GIVES(PINNING_INVALID_ARGUMENT, pinning_event_path(all, &path)); /* not of a copy */
  GIVES(PINNING_INVALID_ARGUMENT, pinning_event_reason(NULL, &reason));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_event_done(all, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_event_wait(NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_event_destroy(NULL));
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy(queue, to, from, 0, NULL, 0, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_copy(NULL, to, from, 1, NULL, 0, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_copy(queue, to, from, 1, NULL, 1, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_copy(queue, to, from, 1, wrong, 1, NULL));
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy_2d(queue, to, 9, from, 10, 10, 2, NULL, 0, NULL)); /* rows overlap */
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy_2d(queue, to, 10, from, 10, 0, 2, NULL, 0, NULL));
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy_2d(queue, to, 10, from, 10, 10, 0, NULL, 0, NULL));
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy_2d(queue, to, SIZE_MAX / 2, from, 10, 10, 4, NULL, 0, NULL));
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy_2d(queue, NULL, 10, from, 10, 10, 2, NULL, 0, NULL));
  GIVES(PINNING_INVALID_RANGE, pinning_queue_copy_batch(queue, dsts, srcs, sizes, 0, NULL, 0, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_copy_batch(queue, dsts, srcs, NULL, 1, NULL, 0, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_record(queue, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_synchronize(NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_destroy(NULL));
  GIVES(PINNING_OK, pinning_queue_synchronize(queue));
  pid_t const child = fork();
  if (child == 0) {
    int const refused = pinning_queue_copy(queue, to, from, 1, NULL, 0, NULL) == PINNING_UNAVAILABLE &&
                        pinning_event_wait(batch) == PINNING_UNAVAILABLE &&
                        pinning_queue_synchronize(queue) == PINNING_UNAVAILABLE &&
                        pinning_event_destroy(batch) == PINNING_OK &&
                        pinning_queue_destroy(queue) == PINNING_UNAVAILABLE;
    _exit(refused ? 0 : 1);
  }
  int status;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  GIVES(PINNING_OK, pinning_queue_destroy(queue));
  GIVES(PINNING_OK, pinning_event_wait(copied)); /* events outlive their queue */
  GIVES(PINNING_OK, pinning_event_destroy(copied));
  GIVES(PINNING_OK, pinning_event_destroy(rows));
  GIVES(PINNING_OK, pinning_event_destroy(batch));
  GIVES(PINNING_OK, pinning_event_destroy(all));
}

/* Out of order: what waits runs in its turn, behind the wait list and the barrier. */
static void out_of_order(pinning_map *map, pinning_map *host, char *memory) {
  pinning_queue *queue, *other;
  pinning_event *first, *second, *third, *all;
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_create_out_of_order(map, &queue)); /* a private map has no queues */
  GIVES(PINNING_INVALID_ARGUMENT, pinning_queue_create_out_of_order(host, NULL));
  GIVES(PINNING_OK, pinning_queue_create_out_of_order(host, &queue));
  GIVES(PINNING_OK, pinning_queue_create(host, &other));
  for (int round = 0; round < 50; ++round) {
    memset(memory, 0, 4);
    memory[0] = (char)(1 + round);
    GIVES(PINNING_OK, pinning_queue_copy(other, memory + 1, memory, 1, NULL, 0, &first));
    GIVES(PINNING_OK, pinning_queue_copy(queue, memory + 2, memory + 1, 1, &first, 1, &second));
    if (round % 2) GIVES(PINNING_OK, pinning_queue_wait(queue, &second, 1));
    GIVES(PINNING_OK, pinning_queue_copy(queue, memory + 3, memory + 2, 1, &second, round % 2 ? 0 : 1, &third));
    GIVES(PINNING_OK, pinning_queue_record(queue, &all));
    GIVES(PINNING_OK, pinning_event_wait(all));
    EXPECT(memory[3] == 1 + round);
    GIVES(PINNING_OK, pinning_event_destroy(first));
    GIVES(PINNING_OK, pinning_event_destroy(second));
    GIVES(PINNING_OK, pinning_event_destroy(third));
    GIVES(PINNING_OK, pinning_event_destroy(all));
  }
  GIVES(PINNING_OK, pinning_queue_synchronize(queue));
  pid_t const child = fork();
  if (child == 0) _exit(pinning_queue_copy(queue, memory, memory + 1, 1, NULL, 0, NULL) == PINNING_UNAVAILABLE ? 0 : 1);
  int status;
  EXPECT(child > 0 && waitpid(child, &status, 0) == child && status == 0);
  GIVES(PINNING_OK, pinning_queue_destroy(queue));
  GIVES(PINNING_OK, pinning_queue_destroy(other));
}

static void copies(pinning_map *map) {
  pinning_map *host;
  char *const from = malloc(300), *const to = calloc(1, 300);
  void *dsts[] = {to + 200, to};
  const void *srcs[] = {from + 100, from + 50};
  size_t sizes[] = {100, 1};
  int done;
  memset(from, 'a', 300);
  GIVES(PINNING_OK, pinning_map_open(&host, "host:0"));
  GIVES(PINNING_OK, pinning_lock(host, from, 120, NULL));
  GIVES(PINNING_OK, pinning_copy_batch(host, dsts, srcs, sizes, 2));
  EXPECT(to[0] == 'a' && to[1] == 0 && to[199] == 0 && !memcmp(to + 200, from, 100));
  sizes[1] = 0;
  GIVES(PINNING_INVALID_RANGE, pinning_copy_batch(host, dsts, srcs, sizes, 2));
  EXPECT(strstr(pinning_last_error(), "item 1 of the batch"));
  GIVES(PINNING_INVALID_RANGE, pinning_copy_batch(host, dsts, srcs, sizes, 0));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_batch(host, NULL, srcs, sizes, 1));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_batch(NULL, dsts, srcs, sizes, 1));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_batch(map, dsts, srcs, sizes, 1));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_batch_async(host, dsts, srcs, sizes, 1, NULL, NULL));
  GIVES(PINNING_OK, pinning_copy(host, to, from, 300));
  EXPECT(!memcmp(to, from, 300));
  pinning_async_copy *copy;
  pinning_path path;
  pinning_reason reason;
  from[299] = 'z';
  GIVES(PINNING_OK, pinning_copy_async(host, to, from, 300, NULL, &copy));
  GIVES(PINNING_OK, pinning_copy_path(copy, &path));
  GIVES(PINNING_OK, pinning_copy_reason(copy, &reason));
  EXPECT(path == PINNING_PATH_PLAIN && reason == PINNING_REASON_IN_HOST);
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_path(copy, NULL));
  GIVES(PINNING_OK, pinning_copy_wait(copy));
  EXPECT(to[299] == 'z');
  GIVES(PINNING_INVALID_RANGE, pinning_copy(host, to, from, 0));
  SAYS("size is 0; a copy needs at least 1 byte");
  GIVES(PINNING_INVALID_RANGE, pinning_copy(host, NULL, from, 1));
  GIVES(PINNING_INVALID_RANGE, pinning_copy_async(host, to, from, SIZE_MAX, NULL, &copy));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy(map, to, from, 1));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy(NULL, to, from, 1));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_async(host, to, from, 1, NULL, NULL));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_reason(NULL, &reason));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_done(NULL, &done));
  GIVES(PINNING_INVALID_ARGUMENT, pinning_copy_wait(NULL));
  GIVES(PINNING_OK, pinning_unlock(host, from));
  EXPECT(count(host) == 0);
  queues(map, host, to, from);
  out_of_order(map, host, to);
  free(from);
  free(to);
}

static void process_wide(void) {
  pinning_map *host, *again;
  void *device;
  char *const buffer = malloc(100000);
  GIVES(PINNING_OK, pinning_map_open(&host, "host:0"));
  GIVES(PINNING_OK, pinning_map_open(&again, "host"));
  EXPECT(host == again);
  GIVES(PINNING_OK, pinning_lock(host, buffer, 100000, &device));
  EXPECT(device == buffer);
  GIVES(PINNING_INVALID_ARGUMENT, pinning_map_destroy(host));
  GIVES(PINNING_OK, pinning_unlock(host, buffer));
  free(buffer);
}

static void texts(void) {
  for (int status = PINNING_OK; status <= PINNING_UNKNOWN_ERROR + 1; ++status) {
    for (int other = PINNING_OK; other < status; ++other) {
      EXPECT(strcmp(pinning_error_string((pinning_status)status), pinning_error_string((pinning_status)other)));
    }
  }
  char endless[5000];
  memset(endless, 'x', sizeof endless - 1);
  endless[sizeof endless - 1] = 0;
  GIVES(PINNING_LOCK_LIMIT, pinning_fail(PINNING_LOCK_LIMIT, endless));
  EXPECT(strlen(pinning_last_error()) > 500 && strlen(pinning_last_error()) < 5000);
  GIVES(PINNING_LOCK_LIMIT, pinning_fail(PINNING_LOCK_LIMIT, NULL));
  EXPECT(!strcmp(pinning_last_error(), ""));
  EXPECT(!strcmp(pinning_version(), PINNING_VERSION));
  char parts[40];
  snprintf(parts, sizeof parts, "%d.%d.%d", PINNING_VERSION_MAJOR, PINNING_VERSION_MINOR, PINNING_VERSION_PATCH);
  EXPECT(!strcmp(parts, PINNING_VERSION));
}

int main(void) {
  pinning_map *map;
  EXPECT(!strcmp(pinning_last_error(), ""));
  GIVES(PINNING_OK, pinning_map_create(&map, &locker));
  arguments(map);
  locks(map);
  refusals(map);
  others(map);
  registrars(map);
  mappings(map);
  copies(map);
  GIVES(PINNING_OK, pinning_lock(map, memory, 100, NULL));
  GIVES(PINNING_OK, pinning_map_destroy(map));
  EXPECT(!vendor.locked.base);
  process_wide();
  texts();
  puts("all right");
}
