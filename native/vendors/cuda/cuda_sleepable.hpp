// SPDX-License-Identifier: Apache-2.0
// Memory of a GPU that keeps its addresses while its bytes are given back to the driver.
#pragma once

#include <atomic>
#include <map>
#include <mutex>

#include "cuda_driver.hpp"

namespace pinning::cuda {

/// What a GPU has of it; its context must be current. If two threads change one range at once, the driver refuses one.
class SleepableMemory {
 public:
  SleepableMemory(Driver const& driver, int const& device) : driver_(driver), device_(device) {}

  /// Throws InvalidRange if memory of any GPU sleeps at this address. Unless something sleeps, it costs one load.
  static void refuse_asleep(Address ptr) {
    if (asleep_.load(std::memory_order_relaxed) == 0) return;
    std::lock_guard const guard(mutex_);
    auto const found = around(ptr);
    if (found == ranges_.end() || found->second.awake) return;
    throw InvalidRange(describe(found->first, found->second.size) + " is asleep, so it has no bytes: wake it first");
  }

  Address allocate(std::uint64_t size) {
    auto const asked = properties();
    std::size_t page = 0;
    driver_.check(driver_.cuMemGetAllocationGranularity, &page, &asked, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
    std::uint64_t const rounded = (size + page - 1) / page * page;
    if (size == 0 || rounded < size) throw InvalidRange(std::to_string(size) + " bytes cannot be allocated: give at least 1");
    unsigned long long ptr = 0;
    driver_.check(driver_.cuMemAddressReserve, &ptr, rounded, 0, 0, 0);
    try {
      enter(ptr, {rounded, device_, false});
      set_awake(ptr, true);
    } catch (...) {
      leave(ptr);
      driver_.cuMemAddressFree(ptr, rounded);
      throw;
    }
    return ptr;
  }

  /// After an error its addresses are still reserved.
  void free(Address ptr) {
    set_awake(ptr, false);
    Range const range = at(ptr).second;
    leave(ptr);  // first: afterwards another thread may get the same addresses
    int const code = driver_.cuMemAddressFree(ptr, range.size);
    if (code != 0) enter(ptr, range);
    driver_.check_code(driver_.cuMemAddressFree, code);
  }

  /// `ptr` may be any address in it.
  void set_awake(Address ptr, bool awake) {
    auto const [start, range] = at(ptr);
    if (awake == range.awake) return;
    if (awake) {
      map(start, range.size);
    } else {
      driver_.check(driver_.cuMemUnmap, start, range.size);
    }
    enter(start, {range.size, device_, awake});
  }

  /// Whether it begins at this address.
  bool has(Address ptr) const {
    std::lock_guard const guard(mutex_);
    return ranges_.contains(ptr);
  }

 private:
  struct Range {
    std::uint64_t size;
    int device;
    bool awake;
  };
  using Ranges = std::map<Address, Range>;

  static void enter(Address ptr, Range range) {
    std::lock_guard const guard(mutex_);
    auto const [entry, is_new] = ranges_.try_emplace(ptr, range);
    asleep_ += !range.awake - (!is_new && !entry->second.awake);
    entry->second = range;
  }

  static void leave(Address ptr) {
    std::lock_guard const guard(mutex_);
    auto const found = ranges_.find(ptr);
    if (found == ranges_.end()) return;
    asleep_ -= !found->second.awake;
    ranges_.erase(found);
  }

  static Ranges::const_iterator around(Address ptr) {
    auto const after = ranges_.upper_bound(ptr);
    if (after == ranges_.begin()) return ranges_.end();
    auto const found = std::prev(after);
    return ptr - found->first < found->second.size ? found : ranges_.end();
  }

  Ranges::value_type at(Address ptr) const {
    std::lock_guard const guard(mutex_);
    if (auto const found = around(ptr); found != ranges_.end() && found->second.device == device_) return *found;
    throw InvalidRange("there is no sleepable memory at " + describe(ptr) + ": allocate it as sleepable");
  }

  AllocationProperties properties() const {
    int rdma = 0;
    driver_.check(driver_.cuDeviceGetAttribute, &rdma, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED, device_);
    AllocationProperties asked{.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = {CU_MEM_LOCATION_TYPE_DEVICE, device_}};
    asked.gpuDirectRDMACapable = rdma != 0;
    return asked;
  }

  /// For the GPU itself, and for those that this process uses and that can reach it: what makes other memory of a GPU
  /// accessible to another, cuCtxEnablePeerAccess, does not include this.
  std::vector<AccessDescription> access() const {
    std::vector<AccessDescription> all;
    for (int other = 0; other < static_cast<int>(driver_.device_count()); ++other) {
      unsigned flags = 0;
      int active = 0, reaches = other == device_;
      if (other != device_) driver_.check(driver_.cuDevicePrimaryCtxGetState, other, &flags, &active);
      if (active != 0) driver_.check(driver_.cuDeviceCanAccessPeer, &reaches, other, device_);
      if (reaches != 0) all.push_back({{CU_MEM_LOCATION_TYPE_DEVICE, other}, CU_MEM_ACCESS_FLAGS_PROT_READWRITE});
    }
    return all;
  }

  /// The handle is released at once: the mapping alone keeps the memory, so that one call gives it back.
  void map(Address ptr, std::uint64_t size) const {
    auto const asked = properties();
    auto const users = access();
    unsigned long long handle = 0;
    driver_.check(driver_.cuMemCreate, &handle, size, &asked, 0);
    int const mapped = driver_.cuMemMap(ptr, size, 0, handle, 0);
    try {
      driver_.check_code(driver_.cuMemMap, mapped);
      driver_.check(driver_.cuMemSetAccess, ptr, size, users.data(), users.size());
      driver_.check(driver_.cuMemRelease, handle);
    } catch (...) {
      if (mapped == 0) driver_.cuMemUnmap(ptr, size);
      driver_.cuMemRelease(handle);
      throw;
    }
  }

  Driver const& driver_;
  int const& device_;
  // Of all GPUs. Never destroyed, because torch frees its pools at exit.
  static inline Ranges& ranges_ = *new Ranges;
  static inline std::mutex mutex_;  // of `ranges_`; not held in calls of the driver
  static inline std::atomic<int> asleep_ = 0;
};

}  // namespace pinning::cuda
