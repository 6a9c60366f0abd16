// SPDX-License-Identifier: Apache-2.0
// Which pages are watched, how often, and which of them have been unmapped or moved since.
#pragma once

#include <sys/mman.h>

#include <functional>
#include <iterator>
#include <map>
#include <new>
#include <pinning/errors.hpp>
#include <utility>

namespace pinning {

/// Blocks of memory taken from the kernel and never returned to it: a thread inside the allocator may be waiting in
/// munmap for the thread that marks pages.
class KernelBlocks {
 public:
  static constexpr std::size_t block_size = 64;

  void* take() {
    if (free_ == nullptr) take_more();
    return std::exchange(free_, free_->next);
  }
  void give_back(void* block) noexcept { free_ = new (block) Free{free_}; }

 private:
  struct Free {
    Free* next;
  };

  void take_more() {
    constexpr std::size_t bytes = 1024 * block_size;
    void* const more = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) throw std::bad_alloc();
    for (std::size_t offset = 0; offset < bytes; offset += block_size) give_back(static_cast<char*>(more) + offset);
  }

  Free* free_ = nullptr;
};

/// For the nodes of a container.
template <class T>
struct KernelAllocator {
  using value_type = T;

  explicit KernelAllocator(KernelBlocks& all) noexcept : blocks(&all) {}
  template <class U>
  KernelAllocator(KernelAllocator<U> const& other) noexcept : blocks(other.blocks) {}

  T* allocate(std::size_t) {
    static_assert(sizeof(T) <= KernelBlocks::block_size);
    return static_cast<T*>(blocks->take());
  }
  void deallocate(T* block, std::size_t) noexcept { blocks->give_back(block); }
  friend bool operator==(KernelAllocator const&, KernelAllocator const&) = default;

  KernelBlocks* blocks;
};

class PageCounts {
 public:
  PageCounts() noexcept {}

  /// Count the pages as watched once more, and as present. Throws std::bad_alloc; then nothing has changed.
  void add(Address start, Address end) {
    auto const [first, last] = split(start, end);
    ++first->second.borders;
    ++last->second.borders;
    for (auto step = first; step != last; ++step) {
      ++step->second.count;
      step->second.gone = false;
    }
    merge(start, end);
  }

  /// Mark pages that have been unmapped or moved. Throws std::bad_alloc; then nothing has changed.
  void mark_gone(Address start, Address end) {
    auto const [first, last] = split(start, end);
    for (auto step = first; step != last; ++step) step->second.gone = step->second.count != 0;
    merge(start, end);
  }

  /// Call `act` with each run of pages that only the `add` of this range watches, and that are not gone.
  template <class Act>
  void each_last(Address start, Address end, Act&& act) const {
    auto const last = steps_.find(end);
    for (auto step = steps_.find(start); step != last; ++step) {
      if (step->second.count == 1 && !step->second.gone) act(step->first, std::next(step)->first);
    }
  }

  /// Undo one `add`.
  void remove(Address start, Address end) noexcept {
    auto const first = steps_.find(start), last = steps_.find(end);
    for (auto step = first; step != last; ++step) {
      if (--step->second.count == 0) step->second.gone = false;
    }
    --first->second.borders;
    --last->second.borders;
    merge(start, end);
  }

 private:
  /// The state of the pages from its address up to the next step. It stays while a range begins or ends there.
  struct Step {
    unsigned count = 0, borders = 0;
    bool gone = false;
  };
  using Steps = std::map<Address, Step, std::less<>, KernelAllocator<std::pair<Address const, Step>>>;

  struct Borders {
    Steps::iterator first, last;
  };

  /// Make steps that begin at `start` and at `end`, and that stay until `merge`.
  Borders split(Address start, Address end) {
    auto const first = step_at(start);
    try {
      return {first, step_at(end)};
    } catch (...) {
      merge(start, start);
      throw;
    }
  }

  Steps::iterator step_at(Address address) {
    auto const next = steps_.lower_bound(address);
    if (next != steps_.end() && next->first == address) return next;
    Step const before = before_of(next);
    return steps_.emplace_hint(next, address, Step{before.count, 0, before.gone});
  }

  /// Remove the steps from `start` to `end` that only repeat the step before.
  void merge(Address start, Address end) noexcept {
    for (auto step = steps_.lower_bound(start); step != steps_.end() && step->first <= end;) {
      Step const& here = step->second;
      Step const before = before_of(step);
      bool const redundant = here.borders == 0 && here.count == before.count && here.gone == before.gone;
      step = redundant ? steps_.erase(step) : std::next(step);
    }
  }

  Step before_of(Steps::const_iterator step) const { return step == steps_.begin() ? Step{} : std::prev(step)->second; }

  KernelBlocks blocks_;
  Steps steps_{Steps::allocator_type(blocks_)};
};

}  // namespace pinning
