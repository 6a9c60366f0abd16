// SPDX-License-Identifier: Apache-2.0
// The process-wide map of each registration domain, which lives in libpinning.so and is made on demand.
#pragma once

#include <memory>
#include <new>

#include "mapped_locks.hpp"
#include "vendor.hpp"

/// The map of the C interface: a PinnedMap, its MappedLocks, and the locker for locks that are made through this.
struct pinning_map {
  /// `shared_by`: the device whose process-wide map this is; null for a private map. A process-wide map is never
  /// destroyed, so a thread of the watcher may call its locker when memory is invalidated.
  pinning_map(pinning::Locker& calls, std::uint64_t largest_lock, pinning::VendorDevice* shared_by)
      : locker(calls), largest(largest_lock), device(shared_by) {
    auto fresh = std::make_unique<pinning::PinnedMap>(locker, &pinning::process_watcher(), device != nullptr,
                                                      &pinning::process_budget());
    mapped = new pinning::MappedLocks(*fresh);
    map = fresh.release();
  }
  /// The map of another device of the same registration domain, for locks by this one.
  pinning_map(pinning::Locker& calls, pinning::VendorDevice& by, pinning_map& domain)
      : locker(calls), largest(by.largest_lock()), device(&by), owner(&domain), map(domain.map), mapped(domain.mapped) {}
  pinning_map(pinning_map const&) = delete;
  ~pinning_map() {
    if (owner != this) return;
    delete mapped;
    delete map;
  }

  /// In a forked child: construct an empty map at the same address, because the locks belong to the parent. The fork
  /// can no longer fail, so if there is no memory, `map` and `mapped` are null and every lock is refused.
  void restart() noexcept {
    if (owner != this) {  // which has restarted
      map = owner->map;
      mapped = owner->mapped;
      return;
    }
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

  /// Throws std::bad_alloc if there was no memory for it in this forked child.
  pinning::PinnedMap& made() const {
    if (map == nullptr) throw std::bad_alloc();
    return *map;
  }
  /// Bytes per vendor call for a lock of `size` bytes; 0: one call for all.
  std::uint64_t piece(std::uint64_t size) const noexcept { return size > largest ? largest : 0; }
  /// For locks through this.
  pinning::LockOptions options(pinning::LockOptions wanted = {}) noexcept {
    wanted.locker = &locker;
    return wanted;
  }

  pinning::Locker& locker;
  std::uint64_t const largest;  // bytes that one vendor call can take
  pinning::VendorDevice* const device;  // null for a private map
  pinning_map* const owner = this;      // of `map` and `mapped`
  pinning::PinnedMap* map = nullptr;
  pinning::MappedLocks* mapped = nullptr;
};

namespace pinning {

/// The map of this device that the whole process shares: one PinnedMap for all devices of its registration domain.
PINNING_API pinning_map& shared_map(VendorDevice& device);

}  // namespace pinning
