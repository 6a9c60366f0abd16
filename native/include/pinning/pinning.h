/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pinned map for C: lock host memory for a device once, however many ask, and know in nanoseconds what is locked.
 *
 *     cc -I$(python -c 'import pinning; print(pinning.include_dirs()[0])') program.c \
 *        -L$DIR -Wl,-rpath,$DIR -lpinning     where DIR is $(python -c 'import pinning; print(pinning.library_dirs()[0])')
 *
 * Every function may be called from any thread. One that returns anything but PINNING_OK has changed nothing, unless
 * it says so here, and has written nothing through its pointers; `pinning_last_error` then says why and what helps.
 */
#ifndef PINNING_PINNING_H
#define PINNING_PINNING_H

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
#else
#define PINNING_NOEXCEPT
#endif

#define PINNING_VERSION "0.1.0"

/* The version of the library that is loaded. */
PINNING_API const char *pinning_version(void) PINNING_NOEXCEPT;

/* ---- errors ---- */

typedef enum pinning_status {
  PINNING_OK = 0,
  PINNING_INVALID_ARGUMENT, /* a null map, a policy or a device name that there is none of */
  PINNING_INVALID_RANGE,    /* null, empty, past the top of the address space, or not to be locked at all */
  PINNING_PARTIAL_OVERLAP,  /* it shares bytes with a region, or with what others have pinned, and does not lie inside */
  PINNING_NOT_LOCKED,       /* no region there */
  PINNING_STILL_LOCKED,     /* there is a lock in it, or it is half unlocked */
  PINNING_ALREADY_PINNED,   /* others have pinned some of it, and the vendor does not say how far */
  PINNING_LOCK_LIMIT,       /* more than this process or this machine may lock */
  PINNING_VENDOR_ERROR,     /* a vendor's call failed */
  PINNING_UNAVAILABLE,      /* a library, a driver, a device, or the Python interpreter of a map is missing or gone */
  PINNING_NO_MEMORY,        /* the host is out of memory */
  PINNING_INTERRUPTED,      /* Ctrl-C struck in a device that is written in Python */
  PINNING_UNKNOWN_ERROR
} pinning_status;

/* What a status means, in a sentence; never null. */
PINNING_API const char *pinning_error_string(pinning_status status) PINNING_NOEXCEPT;

/* Why this thread's last failed call failed: which value, which rule, what to do. Never null; until its next one. */
PINNING_API const char *pinning_last_error(void) PINNING_NOEXCEPT;

/* For lockers: sets this thread's text and returns `status`. */
PINNING_API pinning_status pinning_fail(pinning_status status, const char *text) PINNING_NOEXCEPT;

/* ---- maps ---- */

typedef struct pinning_map pinning_map;

/* A pinned range of the host, and the device pointer of its base. */
typedef struct pinning_pinned {
  void *base;
  size_t size;
  void *device_ptr;
} pinning_pinned;

/*
 * One device's calls, for `pinning_map_create`. They come from any thread, several at a time for disjoint ranges, with
 * no lock of the map's held; they may call `pinning_find`. What else than PINNING_OK they return reaches the map's
 * caller, with the text of `pinning_fail`.
 */
typedef struct pinning_locker {
  void *self; /* handed to each */
  /* Page-locks the range. PINNING_ALREADY_PINNED where others have pinned some of it: then `is_pinned` is asked. */
  pinning_status (*lock)(void *self, void *ptr, size_t size, void **device_ptr);
  /* Undoes the `lock` of the range that starts at `ptr`. */
  pinning_status (*unlock)(void *self, void *ptr);
  /* The pinned range around `ptr`, of any owner; PINNING_NOT_LOCKED where there is none. */
  pinning_status (*is_pinned)(void *self, const void *ptr, pinning_pinned *pinned);
} pinning_locker;

/* A map of its own over `locker`, which is copied; its `self` must outlive the map. */
PINNING_API pinning_status pinning_map_create(pinning_map **map, const pinning_locker *locker) PINNING_NOEXCEPT;

