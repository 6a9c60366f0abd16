/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pinned map for C: locks host memory once per device, however many callers need it; lookups take nanoseconds.
 *
 *     cc -I$(python -c 'import pinning; print(pinning.build.include_dirs()[0])') program.c \
 *        -L$DIR -Wl,-rpath,$DIR -lpinning  where DIR is $(python -c 'import pinning; print(pinning.build.library_dirs()[0])')
 *
 * It needs C99 or C++11. docs/abi.md says what stays the same from release to release.
 *
 * Every function may be called from any thread. One that returns anything but PINNING_OK has changed nothing, unless
 * documented here, and has written nothing through its pointers; `pinning_last_error` then has the reason and a remedy.
 * One answer is no failure and leaves that text unchanged: PINNING_NOT_LOCKED of `pinning_find`.
 *
 * A structure that may grow in later releases begins with `struct_size`, which the program sets to its `sizeof`:
 * fields after that end have their defaults. One whose last fields this library does not know is accepted if they are 0.
 */
#ifndef PINNING_PINNING_H
#define PINNING_PINNING_H

#if defined(__cplusplus) ? __cplusplus < 201103L : !defined(__STDC_VERSION__) || __STDC_VERSION__ < 199901L
#error "pinning.h needs C99 or C++11: compile with -std=c99 or -std=c++11, or later"
#endif

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define PINNING_API __attribute__((visibility("default")))
#else
#define PINNING_API
#endif

