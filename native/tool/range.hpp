// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace pinning::tool {

using Address = std::uintptr_t;

/// Bytes of the host: [start, end).
struct Range {
  Address start = 0, end = 0;

  std::size_t size() const noexcept { return end - start; }
  bool empty() const noexcept { return start >= end; }
  bool holds(Range const& other) const noexcept { return start <= other.start && other.end <= end; }
  bool meets(Range const& other) const noexcept { return start < other.end && other.start < end; }
  bool operator==(Range const&) const = default;
};

/// Both ranges and what lies between them.
inline Range around(Range const& a, Range const& b) noexcept {
  return {std::min(a.start, b.start), std::max(a.end, b.end)};
}

inline Range range_of(void const* ptr, std::size_t size) noexcept {
  auto const start = reinterpret_cast<Address>(ptr);
  return {start, size <= ~start ? start + size : ~Address{0}};
}

inline void* pointer(Address address) noexcept { return reinterpret_cast<void*>(address); }

}  // namespace pinning::tool
