/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The data environment of a small offload runtime: which host buffers are mapped to the device, how often, and where.
 * The rules are OpenMP's, as in LLVM's libomptarget, and locks follow the mappings.
 */
#include <pinning/pinning.h>

enum { MAP_TO = 1, MAP_FROM = 2, MAP_TOFROM = 3 };

/* The functions of a target. They return 0, or an error code. */
typedef struct target {
  int (*allocate)(size_t size, void **device);
  int (*release)(void *device);
} target;

/* Where copies go. They are submitted to the queue, in order; what is not in the queue must wait for it. */
typedef struct environment {
  pinning_map *locks;
  pinning_queue *queue;
  const target *device;
} environment;

/* Maps are counted: only the first copies to the device, and only the last copies back, waits and releases. */
int data_begin(const environment *to, void *host, size_t size, int type);
int data_end(const environment *from, void *host, size_t size, int type);

/* `target update`: copies whatever the count, and waits. */
int data_update(const environment *where, void *host, size_t size, int type);

/* The device's address of a byte that is mapped, or null. */
void *device_address(const void *host);

/* Copies that were made while their host memory was locked, and others. */
extern size_t fast_copies, slow_copies;
