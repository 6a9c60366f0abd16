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

  /// Does what may take long. Called by another thread of the watcher's, if at all.
  virtual void undo_left() = 0;

 private:
  friend class Watch;
  Tenant* next_ = nullptr;
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

  /// Whether the tenants are still to hear of something that has left: by then the call that made it leave may be over.
  bool unheard() const noexcept { return unheard_.load(std::memory_order_seq_cst); }

  /// Whether the tenants have heard of all that has left by now, also by a call of another thread that is not over, after
  /// which somebody else may already have the addresses.
  virtual bool settled() noexcept = 0;

  /// Why `watch` watches nothing; empty where it does.
  virtual std::string problem() = 0;

 protected:
  std::atomic<bool> unheard_ = false;
};

/// The watcher of this process.
PINNING_API Watcher& process_watcher();

}  // namespace pinning