/*
 * Unlocks what is left, however many hold it, and frees the map. When the locker refuses to unlock, what could be
 * unlocked is, and the map stays; call it again. Only for a map that `pinning_map_create` made, and that is no longer used.
 */
PINNING_API pinning_status pinning_map_destroy(pinning_map *map) PINNING_NOEXCEPT;

/*
 * The one map of a device in this process: "cuda:0", "hip:0", "hsa:0", "ur:0" or "host:0" (mlock), in Python's numbering. It is
 * made on demand, lives as long as the process, and is the map that Python's `pinning` uses for this device.
 * PINNING_UNAVAILABLE says what is missing.
 */
PINNING_API pinning_status pinning_map_open(pinning_map **map, const char *device) PINNING_NOEXCEPT;

/* ---- locks ---- */

/*
 * Counts one more lock of the range, and locks it first where no region holds it. `device_ptr`, which may be null,
 * gets the device's address of `ptr`. Where the vendor refuses a part, and then to undo the parts before it, a half
 * unlocked region stays, for `pinning_unlock` to try again.
 */
PINNING_API pinning_status pinning_lock(pinning_map *map, void *ptr, size_t size, void **device_ptr) PINNING_NOEXCEPT;

/* Counts one lock less of the region around `ptr`; the last one unlocks it. */
PINNING_API pinning_status pinning_unlock(pinning_map *map, const void *ptr) PINNING_NOEXCEPT;

/* Enters memory that its owner has pinned: it is found, and never unlocked by the map. */
PINNING_API pinning_status pinning_register(pinning_map *map, void *ptr, size_t size, void *device_ptr) PINNING_NOEXCEPT;

/* Takes back `pinning_register` of the region around `ptr`; PINNING_STILL_LOCKED while there is a lock in it. */
PINNING_API pinning_status pinning_unregister(pinning_map *map, const void *ptr) PINNING_NOEXCEPT;

/* Asks the vendor for each region of others, and takes out those that they have unpinned. */
PINNING_API pinning_status pinning_refresh(pinning_map *map) PINNING_NOEXCEPT;

/* ---- locks for as long as a buffer is mapped ---- */

typedef enum pinning_policy {
  PINNING_OFF,      /* locks nothing, but enters what others have pinned */
  PINNING_ON,       /* locks where it can */
  PINNING_MANDATORY /* it is an error where it cannot */
} pinning_policy;

/*
 * When a runtime maps a buffer to the device: one more lock where a region holds it; else what others have pinned is
 * entered; else it is locked, as `policy` says. `device_ptr`, which may be null, gets null where nothing is locked,
 * which is an error only for PINNING_MANDATORY and for what is no range. Each call that returns PINNING_OK wants one
 * `pinning_unlock_unmapped`.
 */
PINNING_API pinning_status pinning_lock_mapped(pinning_map *map, void *ptr, size_t size, pinning_policy policy,
                                               void **device_ptr) PINNING_NOEXCEPT;

/* When the mapping of `ptr` ends: gives up one lock that `pinning_lock_mapped` of this address has taken, if any. */
PINNING_API pinning_status pinning_unlock_unmapped(pinning_map *map, const void *ptr) PINNING_NOEXCEPT;

/* ---- registrars: libraries that are told of what is locked ---- */

/*
 * Such as a network library that has its own registration of the same memory. The functions are called from any thread,
 * several at a time, with no lock held; they must not lock in the range that they are called for. A status other than
 * PINNING_OK, with `pinning_fail` for its text, reaches the caller that locks or unlocks.
 */
typedef struct pinning_registrar {
  void *self;       /* given to both; no two registrars of one map have the same */
  const char *name; /* for errors; may be null */
  size_t piece;     /* the most bytes that `add` takes at once; 0: any */
  /* Registers memory that is locked; `known_as` gets what `remove` is to be given. */
  pinning_status (*add)(void *self, void *ptr, size_t size, void **known_as);
  /* Undoes that, before the memory is unlocked. When it fails, it is called again by the next try to unlock. */
  pinning_status (*remove)(void *self, void *known_as);
} pinning_registrar;

