// SPDX-License-Identifier: Apache-2.0
// What memory is at an address: the device's, locked memory of the host, or pageable memory.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "pinned_map.hpp"
#include "vendor.hpp"

namespace pinning {

/// Whose memory an address is, and the range around it for which the same holds.
struct MemoryRange {
  enum class Kind : std::uint8_t { device, locked, pageable };

  Address start, end;
  Kind kind;
  Address device_ptr = 0;  // of `start`, where a device reaches it
  std::uint64_t piece = 0;  // bytes that one registration spans, from `start`; a single copy crosses no border of these

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

/// The ranges that a copy has met. Each locked region is held from then on, so that no unlock takes it away under the
/// copy.
class MemoryRanges {
 public:
  /// `map` is one of `device`.
  MemoryRanges(PinnedMap& map, VendorDevice& device) : map_(map), device_(device) {}
  MemoryRanges(MemoryRanges const&) = delete;
  /// Gives up what it holds. A destructor reports no vendor that refuses; its region stays, for `unlock` to try.
  ~MemoryRanges();

  /// The range of `ptr`, of which no byte from `limit` on matters. The vendor is asked once for each range that the map
  /// does not know. Throws what the vendor throws.
  MemoryRange of(Address ptr, Address limit);

  /// The same of memory that is known to be the host's. Of less than `ask_from` bytes that the map does not know the vendor
  /// is not asked whether others have pinned them.
  MemoryRange of_host(Address ptr, Address limit, std::uint64_t ask_from);

 private:
  /// The end of memory that is not locked, and whether a region that grows will have it.
  struct Gap {
    Address end;
    bool in_region;
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
