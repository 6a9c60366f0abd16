// SPDX-License-Identifier: Apache-2.0
// Which pages are watched, how often, which of them have been unmapped or moved since, and where they have moved.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstdint>
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
      step->second.arrival = 0;
    }
    merge(start, end);
  }

  /// Mark pages that have been unmapped; or that have moved, if `unmapped` is false: that they are unmapped is another
  /// event. Throws std::bad_alloc; then nothing has changed.
  void mark_gone(Address start, Address end, bool unmapped = true) {
    change(start, end, [=](Step& step) {
      step.gone = step.count != 0;
      step.leaving = !unmapped;
      step.arrival = 0;
    });
  }

  /// Mark pages to which watched memory has moved; what was there is gone. `arrival` is not 0. Throws like `mark_gone`.
  void mark_arrived(Address start, Address end, std::uint32_t arrival) {
    change(start, end, [=](Step& step) {
      step.gone = step.count != 0;
      step.arrival = arrival;
    });
  }

  /// Whether all pages have arrived by this move, have not moved since, and no `add` has watched any of them since.
  bool all_arrived(Address start, Address end, std::uint32_t arrival) const noexcept {
    auto const step = steps_.upper_bound(start);
    return before_of(step).arrival == arrival && (step == steps_.end() || step->first >= end);
  }

  /// Forget that pages have arrived: all that `all_arrived` is true of.
  void end_arrived(Address start, Address end) noexcept {
    std::prev(steps_.upper_bound(start))->second.arrival = 0;
    merge(start, end);
  }

  /// Call `act` with each run of pages that only the `add` of this range watches, and that are not gone.
  template <class Act>
  void each_last(Address start, Address end, Act&& act) const {
    each_run(steps_.find(start), steps_.find(end), [](Step const& step) { return step.count == 1 && !step.gone; }, act);
  }

  /// Whether `is_right` is true of each run of pages that are there: watched and not gone, arrived, or leaving.
  template <class IsRight>
  bool all_present(Address start, Address end, IsRight&& is_right) const {
    bool all = true;
    each_step(start, end, [&](Step const& step, Address from, Address to) {
      if (is_there(step)) all = all && is_right(from, to);
    });
    return all;
  }

  /// The last page before `start`, and the first from `end` on, that is there; 0: none.
  Address before(Address start) const noexcept {
    for (auto step = steps_.lower_bound(start); step != steps_.begin();) {
      Address const to = step == steps_.end() ? start : std::min(start, step->first);
      if (is_there((--step)->second)) return to - 1;
    }
    return 0;
  }
  Address after(Address end) const noexcept { return first(end, is_there); }

  /// The first page from `start` on that is watched and not gone; 0: none.
  Address first_watched(Address start) const noexcept { return first(start, is_watched); }

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
    bool gone = false, leaving = false;
    std::uint32_t arrival = 0;  // of watched memory that has moved here; 0: none
  };
  static bool is_watched(Step const& step) noexcept { return step.count != 0 && !step.gone; }
  static bool is_there(Step const& step) noexcept { return is_watched(step) || step.leaving || step.arrival != 0; }
  using Steps = std::map<Address, Step, std::less<>, KernelAllocator<std::pair<Address const, Step>>>;

  struct Borders {
    Steps::iterator first, last;
  };

  template <class Change>
  void change(Address start, Address end, Change&& change_of) {
    auto const [first, last] = split(start, end);
    for (auto step = first; step != last; ++step) change_of(step->second);
    merge(start, end);
  }

  template <class IsWanted>
  Address first(Address start, IsWanted&& is_wanted) const noexcept {
    if (is_wanted(before_of(steps_.upper_bound(start)))) return start;
    for (auto step = steps_.lower_bound(start); step != steps_.end(); ++step) {
      if (is_wanted(step->second)) return step->first;
    }
    return 0;
  }

  /// Call `act` with each step that has pages in the range, and these.
  template <class Act>
  void each_step(Address start, Address end, Act&& act) const {
    auto step = steps_.upper_bound(start);
    if (step != steps_.begin()) --step;
    for (; step != steps_.end() && step->first < end; ++step) {
      auto const next = std::next(step);
      act(step->second, std::max(start, step->first), next == steps_.end() ? end : std::min(end, next->first));
    }
  }

  template <class IsWanted, class Act>
  static void each_run(Steps::const_iterator step, Steps::const_iterator last, IsWanted&& is_wanted, Act&& act) {
    while (step != last) {
      Address const from = step->first;
      if (!is_wanted(step++->second)) continue;
      while (step != last && is_wanted(step->second)) ++step;
      act(from, step->first);
    }
  }

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
    return steps_.emplace_hint(next, address, Step{before.count, 0, before.gone, before.leaving, before.arrival});
  }

  /// Remove the steps from `start` to `end` that only repeat the step before.
  void merge(Address start, Address end) noexcept {
    for (auto step = steps_.lower_bound(start); step != steps_.end() && step->first <= end;) {
      Step const& here = step->second;
      Step const before = before_of(step);
      bool const redundant = here.borders == 0 && here.count == before.count && here.gone == before.gone &&
                             here.leaving == before.leaving && here.arrival == before.arrival;
      step = redundant ? steps_.erase(step) : std::next(step);
    }
  }

  Step before_of(Steps::const_iterator step) const { return step == steps_.begin() ? Step{} : std::prev(step)->second; }

  KernelBlocks blocks_;
  Steps steps_{Steps::allocator_type(blocks_)};
};

}  // namespace pinning
