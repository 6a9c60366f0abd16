// SPDX-License-Identifier: Apache-2.0
// Invalidation: listeners are notified when memory on which they rely is unmapped, moved or discarded.
#pragma once

#include <sched.h>

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "locker.hpp"

namespace pinning {

/// An object that relies on memory and must know when it is unmapped, moved or discarded, such as a map.
class InvalidationListener {
 public:
  virtual ~InvalidationListener() = default;

  /// Handle memory that is gone. The calling thread must not wait: this neither allocates nor frees memory, and takes a
  /// mutex only if it is free. Nullopt if it was not, and this must be called again; otherwise whether
  /// `drain_invalidations` must be called.
  virtual std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept = 0;

  /// Handle memory that has moved to `to`. Called before `try_invalidate` of any listener, under the same rules. It
  /// stays watched there until the watcher has called `drain_invalidations` of the listeners for which it does that.
  virtual std::optional<bool> try_move([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size,
                                       [[maybe_unused]] Address to) noexcept {
    return false;
  }

  /// Handle pages that a call of this thread is about to remove or move, and that may still be refused. Waits for no
  /// thread that could wait for the caller, and neither allocates nor frees.
  virtual void will_invalidate([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size) noexcept {}

  /// Whether it may rely on some of this memory: false only if it surely does not. Takes no lock.
  virtual bool may_have(Address ptr, std::uint64_t size) const noexcept = 0;

  /// Do the part of the work that may take long. Called by another thread of the watcher, if at all.
  virtual void drain_invalidations() = 0;

 private:
  friend class Watch;
  std::atomic<InvalidationListener*> next_ = nullptr;
  bool drained_by_thread_ = false;
  bool draining_ = false;
};

/// Notifies listeners of memory that goes away: that is unmapped, moved or discarded.
class Watcher {
 public:
  virtual ~Watcher() = default;

  /// `drained_by_thread`: whether a thread of the watcher calls `drain_invalidations`; otherwise none does.
  virtual void add(InvalidationListener& listener, bool drained_by_thread) noexcept = 0;
  /// Remove a listener, which is not called any more once this returns. Waits for a `drain_invalidations` in progress.
  virtual void remove(InvalidationListener& listener) noexcept = 0;

  /// From now on notify listeners when some of this memory goes away; false if the kernel cannot report it. Counted.
  virtual bool watch(Address ptr, std::uint64_t size) noexcept = 0;
  /// Undo one `watch`, whatever is there by now.
  virtual void unwatch(Address ptr, std::uint64_t size) noexcept = 0;

  /// Called once by code that intercepts the program's own calls that take memory away, and that calls `invalidate`
  /// before each such call from then on.
  virtual void hear_of_calls() noexcept = 0;
  bool hears_of_calls() const noexcept { return hears_of_calls_.load(std::memory_order_relaxed); }
  /// Handle memory that is about to go away: once this returns, no listener relies on it, or `has_pending` makes
  /// lookups wait until none does. Waits for no thread that could wait for the caller, and neither allocates nor frees.
  virtual void invalidate(Address ptr, std::uint64_t size) noexcept = 0;
  /// Whether `watch` was ever called.
  bool was_asked() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }
  /// False if nothing in [start, end) was ever watched: a quick check before `invalidate`.
  bool may_meet(Address start, Address end) const noexcept {
    return start < high_.load(std::memory_order_relaxed) && low_.load(std::memory_order_relaxed) < end;
  }

  /// Whether listeners have yet to be notified of memory that is gone; the call that took it away may have returned.
  bool has_pending() const noexcept { return (pending_.load(std::memory_order_seq_cst) & (2 * batch - 1)) != 0; }

  /// Wait until they have been notified of what was pending when this was called, however much follows.
  void await_pending() const noexcept {
    if (!has_pending()) return;
    auto const now = [&] { return pending_.load(std::memory_order_seq_cst); };
    std::uint64_t const batches = now() / batch;
    while (batches % 2 != 0 && now() / batch == batches) sched_yield();
    while (now() % batch != 0) sched_yield();
  }

  /// Whether listeners have been notified of all memory that is gone by now, also by a call of another thread that has
  /// not returned but whose addresses may already be in use again.
  virtual bool is_quiet() noexcept = 0;
  /// Wait until that is so for the memory in [ptr, ptr + size), whatever happens to other memory.
  virtual void await_quiet(Address ptr, std::uint64_t size) noexcept = 0;

  /// The end of the pages from `start` on that the kernel watches though no `watch` asked for it: those that a move added
  /// to watched memory. Looked up page by page, because others may have split the mapping. `start`: none.
  virtual Address end_of_added(Address start) noexcept = 0;

  /// Why the kernel does not report what `watch` asks for; empty if it does.
  virtual std::string problem() = 0;

 protected:
  /// The number of ranges that are posted for a notification, and from bit 32 on how often the notification of a batch
  /// of events has begun or ended: odd while one is in progress.
  std::atomic<std::uint64_t> pending_ = 0;
  static constexpr std::uint64_t batch = std::uint64_t{1} << 32;
  std::atomic<bool> hears_of_calls_ = false;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all for which `watch` was ever called
};

PINNING_API Watcher& process_watcher();

}  // namespace pinning
