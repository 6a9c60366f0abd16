// SPDX-License-Identifier: Apache-2.0
// The one map of each device in a process, which lives in libpinning.so and is made on demand.
#pragma once

#include <memory>
#include <new>
#include <string>

#include "mapped_locks.hpp"
#include "vendor.hpp"

/// What C calls a map: one with all that belongs to it.
struct pinning_map {
  /// `shared_by`: the device whose map it is in this process. It is never destroyed then, so a thread may call its locker
  /// when memory leaves.
  pinning_map(pinning::Locker& calls, std::uint64_t largest_lock, pinning::VendorDevice* shared_by)
      : locker(calls), largest(largest_lock), device(shared_by) {
    auto fresh = std::make_unique<pinning::PinnedMap>(locker, &pinning::process_watcher(), device != nullptr,
                                                      &pinning::process_budget());
    mapped = new pinning::MappedLocks(*fresh);
    map = fresh.release();
  }
  pinning_map(pinning_map const&) = delete;
  ~pinning_map() {
    delete mapped;
    delete map;
  }

  /// In a child of fork: empty, at the same address, for the locks are the parent's. A fork cannot fail any more then, so
  /// where there is no memory for that both are null, and every lock is refused.
  void begin_anew() noexcept {
    if (map == nullptr) return;
    map->abandon();
    try {
      new (map) pinning::PinnedMap(locker, &pinning::process_watcher(), device != nullptr, &pinning::process_budget());
      new (mapped) pinning::MappedLocks(*map);
    } catch (std::bad_alloc const&) {
      map = nullptr;
      mapped = nullptr;
    }
  }

  /// Bytes that one vendor call is to take of `size`; 0 for all.
  std::uint64_t piece(std::uint64_t size) const noexcept { return size > largest ? largest : 0; }

  pinning::Locker& locker;
  std::uint64_t const largest;  // bytes that one vendor call can take
  pinning::VendorDevice* const device;  // null for a private map
  pinning::PinnedMap* map = nullptr;
  pinning::MappedLocks* mapped = nullptr;
};

namespace pinning {

/// The map of this device that the whole process shares.
PINNING_API pinning_map& shared_map(VendorDevice& device);

}  // namespace pinning
