// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <pagetable/page_table.hpp>
#include <string>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "locker.hpp"

namespace pinning {

/// What a map knows of one region, as of one instant.
struct Region {
  Address start;
  std::uint64_t size;
  Address device_ptr;        // of `start`
  std::uint64_t piece;       // bytes a vendor call locked at a time; `size` when one call locked it all
  std::uint32_t references;  // locks held
  bool external;             // pinned by someone else: never unlocked by this map

  Address device_ptr_of(Address ptr) const noexcept { return device_ptr + (ptr - start); }
};

/// The locked host memory of one device, counted.
///
/// Locks: `mutex_` guards every change; `find` takes no lock. No vendor call is made under it. A region whose vendor
/// call is under way is in the table, so that the overlap rules see it, but `find` does not show it; whoever needs its
/// outcome waits on `settled_`. The page table's own mutex nests inside `mutex_`.
class PinnedMap {
 public:
  /// `locker` must outlive the map.
  explicit PinnedMap(Locker& locker) : locker_(locker) {}

  /// Unlocks what is left; the vendor's errors have nobody left to hear them.
  ~PinnedMap() {
    try {
      clear();
    } catch (...) {
    }
  }

  /// Counts one more lock of [ptr, ptr + size), locking it first where no region holds it; the device pointer of `ptr`.
  ///
  /// `piece`: bytes that one vendor call may take, 0 for all. Throws InvalidRange, PartialOverlap, StillLocked (half
  /// unlocked by a failed `unlock`), or what the locker throws; then nothing has changed. (Where the vendor refuses
  /// a piece, and then to undo the pieces before it, these are a half unlocked region, for `unlock` to try again.)
  Address lock(Address ptr, std::uint64_t size, Access access = Access::unknown, std::uint64_t piece = 0) {
    check(ptr, size);
    std::exception_ptr refused;  // outlives `guard`: to destroy what a locker threw may need a lock of the locker's own
    std::unique_lock guard(mutex_);
    for (;;) {
      if (auto const device_ptr = count_one_more(ptr, size)) return *device_ptr;
      if (!settle(guard, ptr, size)) continue;
      refuse_overlap(ptr, size);
      Id const id = enter(ptr, size, State::entering, piece);
      guard.unlock();
      std::uint64_t held = 0;
      std::optional<Pinned> pinned;
      try {
        try {
          Address const device_ptr = lock_pieces(ptr, size, access, piece, held);
          guard.lock();
          publish(id, device_ptr, 1, 0);
          return device_ptr;
        } catch (AlreadyPinned const&) {
          refused = std::current_exception();
          if (held == 0) pinned = pinned_by_others(ptr, size);
        }
      } catch (...) {
        guard.lock();
        abandon(id, ptr, held);
        throw;
      }
      guard.lock();
      abandon(id, ptr, held);
      if (!pinned) std::rethrow_exception(refused);
      if (!contains(*pinned, ptr, size)) throw PartialOverlap(ptr, size, pinned->base, pinned->size);
      // Other threads may be finding out the same about other parts of it. One of us enters the whole; to try the vendor
      // again instead would keep all of us in each other's way.
      while (!settle(guard, pinned->base, pinned->size)) {
      }
      if (auto const device_ptr = count_one_more(ptr, size)) return *device_ptr;
      refuse_overlap(pinned->base, pinned->size);
      publish(enter(pinned->base, pinned->size, State::entering, 0), pinned->device_ptr, 1, external);
      return pinned->device_ptr + (ptr - pinned->base);
    }
  }