/*
 * From now on each region is added once, before its first lock is returned, and removed after its last was given up; those that
 * are locked already are added now. Not what others have pinned. Where `add` fails, all is undone: of this call, or of the
 * lock that wanted it. The structure is copied.
 */
PINNING_API pinning_status pinning_add_registrar(pinning_map *map, const pinning_registrar *registrar) PINNING_NOEXCEPT;

/*
 * Removes all that the registrar with this `self` was told of, and calls it no more afterwards: also while another thread
 * is still in `pinning_add_registrar` of it, for which it waits. Not to be called by the registrar's own functions.
 * PINNING_INVALID_ARGUMENT where there is none. The error of its `remove` is returned when all is done; it has gone all
 * the same.
 */
PINNING_API pinning_status pinning_remove_registrar(pinning_map *map, const void *self) PINNING_NOEXCEPT;

/* ---- the budget of the process ---- */

/* Bytes, over the maps of all devices. */
typedef struct pinning_budget {
  uint64_t limit;      /* the most that may be locked; UINT64_MAX where there is no limit */
  uint64_t locked;     /* by the maps, with what is idle */
  uint64_t idle;       /* registered with a vendor and not locked: it gives way */
  uint64_t external;   /* in the maps, but pinned by others, which counts too */
  uint64_t idle_limit; /* the most that may be idle */
} pinning_budget;

PINNING_API pinning_status pinning_get_budget(pinning_budget *budget) PINNING_NOEXCEPT;

/*
 * Sets the most bytes that this process may lock. A lock beyond it is PINNING_LOCK_LIMIT, when all that is idle has been
 * given back; what is locked already stays.
 */
PINNING_API pinning_status pinning_set_budget(uint64_t limit) PINNING_NOEXCEPT;

/*
 * Unlocks what is idle, the longest idle first, until `bytes` are given back or nothing is idle. `given`, which may be null,
 * gets how many bytes that were. Where a vendor refuses, the others are still unlocked, and its error is returned.
 */
PINNING_API pinning_status pinning_give_back_idle(uint64_t bytes, uint64_t *given) PINNING_NOEXCEPT;

/* ---- what is locked ---- */

typedef struct pinning_region {
  void *start;
  size_t size;
  void *device_ptr;    /* of `start` */
  size_t piece;        /* no copy may cross a multiple of it from `start`; `size` where one call has locked it all */
  uint32_t references; /* locks held */
  uint32_t external;   /* 1: pinned by others, never unlocked by the map */
} pinning_region;

/* The device's address of a byte of the region. */
static inline void *pinning_device_ptr_of(const pinning_region *region, const void *ptr) {
  return (char *)region->device_ptr + ((const char *)ptr - (const char *)region->start);
}

/*
 * The region that holds the whole range; PINNING_NOT_LOCKED, which leaves `pinning_last_error` as it was, where none
 * does. `region` may be null. Takes no lock, writes nothing that others read, and does not wait.
 */
PINNING_API pinning_status pinning_find(const pinning_map *map, const void *ptr, size_t size,
                                        pinning_region *region) PINNING_NOEXCEPT;

/*
 * Writes the first `room` regions, ascending and disjoint, and how many there are in all. One that comes or goes during
 * the call is told perhaps.
 */
PINNING_API pinning_status pinning_regions(const pinning_map *map, pinning_region *regions, size_t room,
                                           size_t *count) PINNING_NOEXCEPT;

/* ---- copies ---- */

/* How bytes travel, from the fastest to the slowest. */
typedef enum pinning_path {
  PINNING_PATH_DIRECT = 0, /* the device copies them itself, while the host goes on */
  PINNING_PATH_STAGED = 1, /* threads move them through pinned blocks, while the host goes on */
  PINNING_PATH_PLAIN = 3   /* the vendor's own copy of pageable memory, for which the caller waits */
} pinning_path;

