// SPDX-License-Identifier: Apache-2.0
// The part of hsa.h and hsa_ext_amd.h that is used: every enumeration is an int here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../base/function.hpp"

namespace pinning::hsa {

/// hsa_agent_t, hsa_amd_memory_pool_t and hsa_signal_t, which have the same layout.
struct Handle {
  std::uint64_t handle;
};

/// hsa_amd_pointer_info_t, which only grows within a major version; the runtime fills in no more than `size`.
struct PointerInfo {
  std::uint32_t size;
  int type;
  void* agentBaseAddress;
  void* hostBaseAddress;
  std::size_t sizeInBytes;
  void* userData;
  Handle agentOwner;
  std::uint32_t global_flags;
};

/// hsa_pitched_ptr_t: bytes from row to row, and from layer to layer.
struct PitchedPointer {
  void* base;
  std::size_t pitch, slice;
};

/// hsa_dim3_t.
struct Dim3 {
  std::uint32_t x, y, z;
};

using Visit = int (*)(Handle, void*);

#define PINNING_HSA_FUNCTIONS(FUNCTION)                                                                              \
  FUNCTION(hsa_init, int, )                                                                                          \
  FUNCTION(hsa_status_string, int, int, char const**)                                                                \
  FUNCTION(hsa_system_get_info, int, int, void*)                                                                     \
  FUNCTION(hsa_iterate_agents, int, Visit, void*)                                                                    \
  FUNCTION(hsa_agent_get_info, int, Handle, int, void*)                                                              \
  FUNCTION(hsa_amd_agent_iterate_memory_pools, int, Handle, Visit, void*)                                            \
  FUNCTION(hsa_amd_memory_pool_get_info, int, Handle, int, void*)                                                    \
  FUNCTION(hsa_amd_memory_lock, int, void*, std::size_t, Handle*, int, void**)                                       \
  FUNCTION(hsa_amd_memory_lock_to_pool, int, void*, std::size_t, Handle*, int, Handle, std::uint32_t, void**)        \
  FUNCTION(hsa_amd_memory_unlock, int, void*)                                                                        \
  FUNCTION(hsa_amd_pointer_info, int, void const*, PointerInfo*, void* (*)(std::size_t), std::uint32_t*, Handle**)   \
  FUNCTION(hsa_amd_memory_pool_allocate, int, Handle, std::size_t, std::uint32_t, void**)                            \
  FUNCTION(hsa_amd_memory_pool_free, int, void*)                                                                     \
  FUNCTION(hsa_amd_agent_memory_pool_get_info, int, Handle, Handle, int, void*)                                      \
  FUNCTION(hsa_amd_agents_allow_access, int, std::uint32_t, Handle const*, std::uint32_t const*, void const*)        \
  FUNCTION(hsa_amd_memory_fill, int, void*, std::uint32_t, std::size_t)                                              \
  FUNCTION(hsa_memory_copy, int, void*, void const*, std::size_t)                                                    \
  FUNCTION(hsa_amd_memory_async_copy, int, void*, Handle, void const*, Handle, std::size_t, std::uint32_t,           \
           Handle const*, Handle)                                                                                    \
  FUNCTION(hsa_amd_memory_async_copy_rect, int, PitchedPointer const*, Dim3 const*, PitchedPointer const*,           \
           Dim3 const*, Dim3 const*, Handle, int, std::uint32_t, Handle const*, Handle)                              \
  FUNCTION(hsa_signal_create, int, std::int64_t, std::uint32_t, Handle const*, Handle*)                              \
  FUNCTION(hsa_signal_destroy, int, Handle)                                                                          \
  FUNCTION(hsa_signal_load_scacquire, std::int64_t, Handle)                                                          \
  FUNCTION(hsa_signal_store_screlease, void, Handle, std::int64_t)                                                   \
  FUNCTION(hsa_signal_subtract_screlease, void, Handle, std::int64_t)                                                \
  FUNCTION(hsa_signal_wait_scacquire, std::int64_t, Handle, int, std::int64_t, std::uint64_t, int)

#define PINNING_HSA_CONSTANTS(CONSTANT)                             \
  CONSTANT(HSA_STATUS_ERROR, 0x1000)                                \
  CONSTANT(HSA_STATUS_ERROR_OUT_OF_RESOURCES, 0x1008)               \
  CONSTANT(HSA_SYSTEM_INFO_VERSION_MAJOR, 0)                        \
  CONSTANT(HSA_SYSTEM_INFO_VERSION_MINOR, 1)                        \
  CONSTANT(HSA_AGENT_INFO_NAME, 0)                                  \
  CONSTANT(HSA_AGENT_INFO_DEVICE, 17)                               \
  CONSTANT(HSA_AMD_AGENT_INFO_PRODUCT_NAME, 0xA009)                 \
  CONSTANT(HSA_DEVICE_TYPE_CPU, 0)                                  \
  CONSTANT(HSA_DEVICE_TYPE_GPU, 1)                                  \
  CONSTANT(HSA_AMD_MEMORY_POOL_INFO_GLOBAL_FLAGS, 1)                \
  CONSTANT(HSA_AMD_MEMORY_POOL_INFO_RUNTIME_ALLOC_ALLOWED, 5)       \
  CONSTANT(HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_KERNARG_INIT, 1)         \
  CONSTANT(HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_FINE_GRAINED, 2)         \
  CONSTANT(HSA_AMD_MEMORY_POOL_GLOBAL_FLAG_COARSE_GRAINED, 4)       \
  CONSTANT(HSA_AMD_AGENT_MEMORY_POOL_INFO_ACCESS, 0)                \
  CONSTANT(HSA_AMD_MEMORY_POOL_ACCESS_NEVER_ALLOWED, 0)             \
  CONSTANT(HSA_SIGNAL_CONDITION_LT, 2)                              \
  CONSTANT(HSA_WAIT_STATE_BLOCKED, 0)                               \
  CONSTANT(HSA_EXT_POINTER_TYPE_HSA, 1)                             \
  CONSTANT(HSA_EXT_POINTER_TYPE_LOCKED, 2)

struct Functions {
  PINNING_HSA_FUNCTIONS(PINNING_MEMBER)
};

}  // namespace pinning::hsa