  /// Counts one lock less of the region around `ptr`; the last one unlocks it. Throws NotLocked, or what the locker
  /// throws: then the region stays, counted as before.
  void unlock(Address ptr) {
    std::unique_lock guard(mutex_);
    for (;;) {
      auto region = table_.find(ptr, [](Value const&) {});
      if (!region) throw NotLocked(not_locked(ptr));
      Value& value = table_.value(region->id);
      if (value.in_transit()) {
        settled_.wait(guard);
        continue;
      }
      std::uint32_t const references = value.references.load(std::memory_order_relaxed);
      if (references == 0) throw NotLocked(not_locked(ptr));
      std::uint8_t const flags = value.flags.load(std::memory_order_relaxed);
      if (references > 1 || (flags & registered) != 0) {
        value.references.store(references - 1, std::memory_order_release);
      } else if ((flags & external) != 0) {
        leave(region->start);
      } else {
        unlock_last(guard, *region, value);
      }
      return;
    }
  }

  /// Enters memory that its owner has pinned: found like any other, never unlocked by this map. Not a lock, so no
  /// `unlock` takes it away. Throws InvalidRange, or PartialOverlap when any of it is in the map.
  void register_pinned(Address ptr, std::uint64_t size, Address device_ptr) {
    check(ptr, size);
    std::unique_lock guard(mutex_);
    while (!settle(guard, ptr, size)) {
    }
    refuse_overlap(ptr, size);
    publish(enter(ptr, size, State::entering, 0), device_ptr, 0, external | registered);
  }

  /// Takes back `register_pinned` of the region around `ptr`. Throws NotLocked, or StillLocked while locks are held.
  void unregister(Address ptr) {
    std::lock_guard const guard(mutex_);
    auto region = table_.find(ptr, [](Value const&) {});
    if (!region || (table_.value(region->id).flags.load(std::memory_order_relaxed) & registered) == 0) {
      throw NotLocked("no registered region holds 0x" + hex(ptr));
    }
    if (std::uint32_t const held = table_.value(region->id).references.load(std::memory_order_relaxed); held != 0) {
      throw StillLocked("the registered region " + describe(region->start, region->size) + " is still locked " +
                        std::to_string(held) + " time(s); unlock it first");
    }
    leave(region->start);
  }

  /// The region that holds every byte of [ptr, ptr + size). Takes no lock and writes nothing.
  std::optional<Region> find(Address ptr, std::uint64_t size = 1) const noexcept {
    Region region{};
    bool found = false;
    auto range = table_.find(ptr, [&](Value const& value) { found = value.read(region); });
    if (!range || !found || size == 0 || !range->contains(ptr, size)) return std::nullopt;
    region.start = range->start;
    region.size = range->size;
    if (region.piece == 0 || region.piece > region.size) region.piece = region.size;
    return region;
  }

  /// `lock` where a region holds the range already: no vendor call, no waiting.
  std::optional<Address> try_lock(Address ptr, std::uint64_t size) {
    if (size == 0) return std::nullopt;
    std::lock_guard const guard(mutex_);
    return count_one_more(ptr, size);
  }

  /// `unlock` where it is not the last: no vendor call, no waiting.
  bool try_unlock(Address ptr) {
    std::lock_guard const guard(mutex_);
    auto region = table_.find(ptr, [](Value const&) {});
    if (!region) return false;
    Value& value = table_.value(region->id);
    std::uint32_t const references = value.references.load(std::memory_order_relaxed);
    if (references < 2 || value.in_transit()) return false;
    value.references.store(references - 1, std::memory_order_release);
    return true;
  }

  /// How many regions `find` shows.
  std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

  /// All regions, ascending, as of one instant.
  std::vector<Region> regions() const {
    std::lock_guard const guard(mutex_);
    std::vector<Region> found;
    for (auto const& range : table_.regions()) {
      if (auto const region = find(range.start)) found.push_back(*region);
    }
    return found;
  }

  /// Unlocks every region, however many locks it has. When the vendor refuses one, the others are still unlocked and
  /// the first error is thrown at the end. Regions in the middle of a vendor call are waited for if `wait`, else left.
  void clear(bool wait = true) {
    std::exception_ptr first_error;
    std::unique_lock guard(mutex_);
    for (auto const& range : table_.regions()) {
      if (wait) {
        while (!settle(guard, range.start, range.size)) {
        }
      }
      auto region = table_.find(range.start, [](Value const&) {});
      if (!region || *region != range) continue;
      Value& value = table_.value(region->id);
      if (value.in_transit()) continue;
      if ((value.flags.load(std::memory_order_relaxed) & external) != 0) {
        leave(region->start);
        continue;
      }
      try {
        unlock_last(guard, *region, value);
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
        guard.unlock();  // before this error is destroyed, see `lock`
      }
      guard.lock();
    }
    if (first_error) std::rethrow_exception(first_error);
  }

