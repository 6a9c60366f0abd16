// SPDX-License-Identifier: Apache-2.0
// The part of hip_runtime_api.h that is called: every enumeration is an int here.
#pragma once

#include <cstddef>

namespace pinning::hip {

#define PINNING_HIP_FUNCTIONS(FUNCTION)                            \
  FUNCTION(hipInit, int, unsigned)                                 \
  FUNCTION(hipGetErrorName, char const*, int)                      \
  FUNCTION(hipGetLastError, int)                                   \
  FUNCTION(hipGetDeviceCount, int, int*)                           \
  FUNCTION(hipGetDevice, int, int*)                                \
  FUNCTION(hipSetDevice, int, int)                                 \
  FUNCTION(hipHostRegister, int, void*, std::size_t, unsigned)     \
  FUNCTION(hipHostUnregister, int, void*)                          \
  FUNCTION(hipHostGetDevicePointer, int, void**, void*, unsigned)  \
  FUNCTION(hipPointerGetAttribute, int, void*, int, void*)         \
  FUNCTION(hipMemGetAddressRange, int, void**, std::size_t*, void*)

#define PINNING_HIP_CONSTANTS(CONSTANT)                 \
  CONSTANT(hipErrorInvalidValue, 1)                     \
  CONSTANT(hipErrorInvalidDevicePointer, 17)            \
  CONSTANT(hipErrorNotFound, 500)                       \
  CONSTANT(hipErrorHostMemoryAlreadyRegistered, 712)    \
  CONSTANT(hipHostRegisterPortable, 1)                  \
  CONSTANT(hipHostRegisterMapped, 2)                    \
  CONSTANT(hipExtHostRegisterCoarseGrained, 8)          \
  CONSTANT(HIP_POINTER_ATTRIBUTE_HOST_POINTER, 4)       \
  CONSTANT(HIP_POINTER_ATTRIBUTE_IS_MANAGED, 8)         \
  CONSTANT(HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)

#define PINNING_POINTER(name, result, ...) result (*name)(__VA_ARGS__);
struct Functions {
  PINNING_HIP_FUNCTIONS(PINNING_POINTER)
};
#undef PINNING_POINTER

}  // namespace pinning::hip
