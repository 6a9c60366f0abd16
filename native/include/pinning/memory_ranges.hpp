// SPDX-License-Identifier: Apache-2.0
// The kind of memory at an address: device memory, locked host memory or pageable host memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "pinned_map.hpp"
#include "vendor.hpp"

namespace pinning {

/// A range around an address in which all memory is of one kind.
struct MemoryRange {
  enum class Kind : std::uint8_t { device, locked, pageable };

  Address start, end;
  Kind kind;
  Address device_ptr = 0;  // of `start`, if a device can access it
  std::uint64_t piece = 0;  // bytes per registration, from `start`; a single copy must not cross a border between two

  bool holds(Address ptr) const noexcept { return start <= ptr && ptr < end; }
  bool holds(Address ptr, std::uint64_t size) const noexcept {
    return start <= ptr && ptr < end && size <= end - ptr;
  }
  Address device_ptr_of(Address ptr) const noexcept { return device_ptr + (ptr - start); }
  /// Bytes from `ptr` to the end of the range, or of the registration.
  std::uint64_t bytes_from(Address ptr) const noexcept {
    return piece == 0 ? end - ptr : std::min(end - ptr, piece - (ptr - start) % piece);
  }
};

/// The ranges that a copy has looked up. Each locked region among them is held from then on, so that it stays locked
/// during the copy.
class MemoryRanges {
 public:
  /// `map` is one of `device`.
  MemoryRanges(PinnedMap& map, VendorDevice& device) : map_(map), device_(device) {}
  MemoryRanges(MemoryRanges const&) = delete;
  /// Release the holds. A destructor cannot report a vendor's refusal: the region then stays, and `unlock` can try.
  PINNING_API ~MemoryRanges();

  /// The range around `ptr`; bytes from `limit` on do not matter. The vendor is queried once for each range that the
  /// map does not know. Throws what the vendor throws.
  MemoryRange of(Address ptr, Address limit);

  /// The same for memory that is known to be the host's. If the map does not know the memory, the vendor is asked only
  /// from `ask_from` bytes on whether others have pinned it.
  MemoryRange of_host(Address ptr, Address limit, std::uint64_t ask_from);

 private:
  /// The end of memory that is not locked, and whether it belongs to a growing region.
  struct Gap {
    Address end;
    bool in_region = false;
  };

  std::optional<MemoryRange> locked(Address ptr);
  std::optional<MemoryRange> pinned(Address ptr);
  Gap gap(Address ptr, Address limit);
  std::optional<Hold> hold(Region const& region, Address ptr);
  template <class Take>
  std::optional<Hold> keep(Take&& take);
  std::optional<Hold> track(Address ptr, std::uint64_t size);

  PinnedMap& map_;
  VendorDevice& device_;
  std::vector<MemoryRange> ranges_;  // ascending, none overlaps another
  std::vector<Hold> holds_;
};

}  // namespace pinning
