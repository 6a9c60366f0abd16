// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <utility>

namespace pinning {

/// The free blocks of an allocator, ordered by size for best fit, and the chain that links all its blocks in memory. A
/// `Block` has start, size, previous, next and `node`, a FreeList<Block>::Node. Not thread-safe.
template <class Block>
class FreeList {
 public:
  struct Smaller {
    using is_transparent = void;
    bool operator()(Block const* one, Block const* other) const noexcept {
      return one->size != other->size ? one->size < other->size : one->start < other->start;
    }
    bool operator()(Block const* one, std::uint64_t size) const noexcept { return one->size < size; }
  };
  using Set = std::set<Block*, Smaller>;
  /// A block's set node, which the block keeps while it is not in the list, so that `insert` cannot fail.
  using Node = typename Set::node_type;

  /// Return `block` on the heap, with its node.
  static std::unique_ptr<Block> make(Block&& block) {
    auto fresh = std::make_unique<Block>(std::move(block));
    Set one;
    one.insert(fresh.get());
    fresh->node = one.extract(one.begin());
    return fresh;
  }

  auto begin() const noexcept { return blocks_.begin(); }
  auto end() const noexcept { return blocks_.end(); }
  /// The smallest block of at least `size` bytes; larger ones follow.
  auto best_fit(std::uint64_t size) const { return blocks_.lower_bound(size); }
  std::uint64_t largest() const noexcept { return blocks_.empty() ? 0 : (*blocks_.rbegin())->size; }

  void insert(Block* block) noexcept { blocks_.insert(std::move(block->node)); }
  void extract(Block* block) noexcept { block->node = blocks_.extract(block); }

  /// Insert `following` into the chain after `block`.
  static void link(Block* block, Block* following) noexcept {
    following->previous = block;
    following->next = block->next;
    if (following->next != nullptr) following->next->previous = following;
    block->next = following;
  }
  /// Merge the next block into `block`, and destroy it. Neither may be in the list.
  static void absorb_next(Block* block) noexcept {
    std::unique_ptr<Block> const following(block->next);
    block->size += following->size;
    block->next = following->next;
    if (block->next != nullptr) block->next->previous = block;
  }
  /// Destroy a chain, given its first block.
  static void destroy(Block* first) noexcept {
    while (first != nullptr) delete std::exchange(first, first->next);
  }

 private:
  Set blocks_;
};

}  // namespace pinning
