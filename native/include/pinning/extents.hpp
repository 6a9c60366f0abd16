// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>
#include <vector>

namespace pinning {

/// Stretches of memory cut into extents, each free or somebody's: exact sizes, best fit, neighbours that are free are
/// one. To take and to give back takes O(log n) steps, unless an alignment beyond that of the free ones is asked for
/// and few are large enough. An extent lies in one stretch. One thread at a time.
class Extents {
 public:
  using Address = std::uint64_t;
  struct Extent;

  struct Smaller {
    using is_transparent = void;
    bool operator()(Extent const* one, Extent const* other) const noexcept {
      return one->size != other->size ? one->size < other->size : one->start < other->start;
    }
    bool operator()(Extent const* one, std::uint64_t size) const noexcept { return one->size < size; }
  };
  using Free = std::set<Extent*, Smaller>;

  /// Those of one stretch are a chain without gaps.
  struct Extent {
    Address start;
    std::uint64_t size;
    Address origin;  // the first byte of the stretch
    bool free = true;
    Extent* previous = nullptr;
    Extent* next = nullptr;
    Free::node_type place = {};  // in the list of free ones, while it is not there: so to give back never fails
  };

  Extents() = default;
  Extents(Extents const&) = delete;
  Extents& operator=(Extents const&) = delete;
  ~Extents() {
    for (Extent* extent : stretches_) {
      while (extent != nullptr) delete std::exchange(extent, extent->next);
    }
  }

  /// Takes in one more stretch, all of it free.
  void add(Address start, std::uint64_t size) {
    stretches_.reserve(stretches_.size() + 1);
    Extent* const whole = make(start, size, start).release();
    stretches_.push_back(whole);
    list(whole);
  }

  /// `size` bytes, the first of them at a multiple of `step`, counted from 0 or from the first byte of the stretch, out of
  /// the smallest extent that has them. Null where there are none. They are the caller's.
  Extent* take(std::uint64_t size, std::uint64_t step, bool in_stretch) {
    for (auto each = free_.lower_bound(size); each != free_.end(); ++each) {
      Extent* const extent = *each;
      Address const place = extent->start - (in_stretch ? extent->origin : 0);
      Address const start = extent->start + (step - place % step) % step;
      if (start - extent->start <= extent->size - size) return cut(extent, start, size);
    }
    return nullptr;
  }

  /// Makes an extent free, and one with its neighbours that are.
  void give_back(Extent* extent) noexcept {
    extent->free = true;
    if (Extent* const following = extent->next; following != nullptr && following->free) {
      unlist(following);
      absorb(extent, following);
    }
    if (Extent* const before = extent->previous; before != nullptr && before->free) {
      unlist(before);
      absorb(before, extent);
      extent = before;
    }
    list(extent);
  }

  /// Bytes of the largest free one.
  std::uint64_t largest() const noexcept { return free_.empty() ? 0 : (*free_.rbegin())->size; }

 private:
  static std::unique_ptr<Extent> make(Address start, std::uint64_t size, Address origin) {
    auto extent = std::make_unique<Extent>(Extent{start, size, origin});
    Free one;
    one.insert(extent.get());
    extent->place = one.extract(one.begin());
    return extent;
  }

  Extent* cut(Extent* extent, Address start, std::uint64_t size) {
    std::uint64_t const before = start - extent->start;
    std::uint64_t const behind = extent->size - before - size;
    // What can fail comes first.
    std::unique_ptr<Extent> rest = behind > 0 ? make(start + size, behind, extent->origin) : nullptr;
    std::unique_ptr<Extent> taken = before > 0 ? make(start, size, extent->origin) : nullptr;
    unlist(extent);
    if (taken) {
      extent->size = before;
      follow(extent, taken.get());
      list(extent);
      extent = taken.release();
    }
    extent->size = size;
    extent->free = false;
    if (rest) {
      follow(extent, rest.get());
      list(rest.release());
    }
    return extent;
  }

  static void follow(Extent* extent, Extent* following) noexcept {
    following->previous = extent;
    following->next = extent->next;
    if (following->next != nullptr) following->next->previous = following;
    extent->next = following;
  }

  /// Has an extent take in the one that follows it, neither of them in the list.
  static void absorb(Extent* extent, Extent* following) noexcept {
    extent->size += following->size;
    extent->next = following->next;
    if (extent->next != nullptr) extent->next->previous = extent;
    delete following;
  }

  void list(Extent* extent) noexcept { free_.insert(std::move(extent->place)); }
  void unlist(Extent* extent) noexcept { extent->place = free_.extract(extent); }

  Free free_;
  std::vector<Extent*> stretches_;  // the first extent of each
};

}  // namespace pinning
