// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pinning {

/// Where an operation stands in a line of operations: over once the line has reached it. `Line` is copyable and
/// comparable, and has reached(), ordered() and key(), which names it.
template <class Line>
struct Point {
  Line line;
  std::uint64_t position;
  bool reached() const noexcept { return line.reached() >= position; }
  bool operator==(Point const& other) const noexcept { return line == other.line && position == other.position; }
};

/// What the next user of a block must come after: the frees.
template <class Line>
using After = std::vector<Point<Line>>;

/// Whether all of these points are reached.
template <class Line>
bool reached(After<Line> const& after) noexcept {
  return std::all_of(after.begin(), after.end(), [](Point<Line> const& point) { return point.reached(); });
}

/// Drops those points that are reached.
template <class Line>
void settle(After<Line>& after) noexcept {
  std::erase_if(after, [](Point<Line> const& point) { return point.reached(); });
}

/// Has `after` come after one more point: of the operations of an ordered line the last one is enough.
template <class Line>
void add(After<Line>& after, Point<Line> const& more) {
  if (more.reached()) return;
  for (Point<Line>& point : after) {
    if (!(point.line == more.line)) continue;
    if (more.line.ordered()) point.position = std::max(point.position, more.position);
    if (point.position == more.position || more.line.ordered()) return;
  }
  after.push_back(more);
}

/// All that a new user comes after: of some lines everything up to a position, of others single operations.
template <class Line>
class Before {
 public:
  using Key = void const*;

  /// Every operation of this line up to here.
  void add_upto(Key line, std::uint64_t position) {
    if (first_ == nullptr) first_ = line;  // most often the only one, which costs no memory then
    std::uint64_t& upto = line == first_ ? upto_of_first_ : upto_[line];
    upto = std::max(upto, position);
  }
  void add(Key line, std::uint64_t position) { single_.insert({line, position}); }

  bool covers(Point<Line> const& point) const noexcept {
    if (point.reached()) return true;
    if (point.line.key() == first_ && upto_of_first_ >= point.position) return true;
    if (auto const upto = upto_.find(point.line.key()); upto != upto_.end() && upto->second >= point.position) return true;
    return !point.line.ordered() && single_.contains({point.line.key(), point.position});
  }
  bool covers(After<Line> const& after) const noexcept {
    return std::all_of(after.begin(), after.end(), [&](Point<Line> const& point) { return covers(point); });
  }

 private:
  Key first_ = nullptr;
  std::uint64_t upto_of_first_ = 0;
  std::unordered_map<Key, std::uint64_t> upto_;
  std::set<std::pair<Key, std::uint64_t>> single_;
};

/// Has `after` come after those of `more` that nothing in `covered` comes after.
template <class Line>
void add_uncovered(After<Line>& after, After<Line> const& more, Before<Line> const& covered) {
  for (Point<Line> const& point : more) {
    if (!covered.covers(point)) add(after, point);
  }
}

/// A pool's memory on one device cut into blocks: who may use a free one again, how they split and how they merge. One
/// thread at a time.
template <class Line>
class Blocks {
 public:
  using Address = std::uint64_t;
  struct Segment;
  struct Block;

  struct Smaller {
    using is_transparent = void;
    bool operator()(Block const* one, Block const* other) const noexcept {
      return one->size != other->size ? one->size < other->size : one->start < other->start;
    }
    bool operator()(Block const* one, std::uint64_t size) const noexcept { return one->size < size; }
  };
  using Free = std::set<Block*, Smaller>;

  /// A stretch of a segment. Those of one segment are a chain without gaps.
  struct Block {
    Segment* segment;
    Address start;
    std::uint64_t size;
    After<Line> after = {};  // the frees; while somebody has it, those that his own free may not cover
    Block* previous = nullptr;
    Block* next = nullptr;
    bool free = false;
    typename Free::node_type place = {};  // in the list of free blocks, while it is not there: so to free never fails
  };

  /// What the vendor has allocated at once.
  struct Segment {
    Address base;
    Address device_base;  // the same byte for the device
    std::uint64_t length;
    Block* first = nullptr;
  };

  Blocks() = default;
  Blocks(Blocks const&) = delete;
  Blocks& operator=(Blocks const&) = delete;
  ~Blocks() {
    for (auto const& segment : segments_) {
      for (Block* block = segment->first; block != nullptr;) delete std::exchange(block, block->next);
    }
  }

