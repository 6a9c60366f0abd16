// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "errors.hpp"

namespace pinning {

/// Where regions start, approximately: read without a lock, before memory is freed.
class RegionStarts {
 public:
  void add(Address start) noexcept { ++count_of(start >> granule_bits); }
  void remove(Address start) noexcept { --count_of(start >> granule_bits); }

  /// Whether a region may start in [ptr, ptr + size); if false, none does.
  bool any(Address ptr, std::uint64_t size) const noexcept {
    Address const first = ptr >> granule_bits, last = (ptr + (size - 1)) >> granule_bits;
    if (last - first >= counts) return true;
    for (Address granule = first; granule <= last; ++granule) {
      if (counts_[index(granule)].load(std::memory_order_relaxed) != 0) return true;
    }
    return false;
  }

 private:
  static constexpr unsigned granule_bits = 16, bits = 10;
  static constexpr std::size_t counts = std::size_t{1} << bits;

  static std::size_t index(Address granule) noexcept { return granule * 0x9e37'79b9'7f4a'7c15 >> (64 - bits); }
  std::atomic<std::uint32_t>& count_of(Address granule) noexcept { return counts_[index(granule)]; }

  std::array<std::atomic<std::uint32_t>, counts> counts_{};
};

}  // namespace pinning
