// SPDX-License-Identifier: Apache-2.0
// Memory that is unmapped, moved or discarded while somebody relies on it: who hears of it, and who tells.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>

#include "locker.hpp"

namespace pinning {

/// Who relies on memory that may leave: a map.
class Tenant {
 public:
  virtual ~Tenant() = default;

  /// The memory has gone. Called by a thread that must wait for nobody: it neither allocates nor frees memory, and takes
  /// a lock only where nobody has it. Nothing where it could not, and is to be called again; else whether `undo_left` is
  /// to be called.
  virtual std::optional<bool> try_left(Address ptr, std::uint64_t size) noexcept = 0;

  /// The memory has moved to `to`. Called before any tenant is told that it has left, likewise.
  virtual std::optional<bool> try_moved([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size,
                                        [[maybe_unused]] Address to) noexcept {
    return false;
  }

  /// The memory is about to leave, by a call of this thread that may still be refused, or move it. Waits for nobody who could
  /// wait for the caller, and neither allocates nor frees.
  virtual void about_to_leave([[maybe_unused]] Address ptr, [[maybe_unused]] std::uint64_t size) noexcept {}

  /// Whether it relies on some of this memory: it may say so where it does not, never the reverse. Takes no lock.
  virtual bool may_have(Address ptr, std::uint64_t size) const noexcept = 0;

  /// Does what may take long. Called by another thread of the watcher's, if at all.
  virtual void undo_left() = 0;

 private:
  friend class Watch;
  std::atomic<Tenant*> next_ = nullptr;
  bool undone_by_thread_ = false;
  bool undoing_ = false;
};

/// Tells tenants which memory leaves.
class Watcher {
 public:
  virtual ~Watcher() = default;

  /// `undone_by_thread`: whether a thread of the watcher's calls `undo_left`. Else nobody does.
  virtual void add(Tenant& tenant, bool undone_by_thread) noexcept = 0;
  /// Nothing of it is called any more once this returns; waits for an `undo_left` that is under way.
  virtual void remove(Tenant& tenant) noexcept = 0;

  /// From now on all tenants hear when some of this memory leaves; false where that cannot be had. Counted.
  virtual bool watch(Address ptr, std::uint64_t size) noexcept = 0;
  /// Undoes one `watch`, whatever is there by now.
  virtual void unwatch(Address ptr, std::uint64_t size) noexcept = 0;

  /// Who sees the program's own calls by which memory leaves says so, once, and calls `leaves` before each from then on.
  virtual void hear_of_calls() noexcept = 0;
  bool hears_of_calls() const noexcept { return hears_of_calls_.load(std::memory_order_relaxed); }
  /// This memory is about to leave: once it returns no tenant relies on it, or all wait until they do not. Waits for nobody
  /// who could wait for the caller, and neither allocates nor frees.
  virtual void leaves(Address ptr, std::uint64_t size) noexcept = 0;
  /// Whether `watch` was ever called.
  bool was_asked() const noexcept { return high_.load(std::memory_order_relaxed) != 0; }
  /// False where nothing in [start, end) was ever watched: a quick look before that.
  bool may_meet(Address start, Address end) const noexcept {
    return start < high_.load(std::memory_order_relaxed) && low_.load(std::memory_order_relaxed) < end;
  }

  /// Whether the tenants are still to hear of something that has left: by then the call that made it leave may be over.
  bool unheard() const noexcept { return unheard_.load(std::memory_order_seq_cst) != 0; }

  /// Whether the tenants have heard of all that has left by now, also by a call of another thread that is not over, after
  /// which somebody else may already have the addresses.
  virtual bool settled() noexcept = 0;

  /// Why `watch` watches nothing, and the kernel does not tell; empty where it does.
  virtual std::string problem() = 0;

 protected:
  std::atomic<std::uint32_t> unheard_ = 0;  // how many are telling what has left
  std::atomic<bool> hears_of_calls_ = false;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all that was ever to be watched
};

/// The watcher of this process.
PINNING_API Watcher& process_watcher();

}  // namespace pinning
