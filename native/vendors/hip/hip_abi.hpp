// SPDX-License-Identifier: Apache-2.0
// The part of hip_runtime_api.h that is used: every enumeration is an int here, and every handle a void*.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../base/function.hpp"

namespace pinning::hip {

#define PINNING_HIP_FUNCTIONS(FUNCTION)                                                                         \
  FUNCTION(hipInit, int, unsigned)                                                                              \
  FUNCTION(hipGetErrorName, char const*, int)                                                                   \
  FUNCTION(hipGetLastError, int, void)                                                                          \
  FUNCTION(hipRuntimeGetVersion, int, int*)                                                                     \
  FUNCTION(hipGetDeviceCount, int, int*)                                                                        \
  FUNCTION(hipGetDevice, int, int*)                                                                             \
  FUNCTION(hipSetDevice, int, int)                                                                              \
  FUNCTION(hipDeviceGetName, int, char*, int, int)                                                              \
  FUNCTION(hipDeviceGetAttribute, int, int*, int, int)                                                          \
  FUNCTION(hipDeviceCanAccessPeer, int, int*, int, int)                                                         \
  FUNCTION(hipDeviceEnablePeerAccess, int, int, unsigned)                                                       \
  FUNCTION(hipDeviceSynchronize, int, void)                                                                     \
  FUNCTION(hipHostRegister, int, void*, std::size_t, unsigned)                                                  \
  FUNCTION(hipHostUnregister, int, void*)                                                                       \
  FUNCTION(hipHostGetDevicePointer, int, void**, void*, unsigned)                                               \
  FUNCTION(hipHostMalloc, int, void**, std::size_t, unsigned)                                                   \
  FUNCTION(hipHostFree, int, void*)                                                                             \
  FUNCTION(hipMalloc, int, void**, std::size_t)                                                                 \
  FUNCTION(hipMallocManaged, int, void**, std::size_t, unsigned)                                                \
  FUNCTION(hipFree, int, void*)                                                                                 \
  FUNCTION(hipMemcpy, int, void*, void const*, std::size_t, int)                                                \
  FUNCTION(hipPointerGetAttribute, int, void*, int, void*)                                                      \
  FUNCTION(hipMemGetAddressRange, int, void**, std::size_t*, void*)                                             \
  FUNCTION(hipStreamCreateWithFlags, int, void**, unsigned)                                                     \
  FUNCTION(hipStreamDestroy, int, void*)                                                                        \
  FUNCTION(hipStreamQuery, int, void*)                                                                          \
  FUNCTION(hipStreamSynchronize, int, void*)                                                                    \
  FUNCTION(hipStreamWaitEvent, int, void*, void*, unsigned)                                                     \
  FUNCTION(hipStreamWaitValue32, int, void*, void*, std::uint32_t, unsigned, std::uint32_t)                     \
  FUNCTION(hipStreamWriteValue32, int, void*, void*, std::uint32_t, unsigned)                                   \
  FUNCTION(hipLaunchHostFunc, int, void*, void (*)(void*), void*)                                               \
  FUNCTION(hipMemcpyAsync, int, void*, void const*, std::size_t, int, void*)                                    \
  FUNCTION(hipMemcpy2DAsync, int, void*, std::size_t, void const*, std::size_t, std::size_t, std::size_t, int,  \
           void*)                                                                                               \
  FUNCTION(hipMemsetD8Async, int, void*, unsigned char, std::size_t, void*)                                     \
  FUNCTION(hipMemsetD16Async, int, void*, unsigned short, std::size_t, void*)                                   \
  FUNCTION(hipMemsetD32Async, int, void*, int, std::size_t, void*)                                              \
  FUNCTION(hipEventCreateWithFlags, int, void**, unsigned)                                                      \
  FUNCTION(hipEventDestroy, int, void*)                                                                         \
  FUNCTION(hipEventRecord, int, void*, void*)                                                                   \
  FUNCTION(hipEventQuery, int, void*)                                                                           \
  FUNCTION(hipEventSynchronize, int, void*)                                                                     \
  FUNCTION(hipEventElapsedTime, int, float*, void*, void*)                                                      \
  FUNCTION(hipStreamIsCapturing, int, void*, int*)                                                              \
  FUNCTION(hipThreadExchangeStreamCaptureMode, int, int*)

// Null in runtimes before ROCm 7.1. Those of 7.2.1 to 7.2.3 refuse attributes, which are optional: none are passed.
#define PINNING_HIP_NEWER_FUNCTIONS(FUNCTION)                                                                   \
  FUNCTION(hipMemcpyBatchAsync, int, void**, void**, std::size_t*, std::size_t, void*, std::size_t*,            \
           std::size_t, std::size_t*, void*)

#define PINNING_HIP_CONSTANTS(CONSTANT)                          \
  CONSTANT(hipErrorInvalidValue, 1)                              \
  CONSTANT(hipErrorOutOfMemory, 2)                               \
  CONSTANT(hipErrorInvalidDevicePointer, 17)                     \
  CONSTANT(hipErrorInvalidHandle, 400)                           \
  CONSTANT(hipErrorNotFound, 500)                                \
  CONSTANT(hipErrorPeerAccessAlreadyEnabled, 704)                \
  CONSTANT(hipErrorHostMemoryAlreadyRegistered, 712)             \
  CONSTANT(hipErrorNotSupported, 801)                            \
  CONSTANT(hipHostRegisterPortable, 1)                           \
  CONSTANT(hipHostRegisterMapped, 2)                             \
  CONSTANT(hipExtHostRegisterCoarseGrained, 8)                   \
  CONSTANT(hipHostMallocPortable, 1)                             \
  CONSTANT(hipHostMallocMapped, 2)                               \
  CONSTANT(hipMemAttachGlobal, 1)                                \
  CONSTANT(hipMemcpyDefault, 4)                                  \
  CONSTANT(hipStreamWaitValueGte, 0)                             \
  CONSTANT(hipDeviceAttributeManagedMemory, 24)                  \
  CONSTANT(hipDeviceAttributePciBusId, 67)                       \
  CONSTANT(hipDeviceAttributePciDeviceId, 68)                    \
  CONSTANT(hipDeviceAttributePciDomainID, 69)                    \
  CONSTANT(hipDeviceAttributeCanUseStreamWaitValue, 10013)       \
  CONSTANT(HIP_POINTER_ATTRIBUTE_HOST_POINTER, 4)                \
  CONSTANT(HIP_POINTER_ATTRIBUTE_IS_MANAGED, 8)                  \
  CONSTANT(HIP_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)              \
  CONSTANT(HIP_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)

struct Functions {
  PINNING_HIP_FUNCTIONS(PINNING_MEMBER)
  PINNING_HIP_NEWER_FUNCTIONS(PINNING_MEMBER)
};

}  // namespace pinning::hip
