// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include "free_list.hpp"

namespace pinning {

/// The position of an operation in a timeline: the operation is complete once the timeline has reached it. `Timeline`
/// is copyable and comparable, and has reached(), ordered() and key(), which identifies it.
template <class Timeline>
struct TimelinePoint {
  Timeline timeline;
  std::uint64_t position;
  bool reached() const noexcept { return timeline.reached() >= position; }
  bool operator==(TimelinePoint const&) const = default;
};

/// The points after which the next use of a block must be ordered: the frees.
template <class Timeline>
using After = std::vector<TimelinePoint<Timeline>>;

/// Whether all of these points are reached.
template <class Timeline>
bool reached(After<Timeline> const& after) noexcept {
  return std::all_of(after.begin(), after.end(), [](auto const& point) { return point.reached(); });
}

/// Drop points that are reached.
template <class Timeline>
void settle(After<Timeline>& after) noexcept {
  std::erase_if(after, [](auto const& point) { return point.reached(); });
}

/// Add one more point to `after`: of an ordered timeline, the last point is enough.
template <class Timeline>
void add(After<Timeline>& after, TimelinePoint<Timeline> const& more) {
  if (more.reached()) return;
  for (auto& point : after) {
    if (!(point.timeline == more.timeline)) continue;
    if (more.timeline.ordered()) point.position = std::max(point.position, more.position);
    if (point.position == more.position || more.timeline.ordered()) return;
  }
  after.push_back(more);
}

/// All that a new use is ordered after: of some timelines everything up to a position, of others single operations.
template <class Timeline>
class Before {
 public:
  using Key = void const*;

  /// Add every operation of this timeline up to a position.
  void add_upto(Key timeline, std::uint64_t position) {
    if (first_ == nullptr) first_ = timeline;  // usually the only one, which then needs no allocation
    std::uint64_t& upto = timeline == first_ ? upto_of_first_ : upto_[timeline];
    upto = std::max(upto, position);
  }
  void add(Key timeline, std::uint64_t position) { single_.insert({timeline, position}); }

  bool covers(TimelinePoint<Timeline> const& point) const noexcept {
    if (point.reached()) return true;
    if (point.timeline.key() == first_ && upto_of_first_ >= point.position) return true;
    if (auto const upto = upto_.find(point.timeline.key()); upto != upto_.end() && upto->second >= point.position) return true;
    return !point.timeline.ordered() && single_.contains({point.timeline.key(), point.position});
  }
  bool covers(After<Timeline> const& after) const noexcept {
    return std::all_of(after.begin(), after.end(), [&](auto const& point) { return covers(point); });
  }

 private:
  Key first_ = nullptr;
  std::uint64_t upto_of_first_ = 0;
  std::unordered_map<Key, std::uint64_t> upto_;
  std::set<std::pair<Key, std::uint64_t>> single_;
};

/// Add to `after` the points of `more` that `covered` does not cover.
template <class Timeline>
void add_uncovered(After<Timeline>& after, After<Timeline> const& more, Before<Timeline> const& covered) {
  for (auto const& point : more) {
    if (!covered.covers(point)) add(after, point);
  }
}

/// A pool's memory on one device, cut into blocks: when a free block may be reused, how blocks split and merge. Not
/// thread-safe.
template <class Timeline>
class Blocks {
 public:
  using Address = std::uint64_t;
  struct Segment;
  struct Block;

  /// A part of a segment. The blocks of one segment form a chain without gaps.
  struct Block {
    Segment* segment;
    Address start;
    std::uint64_t size;
    After<Timeline> after = {};  // the frees; for a block in use, those that its own free may not cover
    Block* previous = nullptr;
    Block* next = nullptr;
    bool free = false;
    typename FreeList<Block>::Node node = {};
  };

  /// Memory from one allocation by the vendor.
  struct Segment {
    Address base;
    Address device_base;  // the device's address of the same byte
    std::uint64_t length;
    Block* first = nullptr;
  };

  Blocks() = default;
  Blocks(Blocks const&) = delete;
  Blocks& operator=(Blocks const&) = delete;
  ~Blocks() {
    for (auto const& segment : segments_) List::destroy(segment->first);
  }

  /// Add a segment, as one block in use.
  Block* add(Address base, Address device_base, std::uint64_t length) {
    segments_.reserve(segments_.size() + 1);
    auto segment = std::make_unique<Segment>(Segment{base, device_base, length});
    segment->first = List::make({segment.get(), base, length}).release();
    segments_.push_back(std::move(segment));
    return segments_.back()->first;
  }

