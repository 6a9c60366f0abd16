// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "region.hpp"

#if defined(__SANITIZE_THREAD__)  // gcc
#define PAGETABLE_THREAD_SANITIZER
#elif defined(__has_feature)  // clang
#if __has_feature(thread_sanitizer)
#define PAGETABLE_THREAD_SANITIZER
#endif
#endif

namespace pagetable {

/// A cell, an aligned address range whose size is a power of two, as one word that says which regions overlap it:
///
///   empty    none
///   region   exactly one; its record has the bounds
///   whole    one, which is exactly this cell: nothing more to look up
///   line     two to seven; a `Line` lists them
///   split    more; they are found in the cells of a node one level down
///
/// The top bits encode the kind, because a search tests first for "split" (the sign) and then for "whole". Place 0 of
/// the pool is the root, so no line's word is 0.
class Cell {
 public:
  static constexpr Id ids = Id{1} << 29;
  static constexpr std::uint32_t places = std::uint32_t{1} << 30;

  constexpr Cell() = default;
  constexpr explicit Cell(std::uint32_t word) : word_(word) {}
  static constexpr Cell region(Id id) { return Cell(0x4000'0000 | id); }
  static constexpr Cell whole(Id id) { return Cell(0x6000'0000 | id); }
  static constexpr Cell split(std::uint32_t place) { return Cell(0x8000'0000 | place); }
  static constexpr Cell line(std::uint32_t place) { return Cell(place); }

  constexpr bool is_empty() const { return word_ == 0; }
  constexpr bool is_split() const { return static_cast<std::int32_t>(word_) < 0; }
  constexpr bool is_whole() const { return static_cast<std::int32_t>(word_) >= 0x6000'0000; }
  constexpr bool is_region() const { return static_cast<std::int32_t>(word_) >= 0x4000'0000; }  // `whole` included
  constexpr bool is_line() const { return word_ != 0 && word_ < 0x4000'0000; }
  constexpr Id id() const { return word_ & (ids - 1); }
  constexpr std::uint32_t place() const { return word_ & (places - 1); }
  constexpr std::uint32_t word() const { return word_; }
  friend constexpr bool operator==(Cell, Cell) = default;

 private:
  std::uint32_t word_ = 0;
};

/// Cells in memory. Readers use `load`; the single writer may also read without atomics.
using CellWord = std::uint32_t;

inline Cell load(CellWord const* cell) noexcept {
  return Cell(std::atomic_ref<CellWord>(const_cast<CellWord&>(*cell)).load(std::memory_order_acquire));
}
inline void store(CellWord* cell, Cell value) noexcept {
  std::atomic_ref<CellWord>(*cell).store(value.word(), std::memory_order_release);
}

/// Stores one word in the cells [first, last], in no particular order: a reader sees the old or the new value of each.
inline void store_run(CellWord* cells, std::size_t first, std::size_t last, Cell value) noexcept {
#if defined(__SSE2__) && !defined(PAGETABLE_THREAD_SANITIZER)
  // Four cells per store: an aligned 16-byte store never tears within a word, and on x86 every store is a release.
  // Volatile, because a compiler may turn the loop into a memset, which guarantees neither.
  for (; first <= last && first % 4 != 0; ++first) store(cells + first, value);
  __m128i const four = _mm_set1_epi32(static_cast<int>(value.word()));
  for (; first + 3 <= last; first += 4) *reinterpret_cast<__m128i volatile*>(cells + first) = four;
  std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  for (; first <= last; ++first) store(cells + first, value);
}

/// Index of the first cell in [first, last] that is not empty, or last + 1. For the writer only.
inline std::size_t skip_empty(CellWord const* cells, std::size_t first, std::size_t last) noexcept {
  for (; first + 15 <= last; first += 16) {
    CellWord any = 0;
    for (std::size_t i = 0; i < 16; ++i) any |= cells[first + i];
    if (any != 0) break;
  }
  while (first <= last && cells[first] == 0) ++first;
  return first;
}

}  // namespace pagetable
