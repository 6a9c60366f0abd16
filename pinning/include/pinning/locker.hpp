// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include "errors.hpp"

namespace pinning {

/// A range that a vendor reports as pinned, and the device pointer of its base.
struct Pinned {
  Address base;
  std::uint64_t size;
  Address device_ptr;
};

/// What the caller knows of the mapping under a range.
enum class Access : std::uint8_t { unknown, writable, read_only };

/// One device's vendor calls. A map calls them from any thread, several at a time, and never under a lock of its own.
/// What they throw reaches the map's caller unchanged.
class Locker {
 public:
  virtual ~Locker() = default;

  /// Page-locks [ptr, ptr + size) and returns its device pointer. Throws AlreadyPinned when the vendor says so.
  virtual Address lock(Address ptr, std::uint64_t size, Access access) = 0;

  /// Undoes the `lock` of the range that starts at `ptr`. When it throws, the range is still locked.
  virtual void unlock(Address ptr) = 0;

  /// The pinned range around `ptr`, whoever pinned it.
  virtual std::optional<Pinned> is_pinned(Address ptr) = 0;
};

}  // namespace pinning
