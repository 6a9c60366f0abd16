// SPDX-License-Identifier: Apache-2.0
// The one map of each device in a process, which lives in libpinning.so: whoever comes first makes it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "mapped_locks.hpp"
#include "vendor.hpp"

/// What C calls a map: one with all that belongs to it.
struct pinning_map {
  pinning_map(pinning::Locker& calls, std::uint64_t largest_lock) : locker(calls), largest(largest_lock) { begin(); }
  pinning_map(pinning_map const&) = delete;
  ~pinning_map() {
    delete mapped;
    delete map;
  }

  /// An empty map. The one before, if any, is abandoned: after fork its locks are the parent's. Its memory goes one fork
  /// later, for Python takes the new map over a moment after this.
  void begin() {
    auto fresh = std::make_unique<pinning::PinnedMap>(locker);
    mapped = new pinning::MappedLocks(*fresh);
    if (parents != nullptr) parents->abandon();
    parents = std::exchange(map, fresh.release());
  }

  /// Bytes that one vendor call is to take of `size`; 0 for all.
  std::uint64_t piece(std::uint64_t size) const noexcept { return size > largest ? largest : 0; }

  pinning::Locker& locker;
  std::uint64_t const largest;  // bytes that one vendor call can take
  pinning::PinnedMap* map = nullptr;
  pinning::MappedLocks* mapped = nullptr;
  pinning::PinnedMap* parents = nullptr;
};

namespace pinning {

/// The map of this device that the whole process shares.
PINNING_API pinning_map& shared_map(VendorDevice& device);

}  // namespace pinning
