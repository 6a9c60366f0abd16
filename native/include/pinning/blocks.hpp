// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "free_list.hpp"
#include "order.hpp"

namespace pinning {

/// A pool's memory on one device, cut into blocks: when a free block may be reused, how blocks split and merge. Not
/// thread-safe.
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
    Dependencies after = {};  // the frees; for a block in use, those that its own free may not cover
    Block* previous = nullptr;
    Block* next = nullptr;
    bool free = false;
    FreeList<Block>::Node node = {};
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
  Block* take(std::uint64_t size, Dependencies const& before) {
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
  void coalesce() noexcept {
    for (auto const& segment : segments_) {
      for (Block* block = segment->first; block != nullptr; block = block->next) {
        if (block->free) block = merge(block);
      }
    }
  }

  /// Add the lanes for which a use of some free block may still have to wait.
  void add_lanes(std::vector<std::shared_ptr<Lane>>& to) const {
    for (Block const* const block : free_) block->after.add_lanes(to);
  }

  /// The largest segment that is free with all its points reached, after `coalesce` as one block; null if there is none.
  Segment const* idle() const noexcept {
    Segment const* found = nullptr;
    for (auto const& segment : segments_) {
      Block const* const first = segment->first;
      if (!first->free || first->next != nullptr || !first->after.reached()) continue;
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
    Dependencies after = first->after;
    for (Block* block = first; block != last;) {
      block = block->next;
      after.add(block->after);
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
    block->after.drop_reached();
    if (block->previous != nullptr && joins(block->previous, block)) block = joined(block->previous, block);
    if (block->next != nullptr && joins(block, block->next)) block = joined(block, block->next);
    return block;
  }

  static bool joins(Block* block, Block* following) noexcept {
    if (!block->free || !following->free) return false;
    block->after.drop_reached();
    following->after.drop_reached();
    return block->after == following->after;
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
