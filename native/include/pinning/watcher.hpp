// SPDX-License-Identifier: Apache-2.0
// Invalidation: what relies on memory is told when it is unmapped, moved or discarded.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "locker.hpp"

namespace pinning {

/// What relies on memory and must know when it is unmapped, moved or discarded: a map.
class InvalidationListener {
 public:
  virtual ~InvalidationListener() = default;

  /// The memory has gone. The calling thread must not wait: this neither allocates nor frees memory, and takes a mutex only
  /// where that is free. Nothing where it could not, and is to be called again; else whether `drain_invalidations` is to
  /// be called.
  virtual std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept = 0;

  /// The memory has moved to `to`. Called before `try_invalidate` of any listener, under the same rules.
  virtual std::optional<bool> try_move([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size,
                                       [[maybe_unused]] Address to) noexcept {
    return false;
  }

  /// The memory is about to go, by a call of this thread that may still be refused, or move it. Waits for no thread that
  /// could wait for the caller, and neither allocates nor frees.
  virtual void will_invalidate([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size) noexcept {}

  /// Whether it relies on some of this memory: it may say so where it does not, never the reverse. Takes no lock.
  virtual bool may_have(Address ptr, std::uint64_t size) const noexcept = 0;

  /// The part of the work that may take long. Called by another thread of the watcher's, if at all.
  virtual void drain_invalidations() = 0;

 private:
  friend class Watch;
  std::atomic<InvalidationListener*> next_ = nullptr;
  bool drained_by_thread_ = false;
  bool draining_ = false;
};

/// Tells listeners which memory goes.
class Watcher {
 public:
  virtual ~Watcher() = default;

  /// `drained_by_thread`: whether a thread of the watcher's calls `drain_invalidations`; else none does.
  virtual void add(InvalidationListener& listener, bool drained_by_thread) noexcept = 0;
  /// Nothing of it is called any more once this returns; waits for an `drain_invalidations` that is under way.
  virtual void remove(InvalidationListener& listener) noexcept = 0;

  /// From now on listeners are told when some of this memory goes; false where the kernel cannot tell. Counted.
  virtual bool watch(Address ptr, std::uint64_t size) noexcept = 0;
  /// Undoes one `watch`, whatever is there by now.
  virtual void unwatch(Address ptr, std::uint64_t size) noexcept = 0;

  /// Code that intercepts the program's own calls that take memory away says so once, and calls `invalidate` before each
  /// from then on.
  virtual void hear_of_calls() noexcept = 0;
  bool hears_of_calls() const noexcept { return hears_of_calls_.load(std::memory_order_relaxed); }
  /// This memory is about to go: once it returns no listener relies on it, or all wait until they do not. Waits for no
  /// thread that could wait for the caller, and neither allocates nor frees.
  virtual void invalidate(Address ptr, std::uint64_t size) noexcept = 0;
  /// Whether `watch` was ever called.
  bool was_asked() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }
  /// False where nothing in [start, end) was ever watched: a quick look before that.
  bool may_meet(Address start, Address end) const noexcept {
    return start < high_.load(std::memory_order_relaxed) && low_.load(std::memory_order_relaxed) < end;
  }

  /// Whether listeners are still to be told of memory that has gone: the call that took it away may be over by then.
  bool has_pending() const noexcept { return pending_.load(std::memory_order_seq_cst) != 0; }

  /// Whether listeners have been told of all that has gone by now, also by a call of another thread that is not over but
  /// whose addresses may already be in use again.
  virtual bool settled() noexcept = 0;

  /// Why `watch` watches nothing, and the kernel does not tell; empty where it does.
  virtual std::string problem() = 0;

 protected:
  std::atomic<std::uint32_t> pending_ = 0;  // threads that are telling listeners
  std::atomic<bool> hears_of_calls_ = false;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all that was ever to be watched
};

/// The watcher of this process.
PINNING_API Watcher& process_watcher();

}  // namespace pinning
