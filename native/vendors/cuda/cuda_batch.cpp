// SPDX-License-Identifier: Apache-2.0
// Many copies in one call: by the copy engines, and by a kernel that reads and writes locked memory over the bus.
#include <algorithm>
#include <map>
#include <move_parts_ptx.hpp>
#include <mutex>

#include "../batch_call.hpp"
#include "cuda_queue.hpp"

namespace pinning::cuda {

namespace {

// Measured on an H100 and an H200: 4 multiprocessors fill the bus from 4 KiB a part on, 8 from 1 KiB on, and more gain
// nothing.
constexpr unsigned blocks = 8, threads = 1024, warps = threads / 32;

/// The kernel of a context, compiled by the driver at its first use. It stays as long as the context.
void* kernel_of(Driver const& driver, Where context) {
  static std::mutex& mutex = *new std::mutex;
  static auto& kernels = *new std::map<Where, void*>;
  {
    std::lock_guard const guard(mutex);
    if (auto const found = kernels.find(context); found != kernels.end()) return found->second;
  }
  void *module = nullptr, *kernel = nullptr;
  Current const current(driver, context);
  driver.check(driver.cuModuleLoadData, &module, move_parts_ptx);
  if (int const code = driver.cuModuleGetFunction(&kernel, module, "move_parts"); code != 0) {
    driver.cuModuleUnload(module);
    throw VendorError(driver.failed("cuModuleGetFunction", code));
  }
  std::lock_guard const guard(mutex);
  auto const [place, is_new] = kernels.try_emplace(context, kernel);
  if (!is_new) driver.cuModuleUnload(module);  // another thread was quicker
  return place->second;
}

}  // namespace

void Queue::move_parts(Address parts, std::uint64_t count) {
  void* const kernel = kernel_of(driver_, where());
  auto const wanted = static_cast<unsigned>(std::min<std::uint64_t>((count + warps - 1) / warps, blocks));
  void* arguments[] = {&parts, &count};
  Current const current(driver_, where());
  submit(driver_.cuLaunchKernel, kernel, wanted, 1, 1, threads, 1, 1, 0, stream(), arguments, nullptr);
}

void Queue::copy_batch(Part const* parts, std::uint64_t count) {
  bool const has_call = driver_.cuMemcpyBatchAsync_v2 || driver_.cuMemcpyBatchAsync_v1;
  // The call refuses the default streams and streams under capture.
  if (count < 2 || !has_call || handle() <= last_default || capture() != 0) return VendorQueue::copy_batch(parts, count);
  CopyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  copy_by_batch_call<unsigned long long>(*this, parts, count, [&](auto* dsts, auto* srcs, auto* sizes, auto now) {
    std::size_t first = 0, failed = 0;  // the first copy that has the attributes; the one that was refused
    if (driver_.cuMemcpyBatchAsync_v2) {
      return result(driver_.cuMemcpyBatchAsync_v2, dsts, srcs, sizes, now, &attributes, &first, 1, stream());
    }
    return result(driver_.cuMemcpyBatchAsync_v1, dsts, srcs, sizes, now, &attributes, &first, 1, &failed, stream());
  });
}

}  // namespace pinning::cuda
