// SPDX-License-Identifier: Apache-2.0
// The part of cuda.h that is called: every enumeration is an int here, and every handle a void*.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pinning::cuda {

// FUNCTION(name, result, arguments...): the exported name, with its version.
#define PINNING_CUDA_FUNCTIONS(FUNCTION)                                             \
  FUNCTION(cuInit, int, unsigned)                                                    \
  FUNCTION(cuGetErrorName, int, int, char const**)                                   \
  FUNCTION(cuDeviceGetCount, int, int*)                                              \
  FUNCTION(cuDeviceGet, int, int*, int)                                              \
  FUNCTION(cuDeviceGetAttribute, int, int*, int, int)                                \
  FUNCTION(cuDevicePrimaryCtxRetain, int, void**, int)                               \
  FUNCTION(cuDevicePrimaryCtxRelease_v2, int, int)                                   \
  FUNCTION(cuCtxPushCurrent_v2, int, void*)                                          \
  FUNCTION(cuCtxPopCurrent_v2, int, void**)                                          \
  FUNCTION(cuMemHostRegister_v2, int, void*, std::size_t, unsigned)                  \
  FUNCTION(cuMemHostUnregister, int, void*)                                          \
  FUNCTION(cuMemHostGetDevicePointer_v2, int, unsigned long long*, void*, unsigned)  \
  FUNCTION(cuPointerGetAttributes, int, unsigned, int*, void**, unsigned long long)

// CONSTANT(name, value)
#define PINNING_CUDA_CONSTANTS(CONSTANT)                                \
  CONSTANT(CUDA_ERROR_INVALID_VALUE, 1)                                 \
  CONSTANT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)              \
  CONSTANT(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 113)  \
  CONSTANT(CU_MEMHOSTREGISTER_PORTABLE, 1)                              \
  CONSTANT(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                             \
  CONSTANT(CU_MEMHOSTREGISTER_READ_ONLY, 8)                             \
  CONSTANT(CU_MEMORYTYPE_HOST, 1)                                       \
  CONSTANT(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                         \
  CONSTANT(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4)                        \
  CONSTANT(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                          \
  CONSTANT(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)                   \
  CONSTANT(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)

#define PINNING_POINTER(name, result, ...) result (*name)(__VA_ARGS__);
struct Functions {
  PINNING_CUDA_FUNCTIONS(PINNING_POINTER)
};
#undef PINNING_POINTER

}  // namespace pinning::cuda
