// SPDX-License-Identifier: Apache-2.0
// The part of cuda.h that is called: every enumeration is an int here, and every handle a void*.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../base/function.hpp"

namespace pinning::cuda {

/// CUDA_MEMCPY2D
struct Rows {
  std::size_t srcXInBytes, srcY;
  int srcMemoryType;
  void const* srcHost;
  unsigned long long srcDevice;
  void* srcArray;
  std::size_t srcPitch, dstXInBytes, dstY;
  int dstMemoryType;
  void* dstHost;
  unsigned long long dstDevice;
  void* dstArray;
  std::size_t dstPitch, WidthInBytes, Height;
};

/// CUstreamBatchMemOpParams, of which `waitValue` and `writeValue` look alike.
struct WordOperation {
  int operation;
  unsigned long long address;
  std::uint64_t value;
  unsigned flags;
  unsigned long long alias;
  std::uint64_t unused;
};

/// CUmemcpyAttributes
struct CopyAttributes {
  int srcAccessOrder;
  int srcLocHint[2], dstLocHint[2];
  unsigned flags;
};

/// CUmemLocation
struct MemoryLocation {
  int type, id;
};

/// CUmemAllocationProp
struct AllocationProperties {
  int type = 0, requestedHandleTypes = 0;
  MemoryLocation location;
  void* win32HandleMetaData = nullptr;
  unsigned char compressionType = 0, gpuDirectRDMACapable = 0;
  unsigned short usage = 0;
  unsigned char reserved[4]{};
};

/// CUmemAccessDesc
struct AccessDescription {
  MemoryLocation location;
  int flags;
};

// FUNCTION(name, result, arguments...): the exported name, with its version.
#define PINNING_CUDA_FUNCTIONS(FUNCTION)                                                                \
  FUNCTION(cuInit, int, unsigned)                                                                       \
  FUNCTION(cuGetErrorName, int, int, char const**)                                                      \
  FUNCTION(cuDriverGetVersion, int, int*)                                                               \
  FUNCTION(cuDeviceGetCount, int, int*)                                                                 \
  FUNCTION(cuDeviceGet, int, int*, int)                                                                 \
  FUNCTION(cuDeviceGetName, int, char*, int, int)                                                       \
  FUNCTION(cuDeviceGetAttribute, int, int*, int, int)                                                   \
  FUNCTION(cuDeviceCanAccessPeer, int, int*, int, int)                                                  \
  FUNCTION(cuDeviceGetP2PAttribute, int, int*, int, int, int)                                           \
  FUNCTION(cuDevicePrimaryCtxGetState, int, int, unsigned*, int*)                                       \
  FUNCTION(cuDevicePrimaryCtxRetain, int, void**, int)                                                  \
  FUNCTION(cuDevicePrimaryCtxRelease_v2, int, int)                                                      \
  FUNCTION(cuCtxGetCurrent, int, void**)                                                                \
  FUNCTION(cuCtxPushCurrent_v2, int, void*)                                                             \
  FUNCTION(cuCtxPopCurrent_v2, int, void**)                                                             \
  FUNCTION(cuCtxGetDevice, int, int*)                                                                   \
  FUNCTION(cuCtxSynchronize, int, void)                                                                 \
  FUNCTION(cuCtxEnablePeerAccess, int, void*, unsigned)                                                 \
  FUNCTION(cuMemHostRegister_v2, int, void*, std::size_t, unsigned)                                     \
  FUNCTION(cuMemHostUnregister, int, void*)                                                             \
  FUNCTION(cuMemHostGetDevicePointer_v2, int, unsigned long long*, void*, unsigned)                     \
  FUNCTION(cuMemHostAlloc, int, void**, std::size_t, unsigned)                                          \
  FUNCTION(cuMemFreeHost, int, void*)                                                                   \
  FUNCTION(cuMemAlloc_v2, int, unsigned long long*, std::size_t)                                        \
  FUNCTION(cuMemAllocManaged, int, unsigned long long*, std::size_t, unsigned)                          \
  FUNCTION(cuMemFree_v2, int, unsigned long long)                                                       \
  FUNCTION(cuMemGetAllocationGranularity, int, std::size_t*, AllocationProperties const*, int)          \
  FUNCTION(cuMemAddressReserve, int, unsigned long long*, std::size_t, std::size_t, unsigned long long, unsigned long long) \
  FUNCTION(cuMemAddressFree, int, unsigned long long, std::size_t)                                      \
  FUNCTION(cuMemCreate, int, unsigned long long*, std::size_t, AllocationProperties const*, unsigned long long) \
  FUNCTION(cuMemRelease, int, unsigned long long)                                                       \
  FUNCTION(cuMemMap, int, unsigned long long, std::size_t, std::size_t, unsigned long long, unsigned long long) \
  FUNCTION(cuMemUnmap, int, unsigned long long, std::size_t)                                            \
  FUNCTION(cuMemSetAccess, int, unsigned long long, std::size_t, AccessDescription const*, std::size_t) \
  FUNCTION(cuMemcpy, int, unsigned long long, unsigned long long, std::size_t)                          \
  FUNCTION(cuPointerGetAttributes, int, unsigned, int*, void**, unsigned long long)                     \
  FUNCTION(cuStreamCreate, int, void**, unsigned)                                                       \
  FUNCTION(cuStreamDestroy_v2, int, void*)                                                              \
  FUNCTION(cuStreamGetCtx, int, void*, void**)                                                          \
  FUNCTION(cuStreamQuery, int, void*)                                                                   \
  FUNCTION(cuStreamSynchronize, int, void*)                                                             \
  FUNCTION(cuStreamWaitEvent, int, void*, void*, unsigned)                                              \
  FUNCTION(cuStreamWaitValue32_v2, int, void*, unsigned long long, std::uint32_t, unsigned)             \
  FUNCTION(cuStreamWriteValue32_v2, int, void*, unsigned long long, std::uint32_t, unsigned)            \
  FUNCTION(cuStreamBatchMemOp_v2, int, void*, unsigned, WordOperation*, unsigned)                       \
  FUNCTION(cuLaunchHostFunc, int, void*, void (*)(void*), void*)                                        \
  FUNCTION(cuMemcpyAsync, int, unsigned long long, unsigned long long, std::size_t, void*)              \
  FUNCTION(cuMemcpy2DAsync_v2, int, Rows const*, void*)                                                 \
  FUNCTION(cuMemsetD8Async, int, unsigned long long, unsigned char, std::size_t, void*)                 \
  FUNCTION(cuMemsetD16Async, int, unsigned long long, unsigned short, std::size_t, void*)               \
  FUNCTION(cuMemsetD32Async, int, unsigned long long, unsigned, std::size_t, void*)                     \
  FUNCTION(cuEventCreate, int, void**, unsigned)                                                        \
  FUNCTION(cuEventDestroy_v2, int, void*)                                                               \
  FUNCTION(cuEventRecord, int, void*, void*)                                                            \
  FUNCTION(cuEventQuery, int, void*)                                                                    \
  FUNCTION(cuEventSynchronize, int, void*)                                                              \
  FUNCTION(cuEventElapsedTime, int, float*, void*, void*)                                               \
  FUNCTION(cuStreamIsCapturing, int, void*, int*)                                                       \
  FUNCTION(cuThreadExchangeStreamCaptureMode, int, int*)                                                \
  FUNCTION(cuUserObjectCreate, int, void**, void*, void (*)(void*), unsigned, unsigned)                 \
  FUNCTION(cuUserObjectRelease, int, void*, unsigned)                                                   \
  FUNCTION(cuGraphRetainUserObject, int, void*, void*, unsigned, unsigned)                              \
  FUNCTION(cuModuleLoadData, int, void**, void const*)                                                  \
  FUNCTION(cuModuleUnload, int, void*)                                                                  \
  FUNCTION(cuModuleGetFunction, int, void**, void*, char const*)                                        \
  FUNCTION(cuFuncSetAttribute, int, void*, int, int)                                                    \
  FUNCTION(cuLaunchKernel, int, void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, \
           void**, void**)

// Null in drivers that lack them. The first two came with 12.0, the third with 12.3. The fourth is exported as
// cuMemcpyBatchAsync, since 12.8; the fifth came with 13.0, whose header calls it by that name.
#define PINNING_CUDA_NEWER_FUNCTIONS(FUNCTION)                                                          \
  FUNCTION(cuCtxGetId, int, void*, unsigned long long*)                                                 \
  FUNCTION(cuStreamGetId, int, void*, unsigned long long*)                                              \
  FUNCTION(cuStreamGetCaptureInfo_v3, int, void*, int*, std::uint64_t*, void**, void const**, void const**, std::size_t*) \
  FUNCTION(cuMemcpyBatchAsync_v1, int, unsigned long long*, unsigned long long*, std::size_t*, std::size_t, \
           CopyAttributes*, std::size_t*, std::size_t, std::size_t*, void*)                             \
  FUNCTION(cuMemcpyBatchAsync_v2, int, unsigned long long*, unsigned long long*, std::size_t*, std::size_t, \
           CopyAttributes*, std::size_t*, std::size_t, void*)

// CONSTANT(name, value)
#define PINNING_CUDA_CONSTANTS(CONSTANT)                                \
  CONSTANT(CUDA_ERROR_INVALID_VALUE, 1)                                 \
  CONSTANT(CUDA_ERROR_OUT_OF_MEMORY, 2)                                 \
  CONSTANT(CUDA_ERROR_INVALID_CONTEXT, 201)                             \
  CONSTANT(CUDA_ERROR_INVALID_HANDLE, 400)                              \
  CONSTANT(CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED, 704)                 \
  CONSTANT(CUDA_ERROR_TOO_MANY_PEERS, 711)                              \
  CONSTANT(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, 712)              \
  CONSTANT(CUDA_ERROR_NOT_SUPPORTED, 801)                               \
  CONSTANT(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 33)                          \
  CONSTANT(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID, 34)                       \
  CONSTANT(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID, 50)                       \
  CONSTANT(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, 75)            \
  CONSTANT(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 83)                      \
  CONSTANT(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 97)   \
  CONSTANT(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED, 99)             \
  CONSTANT(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, 110) \
  CONSTANT(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED, 113)  \
  CONSTANT(CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED, 3)          \
  CONSTANT(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 8)          \
  CONSTANT(CU_MEMCPY_SRC_ACCESS_ORDER_STREAM, 1)                        \
  CONSTANT(CU_MEMHOSTREGISTER_PORTABLE, 1)                              \
  CONSTANT(CU_MEMHOSTREGISTER_DEVICEMAP, 2)                             \
  CONSTANT(CU_MEMHOSTREGISTER_READ_ONLY, 8)                             \
  CONSTANT(CU_MEMHOSTALLOC_PORTABLE, 1)                                 \
  CONSTANT(CU_MEMHOSTALLOC_DEVICEMAP, 2)                                \
  CONSTANT(CU_MEMHOSTALLOC_WRITECOMBINED, 4)                            \
  CONSTANT(CU_MEM_ATTACH_GLOBAL, 1)                                     \
  CONSTANT(CU_MEM_ALLOCATION_TYPE_PINNED, 1)                            \
  CONSTANT(CU_MEM_ALLOC_GRANULARITY_MINIMUM, 0)                         \
  CONSTANT(CU_MEM_LOCATION_TYPE_DEVICE, 1)                              \
  CONSTANT(CU_MEM_ACCESS_FLAGS_PROT_READWRITE, 3)                       \
  CONSTANT(CU_MEMORYTYPE_HOST, 1)                                       \
  CONSTANT(CU_MEMORYTYPE_UNIFIED, 4)                                    \
  CONSTANT(CU_POINTER_ATTRIBUTE_MEMORY_TYPE, 2)                         \
  CONSTANT(CU_POINTER_ATTRIBUTE_HOST_POINTER, 4)                        \
  CONSTANT(CU_POINTER_ATTRIBUTE_IS_MANAGED, 8)                          \
  CONSTANT(CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, 9)                      \
  CONSTANT(CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, 11)                   \
  CONSTANT(CU_POINTER_ATTRIBUTE_RANGE_SIZE, 12)                         \
  CONSTANT(CU_STREAM_MEM_OP_WAIT_VALUE_32, 1)                           \
  CONSTANT(CU_STREAM_MEM_OP_WRITE_VALUE_32, 2)                          \
  CONSTANT(CU_STREAM_WAIT_VALUE_GEQ, 0)                                 \
  CONSTANT(CU_STREAM_CAPTURE_STATUS_NONE, 0)                            \
  CONSTANT(CU_STREAM_CAPTURE_STATUS_INVALIDATED, 2)                     \
  CONSTANT(CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, 1)                        \
  CONSTANT(CU_GRAPH_USER_OBJECT_MOVE, 1)                                \
  CONSTANT(CU_STREAM_WRITE_VALUE_DEFAULT, 0)

struct Functions {
  PINNING_CUDA_FUNCTIONS(PINNING_MEMBER)
  PINNING_CUDA_NEWER_FUNCTIONS(PINNING_MEMBER)
};

}  // namespace pinning::cuda
