// SPDX-License-Identifier: Apache-2.0
// The functions of the driver that this library exports; see symbols.hpp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "../../vendors/cuda/cuda_abi.hpp"

#pragma GCC visibility push(default)
extern "C" {

int cuMemcpyHtoD_v2(unsigned long long dst, void const* src, std::size_t size);
int cuMemcpyHtoD_v2_ptds(unsigned long long dst, void const* src, std::size_t size);
int cuMemcpyDtoH_v2(void* dst, unsigned long long src, std::size_t size);
int cuMemcpyDtoH_v2_ptds(void* dst, unsigned long long src, std::size_t size);
int cuMemcpy(unsigned long long dst, unsigned long long src, std::size_t size);
int cuMemcpy_ptds(unsigned long long dst, unsigned long long src, std::size_t size);
int cuMemcpyHtoDAsync_v2(unsigned long long dst, void const* src, std::size_t size, void* stream);
int cuMemcpyHtoDAsync_v2_ptsz(unsigned long long dst, void const* src, std::size_t size, void* stream);
int cuMemcpyDtoHAsync_v2(void* dst, unsigned long long src, std::size_t size, void* stream);
int cuMemcpyDtoHAsync_v2_ptsz(void* dst, unsigned long long src, std::size_t size, void* stream);
int cuMemcpyAsync(unsigned long long dst, unsigned long long src, std::size_t size, void* stream);
int cuMemcpyAsync_ptsz(unsigned long long dst, unsigned long long src, std::size_t size, void* stream);
int cuMemcpy2D_v2(pinning::cuda::Rows const* rows);
int cuMemcpy2D_v2_ptds(pinning::cuda::Rows const* rows);
int cuMemcpy2DUnaligned_v2(pinning::cuda::Rows const* rows);
int cuMemcpy2DUnaligned_v2_ptds(pinning::cuda::Rows const* rows);
int cuMemcpy2DAsync_v2(pinning::cuda::Rows const* rows, void* stream);
int cuMemcpy2DAsync_v2_ptsz(pinning::cuda::Rows const* rows, void* stream);
int cuMemcpyWithAttributesAsync(unsigned long long dst, unsigned long long src, std::size_t size,
                                pinning::cuda::CopyAttributes* attributes, void* stream);
int cuMemcpyWithAttributesAsync_ptsz(unsigned long long dst, unsigned long long src, std::size_t size,
                                     pinning::cuda::CopyAttributes* attributes, void* stream);
int cuMemcpyBatchAsync(unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
                       pinning::cuda::CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds,
                       std::size_t* failed, void* stream);
int cuMemcpyBatchAsync_ptsz(unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
                            pinning::cuda::CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds,
                            std::size_t* failed, void* stream);
int cuMemcpyBatchAsync_v2(unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
                          pinning::cuda::CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds, void* stream);
int cuMemcpyBatchAsync_v2_ptsz(unsigned long long* dsts, unsigned long long* srcs, std::size_t* sizes, std::size_t count,
                               pinning::cuda::CopyAttributes* attributes, std::size_t* firsts, std::size_t kinds,
                               void* stream);
int cuGetProcAddress(char const* symbol, void** function, int version, std::uint64_t flags);
int cuGetProcAddress_v2(char const* symbol, void** function, int version, std::uint64_t flags, int* status);

}  // extern "C"
#pragma GCC visibility pop
