// SPDX-License-Identifier: Apache-2.0
//
// The parts of the harness that the tests use, and HIP functions that our stand-in lacks, built on those that it has.
// Kernels run on the CPU, which can access all host memory, as a device with xnack can.

#pragma once

#include <catch2/catch.hpp>
#include <hip/hip_runtime_api.h>
#include <sys/sysinfo.h>

#include <cstring>
#include <iostream>
#include <thread>
#include <tuple>
#include <vector>

#define HT_AMD 1
#define HT_NVIDIA 0
#define __global__
#define HIP_CHECK(call) REQUIRE((call) == hipSuccess);
#define HIP_CHECK_ERROR(call, code) REQUIRE((call) == (code))
#define HIP_CHECK_THREAD(call) HipTest::failures += (call) != hipSuccess
#define HIP_CHECK_THREAD_FINALIZE() REQUIRE(HipTest::failures == 0)

inline constexpr std::size_t kPageSize = 4096;
inline thread_local dim3 threadIdx, blockIdx, blockDim, gridDim;

namespace HipTest {

inline std::atomic<int> failures{0};
inline void HIP_SKIP_TEST(char const* why) { std::cout << "SKIPPED: " << why << std::endl; }
inline std::size_t getMemoryAmount() {
  struct sysinfo info;
  return sysinfo(&info), (info.freeram * info.mem_unit) >> 20;
}
inline int getDeviceCount() { int count = 0; return hipGetDeviceCount(&count), count; }

template <class T> T host_of(T value) {
  if constexpr (std::is_pointer_v<T>) {  // the runtime need not know a host address
    void* host = nullptr;
    if (!hipPointerGetAttribute(&host, HIP_POINTER_ATTRIBUTE_HOST_POINTER, value)) return static_cast<T>(host);
  }
  return value;
}
template <class... T> auto on_cpu(T... values) { return std::tuple(host_of(values)...); }

template <class Kernel> void launch(dim3 blocks, dim3 threads, hipStream_t stream, Kernel&& kernel) {
  REQUIRE(hipStreamSynchronize(stream) == hipSuccess);
  blockDim = threads, gridDim = blocks;
  for (blockIdx.x = 0; blockIdx.x < blocks.x; ++blockIdx.x)
    for (threadIdx.x = 0; threadIdx.x < threads.x; ++threadIdx.x) kernel();
}

}  // namespace HipTest

namespace hip {
struct SpawnProc {  // runs another program, which is not built
  SpawnProc(char const*, bool) {}
  int run(char const*) { return -1; }
  std::string getOutput() { return "0"; }
};
}  // namespace hip

template <class T> void ArrayMismatch(T const* a, T const* b, std::size_t count) { REQUIRE(std::equal(a, a + count, b)); }
template <class... T> bool DeviceAttributesSupport(int, T...) { return true; }

// One stream for all calls that name none.
inline hipStream_t of_hip_tests(hipStream_t stream) {
  static hipStream_t none = nullptr;
  if (!stream && !none) REQUIRE(hipStreamCreateWithFlags(&none, 0) == hipSuccess);
  return stream ? stream : none;
}

#define hipLaunchKernelGGL(kernel, blocks, threads, bytes, stream, ...) \
  HipTest::launch(blocks, threads, of_hip_tests(stream), [&, given = HipTest::on_cpu(__VA_ARGS__)] { \
    std::apply([&](auto... each) { kernel(each...); }, given); \
  })

extern "C" {
inline hipError_t hipGetDeviceProperties(hipDeviceProp_t* of, int) {
  std::memset(of, 0, sizeof *of);
  std::strcpy(of->gcnArchName, "gfx90a:xnack+");
  return hipSuccess;
}
inline hipError_t hipStreamCreate(hipStream_t* stream) { return hipStreamCreateWithFlags(stream, 0); }
inline hipError_t hipMemset(void* to, int value, std::size_t size) {
  hipError_t const code = hipMemsetD8Async(to, static_cast<unsigned char>(value), size, of_hip_tests(nullptr));
  return code ? code : hipStreamSynchronize(of_hip_tests(nullptr));
}
inline hipError_t hipMemGetInfo(std::size_t* free, std::size_t* total) { return *free = *total = std::size_t{1} << 30, hipSuccess; }
inline hipError_t hipMallocPitch(void** ptr, std::size_t* pitch, std::size_t width, std::size_t height) {
  return hipMalloc(ptr, (*pitch = width) * height);
}
}

// Our stand-in accepts only hipMemcpyDefault.
#define hipMemcpyAsync(to, from, size, kind, stream) hipMemcpyAsync(to, from, size, hipMemcpyDefault, of_hip_tests(stream))