 private:
  using Id = pagetable::Id;

  enum class State : std::uint8_t { entering, locked, leaving, half_unlocked };
  static constexpr std::uint8_t external = 1;
  static constexpr std::uint8_t registered = 2;

  /// What the page table keeps with each region.
  struct Value {
    std::atomic<Address> device_ptr;
    std::atomic<std::uint64_t> piece;  // 0: one call
    std::atomic<std::uint64_t> held;   // bytes from the start that the vendor still has locked; for `unlock_last`
    std::atomic<std::uint32_t> references;
    std::atomic<State> state;
    std::atomic<std::uint8_t> flags;

    bool in_transit() const noexcept {
      State const now = state.load(std::memory_order_relaxed);
      return now == State::entering || now == State::leaving;
    }
    /// Copies all but the bounds; whether the region is to be found. The state comes first: what `publish` stores
    /// before it is then seen as well.
    bool read(Region& region) const noexcept {
      bool const found = state.load(std::memory_order_acquire) == State::locked;
      region.device_ptr = device_ptr.load(std::memory_order_acquire);
      region.piece = piece.load(std::memory_order_acquire);
      region.references = references.load(std::memory_order_acquire);
      region.external = (flags.load(std::memory_order_acquire) & PinnedMap::external) != 0;
      return found;
    }
  };

  static void check(Address ptr, std::uint64_t size) {
    if (ptr == 0) throw InvalidRange("the null pointer cannot be locked");
    if (size == 0) throw InvalidRange("the range at 0x" + hex(ptr) + " has 0 bytes; a lock needs at least one");
    if (ptr + (size - 1) < ptr) {
      throw InvalidRange("the range of " + std::to_string(size) + " bytes at 0x" + hex(ptr) +
                         " runs past the top of the address space");
    }
  }
  static std::string hex(Address ptr) {
    char text[20];
    std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(ptr));
    return text;
  }
  static std::string not_locked(Address ptr) { return "no locked region holds 0x" + hex(ptr); }
  static bool contains(Pinned const& pinned, Address ptr, std::uint64_t size) noexcept {
    return pagetable::Region{pinned.base, pinned.size, 0}.contains(ptr, size);
  }

  // ---- under the mutex ----

