// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "free_list.hpp"

namespace pinning {

/// Stretches of memory cut into extents, each free or in use: exact sizes, best fit, free neighbours are merged. `take`
/// and `give_back` are O(log n), unless the alignment exceeds that of the free extents and few are large enough. An
/// extent lies in one stretch. Not thread-safe.
class Extents {
 public:
  using Address = std::uint64_t;
  /// The extents of one stretch form a chain without gaps.
  struct Extent {
    Address start;
    std::uint64_t size;
    Address origin;  // the first byte of the stretch
    bool free = true;
    Extent* previous = nullptr;
    Extent* next = nullptr;
    FreeList<Extent>::Node node = {};
  };

  Extents() = default;
  Extents(Extents const&) = delete;
  Extents& operator=(Extents const&) = delete;
  ~Extents() {
    for (Extent* first : stretches_) List::destroy(first);
  }

  /// Add a stretch, all of it free.
  void add(Address start, std::uint64_t size) {
    stretches_.reserve(stretches_.size() + 1);
    Extent* const whole = List::make({start, size, start}).release();
    stretches_.push_back(whole);
    free_.insert(whole);
  }

  /// Take `size` bytes from the smallest extent that has room for them, at a multiple of `step`, counted from 0 or, if
  /// `in_stretch`, from the first byte of the stretch. Null if there are none. The caller has them until `give_back`.
  Extent* take(std::uint64_t size, std::uint64_t step, bool in_stretch) {
    for (auto fit = free_.best_fit(size); fit != free_.end(); ++fit) {
      Extent* const extent = *fit;
      Address const place = extent->start - (in_stretch ? extent->origin : 0);
      Address const start = extent->start + (step - place % step) % step;
      if (start - extent->start <= extent->size - size) return cut(extent, start, size);
    }
    return nullptr;
  }

  /// Free an extent, and merge it with its free neighbours.
  void give_back(Extent* extent) noexcept {
    extent->free = true;
    if (Extent* const following = extent->next; following != nullptr && following->free) {
      free_.extract(following);
      List::absorb_next(extent);
    }
    if (Extent* const before = extent->previous; before != nullptr && before->free) {
      free_.extract(before);
      List::absorb_next(before);
      extent = before;
    }
    free_.insert(extent);
  }

  /// Bytes of the largest free extent.
  std::uint64_t largest() const noexcept { return free_.largest(); }

 private:
  using List = FreeList<Extent>;

  Extent* cut(Extent* extent, Address start, std::uint64_t size) {
    std::uint64_t const before = start - extent->start;
    std::uint64_t const behind = extent->size - before - size;
    // What can fail comes first.
    std::unique_ptr<Extent> rest = behind > 0 ? List::make({start + size, behind, extent->origin}) : nullptr;
    std::unique_ptr<Extent> taken = before > 0 ? List::make({start, size, extent->origin}) : nullptr;
    free_.extract(extent);
    if (taken) {
      extent->size = before;
      List::link(extent, taken.get());
      free_.insert(extent);
      extent = taken.release();
    }
    extent->size = size;
    extent->free = false;
    if (rest) {
      List::link(extent, rest.get());
      free_.insert(rest.release());
    }
    return extent;
  }

  List free_;
  std::vector<Extent*> stretches_;  // the first extent of each
};

}  // namespace pinning
