// SPDX-License-Identifier: Apache-2.0
// The part of ur_api.h and ur_print.h that is used: every enumeration is an int here, and every handle a void*.
//
// Checked against the headers of intel-sycl-rt 2025.0 to 2026.2, and run on the loaders of 2025.2, 2025.3, 2026.1 and
// 2026.2. A loader does not report its release: 2025.2 and 2025.3 both report 0.12 but take different arguments. The
// functions that they export distinguish them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../base/function.hpp"

namespace pinning::ur {

/// ur_queue_properties_t and ur_exp_usm_host_alloc_register_properties_t.
struct Properties {
  int stype;
  void* pNext;
  std::uint32_t flags;
};

// FUNCTION(name, result, arguments...)
#define PINNING_UR_FUNCTIONS(FUNCTION)                                                                               \
  FUNCTION(urLoaderInit, int, std::uint32_t, void*)                                                                  \
  FUNCTION(urPrintResult, int, int, char*, std::size_t, std::size_t*)                                                \
  FUNCTION(urAdapterGet, int, std::uint32_t, void**, std::uint32_t*)                                                 \
  FUNCTION(urAdapterGetInfo, int, void*, int, std::size_t, void*, std::size_t*)                                      \
  FUNCTION(urPlatformGet, int, void*, std::uint32_t, void**, std::uint32_t*)                                         \
  FUNCTION(urPlatformGetApiVersion, int, void*, std::uint32_t*)                                                      \
  FUNCTION(urDeviceGetSelected, int, void*, int, std::uint32_t, void**, std::uint32_t*)                              \
  FUNCTION(urDeviceGetInfo, int, void*, int, std::size_t, void*, std::size_t*)                                       \
  FUNCTION(urContextCreate, int, std::uint32_t, void**, void*, void**)                                               \
  FUNCTION(urContextRelease, int, void*)                                                                             \
  FUNCTION(urUSMHostAlloc, int, void*, void*, void*, std::size_t, void**)                                            \
  FUNCTION(urUSMDeviceAlloc, int, void*, void*, void*, void*, std::size_t, void**)                                   \
  FUNCTION(urUSMSharedAlloc, int, void*, void*, void*, void*, std::size_t, void**)                                   \
  FUNCTION(urUSMFree, int, void*, void*)                                                                             \
  FUNCTION(urUSMGetMemAllocInfo, int, void*, void const*, int, std::size_t, void*, std::size_t*)                     \
  FUNCTION(urUSMImportExp, int, void*, void*, std::size_t)                                                           \
  FUNCTION(urUSMReleaseExp, int, void*, void*)                                                                       \
  FUNCTION(urQueueCreate, int, void*, void*, Properties const*, void**)                                              \
  FUNCTION(urQueueRelease, int, void*)                                                                               \
  FUNCTION(urQueueGetInfo, int, void*, int, std::size_t, void*, std::size_t*)                                        \
  FUNCTION(urQueueFinish, int, void*)                                                                                \
  FUNCTION(urEnqueueUSMMemcpy, int, void*, bool, void*, void const*, std::size_t, std::uint32_t, void* const*,       \
           void**)                                                                                                   \
  FUNCTION(urEnqueueUSMMemcpy2D, int, void*, bool, void*, std::size_t, void const*, std::size_t, std::size_t,        \
           std::size_t, std::uint32_t, void* const*, void**)                                                         \
  FUNCTION(urEnqueueUSMFill, int, void*, void*, std::size_t, void const*, std::size_t, std::uint32_t, void* const*,  \
           void**)                                                                                                   \
  FUNCTION(urEnqueueEventsWait, int, void*, std::uint32_t, void* const*, void**)                                     \
  FUNCTION(urEnqueueEventsWaitWithBarrier, int, void*, std::uint32_t, void* const*, void**)                          \
  FUNCTION(urEventGetInfo, int, void*, int, std::size_t, void*, std::size_t*)                                        \
  FUNCTION(urEventGetProfilingInfo, int, void*, int, std::size_t, void*, std::size_t*)                               \
  FUNCTION(urEventWait, int, std::uint32_t, void* const*)                                                            \
  FUNCTION(urEventRelease, int, void*)

// Null in loaders without them, which are sufficient. Registering came with 2026.2.
#define PINNING_UR_RECENT_FUNCTIONS(FUNCTION)                                                  \
  FUNCTION(urUSMHostAllocRegisterExp, int, void*, void*, std::size_t, Properties const*)       \
  FUNCTION(urUSMHostAllocUnregisterExp, int, void*, void*)                                     \
  FUNCTION(urUsmP2PPeerAccessGetInfoExp, int, void*, void*, int, std::size_t, void*, std::size_t*) \
  FUNCTION(urUsmP2PEnablePeerAccessExp, int, void*, void*)                                     \
  FUNCTION(urEnqueueHostTaskExp, int, void*, void (*)(void*), void*, void*, std::uint32_t, void* const*, void**)

// CONSTANT(name, value)
#define PINNING_UR_CONSTANTS(CONSTANT)                                        \
  CONSTANT(UR_RESULT_ERROR_INVALID_OPERATION, 1)                              \
  CONSTANT(UR_RESULT_ERROR_OUT_OF_HOST_MEMORY, 38)                            \
  CONSTANT(UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY, 39)                          \
  CONSTANT(UR_RESULT_ERROR_OUT_OF_RESOURCES, 40)                              \
  CONSTANT(UR_RESULT_ERROR_UNSUPPORTED_FEATURE, 44)                           \
  CONSTANT(UR_RESULT_ERROR_INVALID_ENUMERATION, 53)                           \
  CONSTANT(UR_RESULT_ERROR_UNSUPPORTED_ENUMERATION, 54)                       \
  CONSTANT(UR_RESULT_ERROR_OVERLAPPING_REGIONS, 62)                           \
  CONSTANT(UR_ADAPTER_INFO_BACKEND, 0)                                        \
  CONSTANT(UR_BACKEND_LEVEL_ZERO, 1)                                          \
  CONSTANT(UR_BACKEND_OPENCL, 2)                                              \
  CONSTANT(UR_BACKEND_CUDA, 3)                                                \
  CONSTANT(UR_BACKEND_HIP, 4)                                                 \
  CONSTANT(UR_BACKEND_NATIVE_CPU, 5)                                          \
  CONSTANT(UR_BACKEND_OFFLOAD, 0x100)                                         \
  CONSTANT(UR_DEVICE_TYPE_ALL, 2)                                             \
  CONSTANT(UR_DEVICE_INFO_NAME, 66)                                           \
  CONSTANT(UR_DEVICE_INFO_USM_HOST_SUPPORT, 83)                               \
  CONSTANT(UR_DEVICE_INFO_USM_DEVICE_SUPPORT, 84)                             \
  CONSTANT(UR_DEVICE_INFO_USM_SINGLE_SHARED_SUPPORT, 85)                      \
  CONSTANT(UR_DEVICE_INFO_ENQUEUE_HOST_TASK_SUPPORT_EXP, 0x9000)              \
  CONSTANT(UR_DEVICE_USM_ACCESS_CAPABILITY_FLAG_ACCESS, 1)                    \
  CONSTANT(UR_EXP_PEER_INFO_UR_PEER_ACCESS_SUPPORT, 0)                        \
  CONSTANT(UR_USM_ALLOC_INFO_TYPE, 0)                                         \
  CONSTANT(UR_USM_ALLOC_INFO_BASE_PTR, 1)                                     \
  CONSTANT(UR_USM_ALLOC_INFO_SIZE, 2)                                         \
  CONSTANT(UR_USM_ALLOC_INFO_DEVICE, 3)                                       \
  CONSTANT(UR_USM_TYPE_HOST, 1)                                               \
  CONSTANT(UR_USM_TYPE_DEVICE, 2)                                             \
  CONSTANT(UR_USM_TYPE_SHARED, 3)                                             \
  CONSTANT(UR_STRUCTURE_TYPE_EXP_USM_HOST_ALLOC_REGISTER_PROPERTIES, 0x7000)  \
  CONSTANT(UR_EXP_USM_HOST_ALLOC_REGISTER_FLAG_READ_ONLY, 1)                  \
  CONSTANT(UR_STRUCTURE_TYPE_QUEUE_PROPERTIES, 14)                            \
  CONSTANT(UR_QUEUE_FLAG_OUT_OF_ORDER_EXEC_MODE_ENABLE, 1)                    \
  CONSTANT(UR_QUEUE_FLAG_PROFILING_ENABLE, 2)                                 \
  CONSTANT(UR_QUEUE_INFO_CONTEXT, 0)                                          \
  CONSTANT(UR_QUEUE_INFO_DEVICE, 1)                                           \
  CONSTANT(UR_QUEUE_INFO_FLAGS, 3)                                            \
  CONSTANT(UR_QUEUE_INFO_EMPTY, 6)                                            \
  CONSTANT(UR_EVENT_INFO_COMMAND_EXECUTION_STATUS, 3)                         \
  CONSTANT(UR_EVENT_STATUS_COMPLETE, 0)                                       \
  CONSTANT(UR_EVENT_STATUS_RUNNING, 1)                                        \
  CONSTANT(UR_EVENT_STATUS_SUBMITTED, 2)                                      \
  CONSTANT(UR_EVENT_STATUS_QUEUED, 3)                                         \
  CONSTANT(UR_PROFILING_INFO_COMMAND_END, 3)

struct Functions {
  PINNING_UR_FUNCTIONS(PINNING_MEMBER)
  PINNING_UR_RECENT_FUNCTIONS(PINNING_MEMBER)
};

}  // namespace pinning::ur