/* Why. */
typedef enum pinning_reason {
  PINNING_REASON_LOCKED = 0,     /* the host's memory is locked */
  PINNING_REASON_ON_DEVICE = 1,  /* both ends are memory of the device */
  PINNING_REASON_LARGE = 4,      /* pageable, and worth staging */
  PINNING_REASON_SMALL = 5,      /* pageable, and the vendor's own copy is as fast */
  PINNING_REASON_NO_VALUES = 6,  /* pageable, and the vendor's queue cannot wait for values, so it cannot stage */
  PINNING_REASON_ONE_THREAD = 7, /* pageable, and so few threads stage no faster than the vendor copies */
  PINNING_REASON_IN_HOST = 8,    /* both ends are the host's */
  PINNING_REASON_KERNEL = 10,    /* of a batch: a kernel of the device moves some of it */
  PINNING_REASON_ENGINES = 11,   /* of a batch: the copy engines move it */
  PINNING_REASON_PAGEABLE = 12,  /* of a batch: threads gather or scatter some of it */
  PINNING_REASON_NO_ROOM = 13    /* worth staging, but no pinned memory was to be had for it */
} pinning_reason;

/*
 * Copies `size` bytes from `src` to `dst`, and returns once it is over. `map` is one of `pinning_map_open`; an end is memory
 * of the host, locked or not or in part, or of its device. It is split at the borders of locks, and each part goes its
 * fastest way: locked memory by the device, large pageable memory by threads through pinned blocks, small by the vendor's
 * own copy. PINNING_INVALID_RANGE for what is empty, no range, or runs out of the device's memory. Where the vendor refuses,
 * some bytes may have been copied, and nothing is under way any more.
 */
PINNING_API pinning_status pinning_copy(pinning_map *map, void *dst, const void *src, size_t size) PINNING_NOEXCEPT;

/* A copy that is under way. As a type it is always written with `struct`: the name alone is the function. */
struct pinning_copy;

/*
 * The same in the vendor's `stream` (a CUstream, hipStream_t, ...; of the map's device), after what was submitted there
 * before; returns once it is submitted, which for PINNING_PATH_PLAIN may be late. Null: the vendor's default stream, or on a
 * device that has none a queue of this copy's own. The caller keeps the stream and the memory, and sees to it that nothing
 * else is submitted to the stream meanwhile; locks of the memory are held, until `pinning_copy_wait`. In a child of fork a
 * copy is not to be used. PINNING_INVALID_ARGUMENT where the stream is being captured into a graph, and the capture goes on.
 */
PINNING_API pinning_status pinning_copy_async(pinning_map *map, void *dst, const void *src, size_t size, void *stream,
                                              struct pinning_copy **copy) PINNING_NOEXCEPT;

/*
 * Copies `sizes[i]` bytes from `srcs[i]` to `dsts[i]` for each of `count` items, as `pinning_copy`. All items are checked
 * before anything is copied: PINNING_INVALID_RANGE names the first that is wrong. Where the device has a kernel for it, that
 * moves many small locked parts; else its copy engines do, in one call where the vendor has one. In what order is no promise:
 * of two items that write the same byte either may have the last word.
 */
PINNING_API pinning_status pinning_copy_batch(pinning_map *map, void *const *dsts, const void *const *srcs,
                                              const size_t *sizes, size_t count) PINNING_NOEXCEPT;

/* The same in a stream, as `pinning_copy_async`. */
PINNING_API pinning_status pinning_copy_batch_async(pinning_map *map, void *const *dsts, const void *const *srcs,
                                                    const size_t *sizes, size_t count, void *stream,
                                                    struct pinning_copy **copy) PINNING_NOEXCEPT;

/* The slowest path of its parts, and why that one. */
PINNING_API pinning_status pinning_copy_path(const struct pinning_copy *copy, pinning_path *path) PINNING_NOEXCEPT;
PINNING_API pinning_status pinning_copy_reason(const struct pinning_copy *copy, pinning_reason *reason) PINNING_NOEXCEPT;

/* Writes 1 where it is over, else 0. An error is that of the copy, or of work before it. */
PINNING_API pinning_status pinning_copy_done(struct pinning_copy *copy, int *done) PINNING_NOEXCEPT;

/* Waits until it is over and frees `copy`, also where it returns an error: that of the copy, or of work before it. */
PINNING_API pinning_status pinning_copy_wait(struct pinning_copy *copy) PINNING_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif
