// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace pagetable {

using Address = std::uint64_t;
using Id = std::uint32_t;

/// The half-open byte range [start, start + size). `id` is small and unique in the table; it is reused after removal.
struct Region {
  Address start;
  std::uint64_t size;
  Id id;

  /// One past the last byte; 0 for a region that reaches the top of the address space.
  Address end() const noexcept { return start + size; }
  Address last() const noexcept { return start + (size - 1); }
  bool contains(Address address) const noexcept { return address - start < size; }
  /// Whether all `length` bytes from `address` lie inside.
  bool contains(Address address, std::uint64_t length) const noexcept {
    return address - start < size && length <= size - (address - start);
  }
  friend bool operator==(Region const&, Region const&) = default;
};

}  // namespace pagetable
