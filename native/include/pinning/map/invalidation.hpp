// SPDX-License-Identifier: Apache-2.0
// Memory that is unmapped, discarded or replaced while it is in a map. A part of pinned_map.hpp, which includes it.
#pragma once

#include <unistd.h>

#include <thread>

namespace pinning {

/// A watched range, until a region takes over the watch.
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
    map_.table_.value(id).set(Record::watched);
  }

 private:
  PinnedMap& map_;
  Address const ptr_;
  std::uint64_t const size_;
  bool on_;
};

inline bool PinnedMap::invalidate(Address ptr, std::uint64_t size) noexcept {
  for (;;) {
    if (auto const done = try_invalidate(ptr, size)) return *done;
    std::this_thread::yield();
  }
}

inline std::optional<bool> PinnedMap::try_invalidate(Address ptr, std::uint64_t size) noexcept {
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (!guard) return std::nullopt;
  return mark_invalidated(ptr, size);
}

inline bool PinnedMap::any_invalidated() const noexcept {
  await_invalidations();
  return invalidated_count_.load(std::memory_order_acquire) != 0;
}

inline void PinnedMap::drain_invalidations() {
  locker_.drain_invalidations();
  if (!any_invalidated()) return;
  std::unique_lock guard(mutex_);
  for (auto const& range : table_.regions()) {
    for (;;) {
      auto const region = table_.find(range.start);
      if (!region || *region != range || !table_.value(region->id).is_invalidated()) break;
      if (table_.value(region->id).in_transit()) {
        state_changed_.wait(guard);
      } else if (!drain(guard, *region)) {
        break;
      }
    }
  }
}

/// Wait until the map knows of memory that is gone by a call that has returned. Not with the mutex: that may take it.
inline void PinnedMap::await_invalidations() const noexcept {
  if (watcher_ != nullptr) watcher_->await_pending();
}

/// The same for memory of a range that is gone by now, also by calls in progress on other threads.
inline void PinnedMap::await_invalidations(Address ptr, std::uint64_t size) const noexcept {
  if (watcher_ != nullptr) watcher_->await_quiet(ptr, size);
}

inline std::optional<bool> PinnedMap::mark_invalidated(Address ptr, std::uint64_t size) noexcept {
  bool vendor_is_to_be_told = false;
  bool const done = table_.try_visit(ptr, size, [&](pagetable::Region const& region) {
    Record& record = table_.value(region.id);
    Pages part = Pages::of(region.start, region.size, ptr, ptr + size);
    if (record.is_invalidated()) {
      part = part.with(Pages::unpack(record.held.load(std::memory_order_relaxed)));
    } else {
      invalidated_count_.store(invalidated_count_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    }
    // In this order: a lookup that sees the new `held` sees a state in which the region is not found.
    bool const in_transit = record.in_transit();
    set_state(record, !in_transit ? State::invalidated : record.is_growing() ? State::entering : record.state.load());
    record.held.store(part.pack(), std::memory_order_release);
    record.set(Record::invalidated);
    vendor_is_to_be_told = true;  // in transit by the thread that calls it, which may be refused
  });
  return done ? std::optional(vendor_is_to_be_told) : std::nullopt;
}

/// Have the vendor unlock an invalidated region; false if it is not one, or has been unlocked. A refusal is not
/// reported; the region is then half unlocked.
inline bool PinnedMap::drain(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) {
  Record& record = table_.value(region.id);
  if (record.state.load(std::memory_order_relaxed) != State::invalidated) return false;
  try {
    unlock_last(guard, region, record);
  } catch (std::exception const&) {
    guard.unlock();  // before this error is destroyed, see `acquire`
  }
  if (!guard.owns_lock()) guard.lock();
  return true;
}

/// Whether no invalidated region shares a page with the range; otherwise has one unlocked, and must be called again. A
/// vendor that counts locks per page would count a new lock there together with one whose memory is gone.
inline bool PinnedMap::drain_beside(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size) {
  if (invalidated_count_.load(std::memory_order_relaxed) == 0) return true;
  Address const page = static_cast<Address>(sysconf(_SC_PAGESIZE));
  Address const start = std::max(ptr & -page, Address{1}), last = (ptr + (size - 1)) | (page - 1);
  for (auto const& region : table_.overlapping(start, last - start + 1)) {
    Record const& record = table_.value(region.id);
    if (record.is_invalidated() && record.state.load(std::memory_order_relaxed) == State::leaving) {
      state_changed_.wait(guard);
    } else if (!drain(guard, region)) {
      continue;
    }
    return false;
  }
  return true;
}

/// The part of a region's memory that is gone.
inline std::optional<Span> PinnedMap::invalidated_part(Address start, Record const& record) noexcept {
  if (!record.is_invalidated()) return std::nullopt;
  return Pages::unpack(record.held.load(std::memory_order_relaxed)).of_region(start);
}

inline void PinnedMap::refuse_invalidated(Address ptr, std::uint64_t size) {
  throw InvalidRange("the memory of " + describe(ptr, size) +
                     " has been unmapped, discarded or replaced while it was being locked; lock what is there now");
}

}  // namespace pinning