  std::optional<Address> count_one_more(Address ptr, std::uint64_t size) noexcept {
    auto region = table_.find(ptr, [](Value const&) {});
    if (!region || !region->contains(ptr, size)) return std::nullopt;
    Value& value = table_.value(region->id);
    if (value.state.load(std::memory_order_relaxed) != State::locked) return std::nullopt;
    value.references.store(value.references.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    return value.device_ptr.load(std::memory_order_relaxed) + (ptr - region->start);
  }

  /// Whether no vendor call is under way in the range; if one is, waits for an outcome and must be asked again.
  bool settle(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size) {
    for (auto const& region : table_.overlapping(ptr, size)) {
      if (!table_.value(region.id).in_transit()) continue;
      settled_.wait(guard);
      return false;
    }
    return true;
  }

  void refuse_overlap(Address ptr, std::uint64_t size) {
    for (auto const& region : table_.overlapping(ptr, size)) {
      if (table_.value(region.id).state.load(std::memory_order_relaxed) == State::half_unlocked) {
        throw StillLocked("the region " + describe(region.start, region.size) +
                          " is half unlocked, because the vendor refused; unlock it again first");
      }
      throw PartialOverlap(ptr, size, region.start, region.size);
    }
  }

  Id enter(Address ptr, std::uint64_t size, State state, std::uint64_t piece) {
    return table_.insert(ptr, size, [&](Value& value) {
      value.device_ptr.store(0, std::memory_order_release);
      value.piece.store(piece, std::memory_order_release);
      value.held.store(size, std::memory_order_release);
      value.references.store(0, std::memory_order_release);
      value.flags.store(0, std::memory_order_release);
      value.state.store(state, std::memory_order_release);
    }).id;
  }

  void publish(Id id, Address device_ptr, std::uint32_t references, std::uint8_t flags) noexcept {
    Value& value = table_.value(id);
    value.device_ptr.store(device_ptr, std::memory_order_release);
    value.references.store(references, std::memory_order_release);
    value.flags.store(flags, std::memory_order_release);
    settle_as(value, State::locked);
  }

  void leave(Address start) noexcept {
    auto const region = table_.remove(start);
    settle_as(table_.value(region->id), State::leaving);
  }

  /// After a refused `lock`: the entry goes, unless the vendor refused to undo it too; then an `unlock` can try again.
  void abandon(Id id, Address start, std::uint64_t held) noexcept {
    if (held == 0) return leave(start);
    Value& value = table_.value(id);
    value.held.store(held, std::memory_order_release);
    value.references.store(1, std::memory_order_release);
    settle_as(value, State::half_unlocked);
  }

  void settle_as(Value& value, State state) noexcept {
    State const before = value.state.load(std::memory_order_relaxed);
    value.state.store(state, std::memory_order_release);
    size_.store(size_.load(std::memory_order_relaxed) + (state == State::locked) - (before == State::locked),
                std::memory_order_relaxed);
    settled_.notify_all();
  }

  // ---- vendor calls: without the mutex ----

  /// Locks all pieces or none; `held`, 0 at first, says how many bytes the vendor has locked when it is done.
  Address lock_pieces(Address ptr, std::uint64_t size, Access access, std::uint64_t piece, std::uint64_t& held) {
    std::uint64_t const step = piece == 0 ? size : piece;
    Address device_ptr = 0;
    try {
      while (held < size) {
        std::uint64_t const next = std::min(step, size - held);
        Address const piece_ptr = locker_.lock(ptr + held, next, access);
        if (held == 0) device_ptr = piece_ptr;
        std::uint64_t const at = std::exchange(held, held + next);
        if (piece_ptr != device_ptr + at) throw NotContiguous();
      }
    } catch (...) {
      try {
        unlock_pieces(ptr, held, step);
      } catch (...) {  // the first error says more
      }
      throw;
    }
    return device_ptr;
  }

  /// Unlocks the pieces of the first `held` bytes, the last one first; `held` says how far it got.
  void unlock_pieces(Address ptr, std::uint64_t& held, std::uint64_t step) {
    while (held > 0) {
      std::uint64_t const last = (held - 1) / step * step;
      locker_.unlock(ptr + last);
      held = last;
    }
  }

  /// The vendor unlocks the region, the mutex released meanwhile and at the end.
  void unlock_last(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Value& value) {
    std::uint64_t const piece = value.piece.load(std::memory_order_relaxed);
    std::uint64_t held = value.held.load(std::memory_order_relaxed);
    State const before = value.state.load(std::memory_order_relaxed);
    settle_as(value, State::leaving);
    guard.unlock();
    try {
      unlock_pieces(region.start, held, piece == 0 ? region.size : piece);
    } catch (...) {
      guard.lock();
      value.held.store(held, std::memory_order_release);
      settle_as(value, held == region.size ? before : State::half_unlocked);
      throw;
    }
    guard.lock();
    leave(region.start);
    guard.unlock();
  }

  /// The pinned range of someone else around the start or the end of this one.
  std::optional<Pinned> pinned_by_others(Address ptr, std::uint64_t size) {
    auto const pinned = locker_.is_pinned(ptr);
    return pinned ? pinned : locker_.is_pinned(ptr + (size - 1));
  }

  Locker& locker_;
  pagetable::PageTable<Value> table_;
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  std::atomic<std::size_t> size_ = 0;
};

}  // namespace pinning