#ifdef __cplusplus
extern "C" {
#define PINNING_NOEXCEPT noexcept
/* As in C. So any number that a function of the program returns is a value of the type. */
#define PINNING_ENUM : unsigned
#define PINNING_CAST(type, value) static_cast<type>(value)
#else
#define PINNING_NOEXCEPT
#define PINNING_ENUM
#define PINNING_CAST(type, value) ((type)(value))
#endif

#define PINNING_VERSION "0.1.0"
#define PINNING_VERSION_MAJOR 0
#define PINNING_VERSION_MINOR 1
#define PINNING_VERSION_PATCH 0

/* The version of the library that is loaded. */
PINNING_API const char *pinning_version(void) PINNING_NOEXCEPT;

/* ---- errors ---- */

typedef enum pinning_status PINNING_ENUM {
  PINNING_OK = 0,
  PINNING_INVALID_ARGUMENT, /* a null map, or an unknown policy or device name */
  PINNING_INVALID_RANGE,    /* null, empty, past the top of the address space, or impossible to lock */
  PINNING_PARTIAL_OVERLAP,  /* shares bytes with a region, or with what others have pinned, but is not inside */
  PINNING_NOT_LOCKED,       /* no region is there */
  PINNING_STILL_LOCKED,     /* a lock is in the region, or it is half unlocked */
  PINNING_ALREADY_PINNED,   /* others have pinned some of it, and the vendor does not report the range */
  PINNING_LOCK_LIMIT,       /* more than this process or this machine may lock */
  PINNING_VENDOR_ERROR,     /* a vendor call failed */
  PINNING_UNAVAILABLE,      /* a library, a driver, a device, or the Python interpreter of a map is missing or gone */
  PINNING_NO_MEMORY,        /* the host is out of memory */
  PINNING_INTERRUPTED,      /* Ctrl-C in a device that is written in Python */
  PINNING_UNKNOWN_ERROR
} pinning_status;

/* The meaning of a status, in one sentence; never null. */
PINNING_API const char *pinning_error_string(pinning_status status) PINNING_NOEXCEPT;

/*
 * Why this thread's last failed call failed: the value, the rule, the remedy. Never null; valid until the next one.
 * PINNING_NOT_LOCKED of `pinning_find` does not count as a failure.
 */
PINNING_API const char *pinning_last_error(void) PINNING_NOEXCEPT;

/* For lockers and registrars: set this thread's error text, and return `status`. */
PINNING_API pinning_status pinning_fail(pinning_status status, const char *text) PINNING_NOEXCEPT;

/* ---- maps ---- */

typedef struct pinning_map pinning_map;

/* A pinned range of host memory, and the device pointer of its base. */
typedef struct pinning_pinned {
  void *base;
  size_t size;
  void *device_ptr;
} pinning_pinned;

/*
 * The calls of one device, for `pinning_map_create`. They are made on any thread, several at once for disjoint ranges,
 * with no lock of the map held; they may call `pinning_find`. A status other than PINNING_OK is returned to the map's
 * caller, with the text of `pinning_fail`.
 */
typedef struct pinning_locker {
  size_t struct_size; /* sizeof(pinning_locker) */
  void *self;         /* passed to each */
  /* Page-lock the range. PINNING_ALREADY_PINNED if others have pinned some of it; then `is_pinned` is called. */
  pinning_status (*lock)(void *self, void *ptr, size_t size, void **device_ptr);
  /* Undo the `lock` of the range that starts at `ptr`. */
  pinning_status (*unlock)(void *self, void *ptr);
  /* Report the pinned range around `ptr`, of any owner; PINNING_NOT_LOCKED if there is none. */
  pinning_status (*is_pinned)(void *self, const void *ptr, pinning_pinned *pinned);
} pinning_locker;

/* Make a private map that uses `locker`, which is copied; its `self` must outlive the map. */
PINNING_API pinning_status pinning_map_create(pinning_map **map, const pinning_locker *locker) PINNING_NOEXCEPT;

/*
 * Unlock what is left, however many locks it has, and free the map. If the locker refuses to unlock some of it, the
 * rest is unlocked and the map stays; call it again. Only for a map of `pinning_map_create` that is no longer used.
 */
PINNING_API pinning_status pinning_map_destroy(pinning_map *map) PINNING_NOEXCEPT;

/*
 * Get the process-wide map of a device: "cuda:0", "hip:0", "hsa:0", "ur:0" or "host:0" (mlock), numbered as in Python.
 * It is made on demand, exists until the process ends, and is the map that Python's `pinning` uses for this device. The
 * devices of each of CUDA, HIP and HSA share one map: what one of them locks is locked for the others too. The
 * text of PINNING_UNAVAILABLE says what is missing.
 */
PINNING_API pinning_status pinning_map_open(pinning_map **map, const char *device) PINNING_NOEXCEPT;

/* ---- locks ---- */

/*
 * Count one more lock of the range, and lock it first if no region holds it. `device_ptr`, which may be null, receives
 * the device's address of `ptr`. If the vendor refuses a piece, and then to undo the pieces before it, a half unlocked
 * region stays, for which `pinning_unlock` can try again.
 */
PINNING_API pinning_status pinning_lock(pinning_map *map, void *ptr, size_t size, void **device_ptr) PINNING_NOEXCEPT;

/* Count one lock less of the region around `ptr`; the last one unlocks it. */
PINNING_API pinning_status pinning_unlock(pinning_map *map, const void *ptr) PINNING_NOEXCEPT;

/* Enter memory that its owner has pinned: lookups find it, and the map never unlocks it. */
PINNING_API pinning_status pinning_register(pinning_map *map, void *ptr, size_t size, void *device_ptr) PINNING_NOEXCEPT;

/* Undo `pinning_register` of the region around `ptr`; PINNING_STILL_LOCKED while there is a lock in it. */
PINNING_API pinning_status pinning_unregister(pinning_map *map, const void *ptr) PINNING_NOEXCEPT;

/* Query the vendor for each region that others have pinned, and remove those that they have unpinned. */
PINNING_API pinning_status pinning_refresh(pinning_map *map) PINNING_NOEXCEPT;

/* ---- locks for as long as a buffer is mapped ---- */

typedef enum pinning_policy PINNING_ENUM {
  PINNING_OFF,      /* locks nothing, but enters what others have pinned */
  PINNING_ON,       /* locks if possible */
  PINNING_MANDATORY /* locks; an error if impossible */
} pinning_policy;

/*
 * When a runtime maps a buffer to the device: count one more lock if a region holds it; otherwise enter what others
 * have pinned; otherwise lock it, as `policy` says. `device_ptr`, which may be null, receives null if nothing is
 * locked, which is an error only for PINNING_MANDATORY and for an invalid range. Each call that returns PINNING_OK
 * requires one `pinning_unlock_unmapped`.
 */
PINNING_API pinning_status pinning_lock_mapped(pinning_map *map, void *ptr, size_t size, pinning_policy policy,
                                               void **device_ptr) PINNING_NOEXCEPT;

/* When the mapping of `ptr` ends: release one lock that `pinning_lock_mapped` of this address took, if any. */
PINNING_API pinning_status pinning_unlock_unmapped(pinning_map *map, const void *ptr) PINNING_NOEXCEPT;

/* ---- registrars: libraries that register what is locked ---- */

/*
 * For example a network library that has its own registration of the same memory. The functions are called from any
 * thread, several at once, with no lock held; they must not lock in the range for which they are called. A status other
 * than PINNING_OK is returned to the caller that locks or unlocks, with the text of `pinning_fail`.
 */
typedef struct pinning_registrar {
  size_t struct_size; /* sizeof(pinning_registrar) */
  void *self;         /* passed to both; unique among the registrars of a map */
  const char *name;   /* for errors; may be null */
  size_t piece;       /* the most bytes that `add` takes at once; 0: any */
  /* Register memory that is locked; `handle` receives the argument for `remove`. */
  pinning_status (*add)(void *self, void *ptr, size_t size, void **handle);
  /* Undo that, before the memory is unlocked. If it fails, the next try to unlock calls it again. */
  pinning_status (*remove)(void *self, void *handle);
} pinning_registrar;

/*
 * From now on add each region once, before its first lock is returned, and remove it after its last lock is released;
 * regions that are already locked are added now, memory that others have pinned is not. If `add` fails, this call, or
 * the lock that needed it, is undone. The structure is copied.
 */
PINNING_API pinning_status pinning_add_registrar(pinning_map *map, const pinning_registrar *registrar) PINNING_NOEXCEPT;

/*
 * Remove everything that was added to the registrar with this `self`, which is not called any more afterwards. Waits
 * for a `pinning_add_registrar` of it on another thread. The registrar's own functions must not call this.
 * PINNING_INVALID_ARGUMENT if there is none. An error of its `remove` is returned at the end; the registrar is removed
 * nevertheless.
 */
PINNING_API pinning_status pinning_remove_registrar(pinning_map *map, const void *self) PINNING_NOEXCEPT;

/* ---- the budget of the process ---- */

/* Bytes, over the maps of all devices. */
typedef struct pinning_budget {
  size_t struct_size;  /* sizeof(pinning_budget): set it before the call */
  uint64_t limit;      /* the most that may be locked; UINT64_MAX: no limit */
  uint64_t locked;     /* by the maps, including `idle` */
  uint64_t idle;       /* registered with a vendor, without a lock; given back when room is needed */
  uint64_t external;   /* in the maps, but pinned by others; counts towards `limit` */
  uint64_t idle_limit; /* the most that may be idle */
} pinning_budget;

PINNING_API pinning_status pinning_get_budget(pinning_budget *budget) PINNING_NOEXCEPT;

/*
 * Set the most bytes that this process may lock. A lock beyond it, once everything idle has been given back, is
 * PINNING_LOCK_LIMIT; what is already locked stays.
 */
PINNING_API pinning_status pinning_set_budget(uint64_t limit) PINNING_NOEXCEPT;

/*
 * Unlock what is idle, longest idle first, until `bytes` are given back or nothing is idle. `given`, which may be null,
 * receives the number of bytes. If a vendor refuses, the others are still unlocked, and its error is returned.
 */
PINNING_API pinning_status pinning_give_back_idle(uint64_t bytes, uint64_t *given) PINNING_NOEXCEPT;

/* ---- what is locked ---- */

typedef struct pinning_region {
  void *start;
  size_t size;
  void *device_ptr;    /* of `start` */
  size_t piece;        /* no copy may cross a multiple of it from `start`; `size` if one call has locked it all */
  uint32_t references; /* locks held */
  uint32_t external;   /* 1: pinned by others, never unlocked by the map */
} pinning_region;

/* The device's address of a byte of the region. */
static inline void *pinning_device_ptr_of(const pinning_region *region, const void *ptr) {
  return PINNING_CAST(char *, region->device_ptr) +
         (PINNING_CAST(const char *, ptr) - PINNING_CAST(const char *, region->start));
}

/*
 * Find the region that holds the whole range; PINNING_NOT_LOCKED, which is no failure (see `pinning_last_error`), if
 * none does. `region` may be null. Takes no lock and writes nothing that others read; waits only after a call that has taken
 * watched memory away, until the map knows.
 */
PINNING_API pinning_status pinning_find(const pinning_map *map, const void *ptr, size_t size,
                                        pinning_region *region) PINNING_NOEXCEPT;

/*
 * Write the first `room` regions, ascending and disjoint, and the total number. A region that is added or removed
 * during the call may or may not be reported.
 */
PINNING_API pinning_status pinning_regions(const pinning_map *map, pinning_region *regions, size_t room,
                                           size_t *count) PINNING_NOEXCEPT;

/* ---- copies ---- */

/* How bytes are copied, fastest first. */
typedef enum pinning_path PINNING_ENUM {
  PINNING_PATH_DIRECT = 0, /* the device copies them itself, while the host continues */
  PINNING_PATH_STAGED = 1, /* threads move them through pinned blocks, while the host continues */
  PINNING_PATH_PLAIN = 2   /* the vendor's own copy of pageable memory, for which the caller waits */
} pinning_path;

/* Why they take their path. */
typedef enum pinning_reason PINNING_ENUM {
  PINNING_REASON_LOCKED = 0,     /* the host's memory is locked */
  PINNING_REASON_ON_DEVICE = 1,  /* both ends are memory of the device */
  PINNING_REASON_LARGE = 4,      /* pageable, and worth staging */
  PINNING_REASON_SMALL = 5,      /* pageable, and the vendor's own copy is as fast */
  PINNING_REASON_NO_VALUES = 6,  /* pageable, and the vendor's queue cannot wait for values, so it cannot stage */
  PINNING_REASON_ONE_THREAD = 7, /* pageable, and so few threads stage no faster than the vendor copies */
  PINNING_REASON_IN_HOST = 8,    /* both ends are the host's */
  PINNING_REASON_KERNEL = 9,     /* of a batch: a kernel of the device moves some of it */
  PINNING_REASON_ENGINES = 10,   /* of a batch: the copy engines move it */
  PINNING_REASON_PAGEABLE = 11,  /* of a batch: threads gather or scatter some of it */
  PINNING_REASON_NO_ROOM = 12    /* worth staging, but there was no pinned memory for it */
} pinning_reason;

/*
 * Copy `size` bytes from `src` to `dst`, and return when that is complete. `map` is from `pinning_map_open`; each end
 * is memory of its device or of the host, locked, pageable or both. The copy is split at the borders of locks, and each
 * part takes its fastest path: locked memory by the device, large pageable memory by threads through pinned blocks,
 * small by the vendor's own copy. PINNING_INVALID_RANGE for an empty or invalid range, or one past the end of device
 * memory; host memory that is not mapped faults, as in memcpy. If the vendor refuses, some bytes may have been copied,
 * and nothing is in progress any more.
 */
PINNING_API pinning_status pinning_copy(pinning_map *map, void *dst, const void *src, size_t size) PINNING_NOEXCEPT;

/* A copy in progress. */
typedef struct pinning_async_copy pinning_async_copy;

/*
 * The same in the vendor's `stream` (a CUstream, hipStream_t, ... of the map's device), after everything submitted to
 * it before; returns once it is submitted, which takes longer for PINNING_PATH_PLAIN. A source that an earlier copy of
 * this interface in the same stream writes is read after that. Null: the vendor's default stream, or a queue of the
 * copy's own if the device has none. The caller keeps the stream and the memory, whose locks are held, until
 * `pinning_copy_wait`, and submits nothing else to the stream during this call. A forked child must not use its parent's
 * copies. PINNING_INVALID_ARGUMENT if the stream is being captured; the capture continues.
 */
PINNING_API pinning_status pinning_copy_async(pinning_map *map, void *dst, const void *src, size_t size, void *stream,
                                              pinning_async_copy **copy) PINNING_NOEXCEPT;

/*
 * Copy `sizes[i]` bytes from `srcs[i]` to `dsts[i]` for each of `count` items, as `pinning_copy`. All items are checked
 * before anything is copied: the text of PINNING_INVALID_RANGE names the first wrong one. Many small locked parts are
 * moved by a kernel if the device has one, otherwise by its copy engines, in one call if the vendor has one. The order
 * is not defined: if two items write the same byte, either may win.
 */
PINNING_API pinning_status pinning_copy_batch(pinning_map *map, void *const *dsts, const void *const *srcs,
                                              const size_t *sizes, size_t count) PINNING_NOEXCEPT;

/* The same in a stream, as `pinning_copy_async`. */
PINNING_API pinning_status pinning_copy_batch_async(pinning_map *map, void *const *dsts, const void *const *srcs,
                                                    const size_t *sizes, size_t count, void *stream,
                                                    pinning_async_copy **copy) PINNING_NOEXCEPT;

/* The slowest path of its parts, and the reason for it. */
PINNING_API pinning_status pinning_copy_path(const pinning_async_copy *copy, pinning_path *path) PINNING_NOEXCEPT;
PINNING_API pinning_status pinning_copy_reason(const pinning_async_copy *copy, pinning_reason *reason) PINNING_NOEXCEPT;

/* Write 1 if the copy is complete, otherwise 0. An error is that of the copy, or of work before it. */
PINNING_API pinning_status pinning_copy_done(pinning_async_copy *copy, int *done) PINNING_NOEXCEPT;

/* Wait until it is complete and free `copy`, even if an error is returned: that of the copy, or of work before it. */
PINNING_API pinning_status pinning_copy_wait(pinning_async_copy *copy) PINNING_NOEXCEPT;

/* ---- queues ---- */

/*
 * Operations of a device. In order, each starts after all earlier ones and after the events in its wait list. A copy reads
 * its source in its turn, whatever memory that is: also if work of this queue, or what its events stand for, writes it.
 * Any thread may submit. Queues and events of a parent process must not be used in a forked child.
 */
typedef struct pinning_queue pinning_queue;

/* The end of an operation. It may outlive its queue. */
typedef struct pinning_event pinning_event;

/* Make a queue of the device of `map`, which is from `pinning_map_open`. */
PINNING_API pinning_status pinning_queue_create(pinning_map *map, pinning_queue **queue) PINNING_NOEXCEPT;

/*
 * The same, but an operation starts as soon as its wait list is complete, whatever was submitted before: up to four run
 * at a time. `pinning_queue_wait` makes all later operations wait.
 */
PINNING_API pinning_status pinning_queue_create_out_of_order(pinning_map *map, pinning_queue **queue) PINNING_NOEXCEPT;

/*
 * Make a queue over the vendor's `stream`, as for `pinning_copy_async`, to which others submit as well; what they have
 * submitted comes first, but what it writes is not known: a copy of pageable memory that it writes must wait for an event.
 * The caller keeps the stream until the queue is destroyed. A queue over a stream that each thread has, such as
 * CU_STREAM_PER_THREAD, belongs to this thread. PINNING_INVALID_ARGUMENT if `stream` is null and the device has no default
 * stream.
 */
PINNING_API pinning_status pinning_queue_adopt(pinning_map *map, void *stream, pinning_queue **queue) PINNING_NOEXCEPT;

/*
 * Wait until all work of the queue is complete, give the vendor's queue back (an adopted one stays) and free `queue`,
 * even if an error is returned: as for `pinning_queue_synchronize`.
 */
PINNING_API pinning_status pinning_queue_destroy(pinning_queue *queue) PINNING_NOEXCEPT;

/*
 * Submit a copy as `pinning_copy` makes it, after the `waits` events of `wait_for`, which may be null if `waits` is 0;
 * they are events of any queue of the same vendor. `event`, if not null, receives the end of the copy. The caller keeps
 * the memory until then; its locks are held as long, and released by a later call for the queue or the event. If it is
 * refused, nothing is in progress.
 */
PINNING_API pinning_status pinning_queue_copy(pinning_queue *queue, void *dst, const void *src, size_t size,
                                              pinning_event *const *wait_for, size_t waits,
                                              pinning_event **event) PINNING_NOEXCEPT;

/* The same for `height` rows of `width` bytes, whose starts are `dst_pitch` and `src_pitch` bytes apart. */
PINNING_API pinning_status pinning_queue_copy_2d(pinning_queue *queue, void *dst, size_t dst_pitch, const void *src,
                                                 size_t src_pitch, size_t width, size_t height,
                                                 pinning_event *const *wait_for, size_t waits,
                                                 pinning_event **event) PINNING_NOEXCEPT;

/* The same for many ranges, as `pinning_copy_batch`. */
PINNING_API pinning_status pinning_queue_copy_batch(pinning_queue *queue, void *const *dsts, const void *const *srcs,
                                                    const size_t *sizes, size_t count, pinning_event *const *wait_for,
                                                    size_t waits, pinning_event **event) PINNING_NOEXCEPT;

/* The end of all work so far; of an adopted stream also of what others have submitted. */
PINNING_API pinning_status pinning_queue_record(pinning_queue *queue, pinning_event **event) PINNING_NOEXCEPT;

/* Make all later work wait for these events, of any queue of the same vendor. */
PINNING_API pinning_status pinning_queue_wait(pinning_queue *queue, pinning_event *const *events,
                                              size_t count) PINNING_NOEXCEPT;

/* Wait until all work so far is complete. The first error of work since the last call is reported here, too. */
PINNING_API pinning_status pinning_queue_synchronize(pinning_queue *queue) PINNING_NOEXCEPT;

/* Write 1 if it is reached, otherwise 0. An error is that of its operation, or of work before it. */
PINNING_API pinning_status pinning_event_done(pinning_event *event, int *done) PINNING_NOEXCEPT;

/* Wait until it is reached. Errors as for `pinning_event_done`. */
PINNING_API pinning_status pinning_event_wait(pinning_event *event) PINNING_NOEXCEPT;

/* Of the end of a copy: the slowest path of its parts, and the reason for it. Otherwise PINNING_INVALID_ARGUMENT. */
PINNING_API pinning_status pinning_event_path(const pinning_event *event, pinning_path *path) PINNING_NOEXCEPT;
PINNING_API pinning_status pinning_event_reason(const pinning_event *event, pinning_reason *reason) PINNING_NOEXCEPT;

/* Free an event, whether or not it is reached. */
PINNING_API pinning_status pinning_event_destroy(pinning_event *event) PINNING_NOEXCEPT;

/* ---- memory of a GPU that sleeps ---- */

/*
 * Memory of an NVIDIA GPU that keeps its addresses while its bytes are given back to the driver, so that pointers and CUDA
 * graphs with these addresses are valid again when it is awake. `device` is the number of the GPU, 1 of "cuda:1".
 *
 * These two have the signatures that torch's CUDAPluggableAllocator needs, and therefore no status: null, or memory that is
 * still allocated, means an error. `size` and `stream` of the second are not used, nor is `stream` of the first.
 */
PINNING_API void *pinning_sleepable_alloc(ptrdiff_t size, int device, void *stream) PINNING_NOEXCEPT;
PINNING_API void pinning_sleepable_free(void *ptr, size_t size, int device, void *stream) PINNING_NOEXCEPT;

/* Give its bytes back; they are lost. All work that uses it must be complete. Nothing happens if it is asleep already. */
PINNING_API pinning_status pinning_sleep(void *ptr, int device) PINNING_NOEXCEPT;

/* Bring memory of undefined contents to the same addresses. After an error it is still asleep: call it again. */
PINNING_API pinning_status pinning_wake(void *ptr, int device) PINNING_NOEXCEPT;

#undef PINNING_ENUM
#undef PINNING_CAST

#ifdef __cplusplus
}
#endif

#endif
