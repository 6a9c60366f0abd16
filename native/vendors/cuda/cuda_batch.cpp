// SPDX-License-Identifier: Apache-2.0
// Many copies in one call: by the copy engines, or by a kernel that reads and writes locked memory over the bus.
#include <algorithm>
#include <chrono>
#include <map>
#include <memory>
#include <move_parts_ptx.hpp>
#include <mutex>
#include <utility>

#include "../batch_call.hpp"
#include "cuda_queue.hpp"

namespace pinning::cuda {

namespace {

/// A kernel in a context, compiled by the driver at its first use. It exists as long as the context.
struct Kernel {
  void* function;
  unsigned threads, shared_bytes;  // per block, one on each multiprocessor used

  /// How many saturate the bus, measured on an H200 (without shared memory also on an H100); more gain nothing.
  unsigned multiprocessors(std::uint64_t part_bytes) const {
    if (shared_bytes == 0) return 8;
    return part_bytes >= (8 << 10) ? 3 : part_bytes >= (4 << 10) ? 4 : 6;
  }
};

// On an H200: the least bytes per second that the kernel moves, and the seconds per part of the copy engines. A kernel
// that waited less than `late_from` is not late: other work on the host and the bus makes both times vary.
constexpr double kernel_rate = 20e9, engine_seconds = 6e-6, late_from = 1e-3;
constexpr unsigned try_again_after = 16;  // batches

/// A try-lock on a flag: true for one thread at a time; no thread waits.
class Alone {
 public:
  explicit Alone(std::atomic_flag& flag) : flag_(flag), is_(!flag.test_and_set(std::memory_order_acquire)) {}
  ~Alone() {
    if (is_) flag_.clear(std::memory_order_release);
  }
  Alone(Alone const&) = delete;
  explicit operator bool() const noexcept { return is_; }

 private:
  std::atomic_flag& flag_;
  bool const is_;
};

constexpr int bulk_bytes = 197632;  // shared memory of move_parts_in_bulk, for 8 warps

struct Unload {
  Driver const* driver;
  void operator()(void* module) const noexcept { driver->cuModuleUnload(module); }
};
using Module = std::unique_ptr<void, Unload>;

Module load(Driver const& driver, char const* ptx, char const* name, Kernel& kernel) {
  void* module = nullptr;
  driver.check(driver.cuModuleLoadData, &module, ptx);
  Module loaded(module, {&driver});
  driver.check(driver.cuModuleGetFunction, &kernel.function, module, name);
  return loaded;
}

/// GPUs of compute capability 9.0, the first with bulk copies, are also the first with so much shared memory.
bool has_bulk_copies(Driver const& driver) {
  int device = 0, shared_bytes = 0;
  driver.check(driver.cuCtxGetDevice, &device);
  driver.check(driver.cuDeviceGetAttribute, &shared_bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, device);
  return shared_bytes >= bulk_bytes;
}

Module load_best(Driver const& driver, bool aligned, Kernel& kernel) {
  if (!aligned || !has_bulk_copies(driver)) {
    kernel = {nullptr, 1024, 0};
    return load(driver, move_parts_ptx_70, "move_parts", kernel);
  }
  kernel = {nullptr, 256, bulk_bytes};
  Module module = load(driver, move_parts_ptx_90, "move_parts_in_bulk", kernel);
  driver.check(driver.cuFuncSetAttribute, kernel.function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bulk_bytes);
  return module;
}

Kernel kernel_of(Driver const& driver, Where context, bool aligned) {
  static std::mutex& mutex = *new std::mutex;
  static auto& kernels = *new std::map<std::pair<Where, bool>, Kernel>;
  {
    std::lock_guard const guard(mutex);
    if (auto const found = kernels.find({context, aligned}); found != kernels.end()) return found->second;
  }
  Current const current(driver, context);
  Kernel kernel{};
  Module module = load_best(driver, aligned, kernel);
  std::lock_guard const guard(mutex);
  auto const [place, is_new] = kernels.try_emplace({context, aligned}, kernel);
  if (is_new) static_cast<void>(module.release());  // else another thread was first
  return place->second;
}

}  // namespace

void Queue::move_parts(Address parts, std::uint64_t count, std::uint64_t bytes, bool aligned) {
  Kernel const kernel = kernel_of(driver_, where(), aligned);
  std::uint64_t const warps = kernel.threads / 32, needed = (count + warps - 1) / warps;
  auto const blocks = static_cast<unsigned>(std::min<std::uint64_t>(needed, kernel.multiprocessors(bytes / count)));
  void* arguments[] = {&parts, &count};
  Alone const timing(timing_);
  bool const timed = timing && !kernel_ended_ && capture() == 0;
  auto const begin = std::chrono::steady_clock::now();
  std::unique_ptr<VendorEvent> began = timed ? event_or_none() : nullptr;
  {
    Current const current(driver_, where());
    submit(driver_.cuLaunchKernel, kernel.function, blocks, 1, 1, kernel.threads, 1, 1, kernel.shared_bytes, stream(),
           arguments, nullptr);
  }
  if (began == nullptr) return;
  kernel_began_ = std::move(began);
  kernel_ended_ = event_or_none();
  std::chrono::duration<double> const submitting = std::chrono::steady_clock::now() - begin;
  kernel_takes_ = submitting.count() + static_cast<double>(bytes) / kernel_rate;
}

/// For a measurement only, so failures are ignored.
std::unique_ptr<VendorEvent> Queue::event_or_none() noexcept {
  try {
    return record();
  } catch (...) {
    return nullptr;
  }
}

bool Queue::kernel_is_late(std::uint64_t count) {
  if (Alone const timing(timing_); timing && kernel_ended_ && kernel_ended_->done()) {
    kernel_waited_ = kernel_ended_->seconds_since(*kernel_began_) - kernel_takes_;
    kernel_ended_.reset();
    batches_since_ = 0;
  }
  double const by_engines = std::max(engine_seconds * static_cast<double>(count), late_from);
  return batches_since_ < try_again_after && kernel_waited_ > by_engines && capture() == 0;  // else a graph keeps it
}

void Queue::copy_batch(CopyItem const* parts, std::uint64_t count) {
  ++batches_since_;
  bool const has_call = driver_.cuMemcpyBatchAsync_v2 || driver_.cuMemcpyBatchAsync_v1;
  // The call refuses the default streams and streams under capture.
  if (count < 2 || !has_call || handle() <= last_default || capture() != 0) return VendorQueue::copy_batch(parts, count);
  CopyAttributes attributes{};
  attributes.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
  copy_by_batch_call<unsigned long long>(*this, parts, count, [&](auto* dsts, auto* srcs, auto* sizes, auto now) {
    std::size_t first = 0, failed = 0;  // the first copy with the attributes; the refused copy
    if (driver_.cuMemcpyBatchAsync_v2) {
      return result(driver_.cuMemcpyBatchAsync_v2, dsts, srcs, sizes, now, &attributes, &first, 1, stream());
    }
    return result(driver_.cuMemcpyBatchAsync_v1, dsts, srcs, sizes, now, &attributes, &first, 1, &failed, stream());
  });
}

}  // namespace pinning::cuda
