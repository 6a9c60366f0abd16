// SPDX-License-Identifier: Apache-2.0
// Memory that leaves while it is in a map: unmapped, discarded or replaced. A part of pinned_map.hpp, which includes it.
#pragma once

#include <chrono>
#include <thread>

namespace pinning {

/// Watches a range until it is a region's.
class PinnedMap::Watching {
 public:
  Watching(PinnedMap& map, Address ptr, std::uint64_t size) noexcept
      : map_(map), ptr_(ptr), size_(size), on_(map.watcher_ != nullptr && map.watcher_->watch(ptr, size)) {}
  ~Watching() {
    if (on_) map_.watcher_->unwatch(ptr_, size_);
  }
  Watching(Watching const&) = delete;

  /// With the mutex.
  void becomes(Id id) noexcept {
    if (!std::exchange(on_, false)) return;
    Record& record = map_.table_.value(id);
    record.flags.store(record.flags.load(std::memory_order_relaxed) | Record::watched, std::memory_order_release);
  }

 private:
  PinnedMap& map_;
  Address const ptr_;
  std::uint64_t const size_;
  bool on_;
};

/// When it ends, the regions that have gone meanwhile are watched no more.
class PinnedMap::Unwatching {
 public:
  explicit Unwatching(PinnedMap& map) noexcept : map_(map) {}
  ~Unwatching() {
    if (!map_.any_unwatched_.load(std::memory_order_acquire)) return;
    std::vector<Unwatched> all;
    {
      std::lock_guard const guard(map_.mutex_);
      all.swap(map_.unwatched_);
      map_.any_unwatched_.store(false, std::memory_order_release);
    }
    for (Unwatched const& each : all) map_.watcher_->unwatch(each.start, each.size);
  }
  Unwatching(Unwatching const&) = delete;

 private:
  PinnedMap& map_;
};

inline bool PinnedMap::left(Address ptr, std::uint64_t size) noexcept {
  for (;;) {
    if (auto const done = try_left(ptr, size)) return *done;
    std::this_thread::yield();
  }
}

inline std::optional<bool> PinnedMap::try_left(Address ptr, std::uint64_t size) noexcept {
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (!guard) return std::nullopt;
  return mark_left(ptr, size);
}

inline bool PinnedMap::any_left() const noexcept {
  hear_of_what_left();
  return gone_.load(std::memory_order_acquire) != 0;
}

inline void PinnedMap::undo_left() {
  locker_.undo_left();
  if (!any_left()) return;
  Unwatching const afterwards(*this);
  std::unique_lock guard(mutex_);
  for (auto const& range : table_.regions()) {
    for (;;) {
      auto const region = table_.find(range.start, [](Record const&) {});
      if (!region || *region != range || !table_.value(region->id).has_left()) break;
      if (table_.value(region->id).in_transit()) {
        settled_.wait(guard);
      } else if (!undo(guard, *region)) {
        break;
      }
    }
  }
}

/// Waits until the map knows of what left by a call that is over. That may take the mutex.
inline void PinnedMap::hear_of_what_left() const noexcept {
  while (watcher_ != nullptr && watcher_->unheard()) std::this_thread::yield();
}

/// The same of what has left by now, whoever's call it was.
inline void PinnedMap::hear_of_all_that_left() const noexcept {
  if (watcher_ == nullptr) return;
  for (int tries = 0; !watcher_->settled(); ++tries) {
    if (tries < 64) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }
}

inline std::optional<bool> PinnedMap::mark_left(Address ptr, std::uint64_t size) noexcept {
  bool vendor_is_to_be_told = false;
  bool const done = table_.try_visit(ptr, size, [&](pagetable::Region const& region) {
    Record& record = table_.value(region.id);
    Pages part = Pages::of(region.start, region.size, ptr, ptr + size);
    if (record.has_left()) {
      part = part.with(Pages::unpack(record.held.load(std::memory_order_relaxed)));
    } else {
      gone_.store(gone_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    // In this order: a lookup that sees what `held` says now sees a state in which nothing is found.
    bool const in_transit = record.in_transit();
    settle_as(record, !in_transit ? State::left : record.is_growing() ? State::entering : record.state.load());
    record.held.store(part.pack(), std::memory_order_release);
    record.flags.store(record.flags.load(std::memory_order_relaxed) | Record::memory_left, std::memory_order_release);
    if (in_transit) return;  // whoever is at it sees that it has left
    vendor_is_to_be_told = true;
  });
  return done ? std::optional(vendor_is_to_be_told) : std::nullopt;
}

/// Tells the vendor of a region whose memory has left; false where it has not, or has been undone. A refusal is nobody's
/// to hear: it is half unlocked then.
inline bool PinnedMap::undo(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) {
  Record& record = table_.value(region.id);
  if (record.state.load(std::memory_order_relaxed) != State::left) return false;
  try {
    unlock_last(guard, region, record);
  } catch (...) {
    guard.unlock();  // before this error is destroyed, see `acquire`
  }
  if (!guard.owns_lock()) guard.lock();
  return true;
}

/// What has left of a region that starts there.
inline std::optional<Span> PinnedMap::gone_of(Address start, Record const& record) noexcept {
  if (!record.has_left()) return std::nullopt;
  return Pages::unpack(record.held.load(std::memory_order_relaxed)).of_region(start);
}

inline void PinnedMap::refuse_left(Address ptr, std::uint64_t size) {
  throw InvalidRange("the memory of " + describe(ptr, size) +
                     " has been unmapped, discarded or replaced while it was being locked; lock what is there now");
}

}  // namespace pinning
