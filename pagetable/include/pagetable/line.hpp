// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "region.hpp"

namespace pagetable {

/// The two to seven regions that overlap one cell, in one cache line: each region's offset in the cell, ascending, and
/// its id. An address can only belong to the last region that begins at or before it; that region's record has its end.
///
/// A published line never changes: the writer makes a new one and stores that in the cell. It may reuse an old line
/// while a reader is still in it, so `version` is odd while a line is being written, and increases with each write.
class alignas(64) Line {
 public:
  static constexpr std::size_t capacity = 7;

  /// A line's content, for the writer.
  struct Entries {
    std::array<std::uint32_t, capacity> offsets;
    std::array<Id, capacity> ids;
    std::size_t count = 0;

    bool full() const noexcept { return count == capacity; }
    void insert(std::uint32_t offset, Id id) noexcept {
      std::size_t i = count++;
      for (; i > 0 && offsets[i - 1] > offset; --i) {
        offsets[i] = offsets[i - 1];
        ids[i] = ids[i - 1];
      }
      offsets[i] = offset;
      ids[i] = id;
    }
    /// Removes `id`; false if it is not there.
    bool erase(Id id) noexcept {
      std::size_t i = 0;
      while (i < count && ids[i] != id) ++i;
      if (i == count) return false;
      for (--count; i < count; ++i) {
        offsets[i] = offsets[i + 1];
        ids[i] = ids[i + 1];
      }
      return true;
    }
  };

  // ---- readers ----

  std::uint64_t version() const noexcept { return version_.load(std::memory_order_acquire); }

  /// The only region that can hold the byte `offset` of the cell; the caller checks its bounds. (An offset below the
  /// first region also gives the first one, which that check rejects, so its start is not compared here.)
  Id candidate(std::uint32_t offset) const noexcept {
    std::size_t count = 0;
#pragma GCC unroll 7
    for (std::size_t i = 1; i < capacity; ++i) count += offsets_[i].load(std::memory_order_acquire) <= offset;
    return ids_[count].load(std::memory_order_acquire);
  }

  // ---- the writer ----

  Entries entries() const noexcept {
    Entries entries;
    std::size_t& i = entries.count;
    for (; i < capacity && offsets_[i].load(std::memory_order_relaxed) != unused; ++i) {
      entries.offsets[i] = offsets_[i].load(std::memory_order_relaxed);
      entries.ids[i] = ids_[i].load(std::memory_order_relaxed);
    }
    return entries;
  }
  void write(Entries const& entries) noexcept {
    std::uint64_t const version = version_.load(std::memory_order_relaxed);
    version_.store(version + 1, std::memory_order_relaxed);
    // Each release orders the odd version before its store, for a reader that acquires the stored value.
    for (std::size_t i = 0; i < capacity; ++i) {
      bool const used = i < entries.count;
      offsets_[i].store(used ? entries.offsets[i] : unused, std::memory_order_release);
      if (used) ids_[i].store(entries.ids[i], std::memory_order_release);
    }
    version_.store(version + 2, std::memory_order_release);
  }

 private:
  static constexpr std::uint32_t unused = ~std::uint32_t{0};  // beyond every cell

  std::array<std::atomic<std::uint32_t>, capacity> offsets_ = {};
  std::array<std::atomic<Id>, capacity> ids_ = {};
  std::atomic<std::uint64_t> version_ = 0;
};
static_assert(sizeof(Line) == 64);

}  // namespace pagetable