  /// Takes in a new segment, all of it one block that somebody has.
  Block* add(Address base, Address device_base, std::uint64_t length) {
    segments_.reserve(segments_.size() + 1);
    auto segment = std::make_unique<Segment>(Segment{base, device_base, length});
    segment->first = make(segment.get(), base, length).release();
    segments_.push_back(std::move(segment));
    return segments_.back()->first;
  }

  /// A block of `size` bytes out of those that may be used after `before`: from the smallest that is enough, or of
  /// neighbours. Null where there is none. It is the caller's.
  Block* take(std::uint64_t size, Before<Line> const& before) {
    for (auto each = free_.lower_bound(size); each != free_.end(); ++each) {
      if (before.covers((*each)->after)) return use(*each, *each, size);
    }
    for (auto const& segment : segments_) {
      Block* first = nullptr;  // of the neighbours seen so far
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

  /// Makes a block free for whoever comes after all that it has in `after`.
  void give_back(Block* block) noexcept {
    block->free = true;
    list(block);
    merge(block);
  }

  /// Merges all neighbours that are free for everybody by now.
  void settle() noexcept {
    for (auto const& segment : segments_) {
      for (Block* block = segment->first; block != nullptr; block = block->next) {
        if (block->free) block = merge(block);
      }
    }
  }

  /// Whether some free block is not known to be free for everybody.
  bool waits() const noexcept {
    return std::any_of(free_.begin(), free_.end(), [](Block const* block) { return !reached(block->after); });
  }

  /// The largest segment that is free for everybody, in one block after `settle`; null where there is none.
  Segment const* idle() const noexcept {
    Segment const* found = nullptr;
    for (auto const& segment : segments_) {
      Block const* const first = segment->first;
      if (!first->free || first->next != nullptr || !reached(first->after)) continue;
      if (found == nullptr || segment->length > found->length) found = segment.get();
    }
    return found;
  }

  /// Has somebody have an idle segment, in its one block, while the vendor is asked to take it back.
  Block* claim(Segment const* segment) noexcept {
    unlist(segment->first);
    segment->first->free = false;
    return segment->first;
  }

  /// Forgets a segment that somebody has in one block: the vendor has it back.
  void remove(Block const* whole) noexcept {
    std::erase_if(segments_, [&](auto const& each) {
      if (each->first != whole) return false;
      delete whole;
      return true;
    });
  }

 private:
  std::unique_ptr<Block> make(Segment* segment, Address start, std::uint64_t size) {
    auto block = std::make_unique<Block>(Block{segment, start, size});
    Free one;
    one.insert(block.get());
    block->place = one.extract(one.begin());
    return block;
  }

  /// Makes the neighbours from `first` to `last` one block that somebody has; what is left of the last one stays free.
  Block* use(Block* first, Block* last, std::uint64_t size) {
    std::uint64_t total = 0;
    for (Block* block = first;; block = block->next) {
      total += block->size;
      if (block == last) break;
    }
    // What can fail comes first.
    std::unique_ptr<Block> rest;
    if (total > size) {
      rest = make(last->segment, first->start + size, total - size);
      rest->after = last->after;
    }
    After<Line> after = first->after;
    for (Block* block = first; block != last;) {
      block = block->next;
      for (Point<Line> const& point : block->after) pinning::add(after, point);
    }
    for (Block* block = first;; block = block->next) {
      unlist(block);
      if (block == last) break;
    }
    for (Block* const end = last->next; first->next != end;) absorb(first, first->next);
    first->after.swap(after);
    first->size = size;
    first->free = false;
    if (rest) {
      rest->previous = first;
      rest->next = first->next;
      if (rest->next != nullptr) rest->next->previous = rest.get();
      first->next = rest.get();
      rest->free = true;
      list(rest.release());
    }
    return first;
  }

  /// Joins a free block with its neighbours, unless that would have someone wait who need not. Returns what it is in.
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
    unlist(block);
    unlist(following);
    absorb(block, following);
    list(block);
    return block;
  }

  /// Has a block take in the one that follows it, neither of them in the list.
  static void absorb(Block* block, Block* following) noexcept {
    block->size += following->size;
    block->next = following->next;
    if (block->next != nullptr) block->next->previous = block;
    delete following;
  }

  void list(Block* block) noexcept { free_.insert(std::move(block->place)); }
  void unlist(Block* block) noexcept { block->place = free_.extract(block); }

  Free free_;
  std::vector<std::unique_ptr<Segment>> segments_;
};

}  // namespace pinning
