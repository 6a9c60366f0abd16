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

/* Maps are counted: only the first copies to the device, and only the last copies back and releases. */
int data_begin(pinning_map *locks, const target *device, void *host, size_t size, int type);
int data_end(pinning_map *locks, const target *device, void *host, size_t size, int type);

/* `target update`: copies whatever the count. */
int data_update(pinning_map *locks, void *host, size_t size, int type);

/* The device's address of a byte that is mapped, or null. */
void *device_address(const void *host);

/* Copies that were made while their host memory was locked, and others. */
extern size_t fast_copies, slow_copies;
