// SPDX-License-Identifier: Apache-2.0
// liboffload's functions to register memory, implemented over <pinning/pinning.h>.
#pragma once

#include <pinning/pinning.h>

enum ol_errc_t {
  OL_ERRC_SUCCESS,
  OL_ERRC_INVALID_ARGUMENT,
  OL_ERRC_INVALID_NULL_POINTER,
  OL_ERRC_INVALID_SIZE,
  OL_ERRC_UNKNOWN,
};
struct ol_memory_register_flags_t {};
typedef pinning_map* ol_device_handle_t;

inline ol_errc_t errc(pinning_status status) {
  switch (status) {
    case PINNING_OK:
      return OL_ERRC_SUCCESS;
    case PINNING_PARTIAL_OVERLAP:
    case PINNING_NOT_LOCKED:
      return OL_ERRC_INVALID_ARGUMENT;
    default:
      return OL_ERRC_UNKNOWN;
  }
}

inline ol_errc_t olMemRegister(ol_device_handle_t device, void* ptr, size_t size, ol_memory_register_flags_t, void** to) {
  if (ptr == nullptr) return OL_ERRC_INVALID_NULL_POINTER;
  if (size == 0) return OL_ERRC_INVALID_SIZE;
  return errc(pinning_lock(device, ptr, size, to));
}

// `ptr` is a device pointer, which on the host equals the host pointer.
inline ol_errc_t olMemUnregister(ol_device_handle_t device, void* ptr) {
  return ptr == nullptr ? OL_ERRC_INVALID_NULL_POINTER : errc(pinning_unlock(device, ptr));
}

inline ol_errc_t olMemDataMappedNotify(ol_device_handle_t device, void* ptr, size_t size) {
  if (ptr == nullptr) return OL_ERRC_INVALID_NULL_POINTER;
  if (size == 0) return OL_ERRC_INVALID_SIZE;
  return errc(pinning_lock_mapped(device, ptr, size, PINNING_MANDATORY, nullptr));
}

inline ol_errc_t olMemDataUnMappedNotify(ol_device_handle_t device, void* ptr) {
  return ptr == nullptr ? OL_ERRC_INVALID_NULL_POINTER : errc(pinning_unlock_unmapped(device, ptr));
}