  /// Take a block of `size` bytes from free blocks that may be used after `before`: from the smallest that is large
  /// enough, or from several neighbours. Null if there is none. The caller has the block until `give_back`.
  Block* take(std::uint64_t size, Before<Timeline> const& before) {
    for (auto fit = free_.best_fit(size); fit != free_.end(); ++fit) {
      if (before.covers((*fit)->after)) return use(*fit, *fit, size);
    }
    for (auto const& segment : segments_) {
      Block* first = nullptr;  // of the usable neighbours seen so far
      std::uint64_t total = 0;
      for (Block* block = segment->first; block != nullptr; block = block->next) {
        if (!block->free || !before.covers(block->after)) {
          first = nullptr, total = 0;
          continue;
        }
        if (first == nullptr) first = block;
        total += block->size;
        if (total >= size) return use(first, block, size);
      }
    }
    return nullptr;
  }

  /// Free a block, for uses that are ordered after everything in its `after`.
  void give_back(Block* block) noexcept {
    block->free = true;
    free_.insert(block);
    merge(block);
  }

  /// Merge free neighbours again, now that more points may be reached.
  void settle() noexcept {
    for (auto const& segment : segments_) {
      for (Block* block = segment->first; block != nullptr; block = block->next) {
        if (block->free) block = merge(block);
      }
    }
  }

  /// Whether a use of some free block may still have to wait.
  bool waits() const noexcept {
    return std::any_of(free_.begin(), free_.end(), [](Block const* block) { return !reached(block->after); });
  }

  /// The largest segment that is free with all its points reached, after `settle` as one block; null if there is none.
  Segment const* idle() const noexcept {
    Segment const* found = nullptr;
    for (auto const& segment : segments_) {
      Block const* const first = segment->first;
      if (!first->free || first->next != nullptr || !reached(first->after)) continue;
      if (found == nullptr || segment->length > found->length) found = segment.get();
    }
    return found;
  }

  /// Mark an idle segment's only block as in use while the vendor frees the segment.
  Block* claim(Segment const* segment) noexcept {
    free_.extract(segment->first);
    segment->first->free = false;
    return segment->first;
  }

  /// Remove a segment that is one block in use, because the vendor has freed it.
  void remove(Block const* whole) noexcept {
    std::erase_if(segments_, [&](auto const& each) {
      if (each->first != whole) return false;
      delete whole;
      return true;
    });
  }

 private:
  using List = FreeList<Block>;

  /// Make the neighbours from `first` to `last` one block in use; the rest of the last one stays free.
  Block* use(Block* first, Block* last, std::uint64_t size) {
    std::uint64_t total = 0;
    for (Block* block = first;; block = block->next) {
      total += block->size;
      if (block == last) break;
    }
    // What can fail comes first.
    std::unique_ptr<Block> rest;
    if (total > size) {
      rest = List::make({last->segment, first->start + size, total - size});
      rest->after = last->after;
    }
    After<Timeline> after = first->after;
    for (Block* block = first; block != last;) {
      block = block->next;
      for (auto const& point : block->after) pinning::add(after, point);
    }
    for (Block* block = first;; block = block->next) {
      free_.extract(block);
      if (block == last) break;
    }
    for (Block* const end = last->next; first->next != end;) List::absorb_next(first);
    first->after.swap(after);
    first->size = size;
    first->free = false;
    if (rest) {
      List::link(first, rest.get());
      rest->free = true;
      free_.insert(rest.release());
    }
    return first;
  }

  /// Merge a free block with its free neighbours, unless a use of the result would wait for more. Returns the result.
  Block* merge(Block* block) noexcept {
    pinning::settle(block->after);
    if (block->previous != nullptr && joins(block->previous, block)) block = joined(block->previous, block);
    if (block->next != nullptr && joins(block, block->next)) block = joined(block, block->next);
    return block;
  }

  static bool joins(Block* block, Block* following) noexcept {
    if (!block->free || !following->free) return false;
    pinning::settle(block->after);
    pinning::settle(following->after);
    return std::is_permutation(block->after.begin(), block->after.end(), following->after.begin(), following->after.end());
  }

  Block* joined(Block* block, Block* following) noexcept {
    free_.extract(block);
    free_.extract(following);
    List::absorb_next(block);
    free_.insert(block);
    return block;
  }

  List free_;
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace pinning
