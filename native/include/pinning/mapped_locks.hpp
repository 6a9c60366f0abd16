// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "pinned_map.hpp"

namespace pinning {

/// Whether buffers are locked while a runtime has them mapped. Off: no, but memory that another owner has pinned is
/// entered. On: if possible. Mandatory: an error if impossible.
enum class LockMapped : std::uint8_t { off, on, mandatory };

/// The locks that a runtime takes by itself, on each buffer from its mapping to its unmapping. The rules are those of
/// LLVM's offload plugins, except that `unlock_unmapped` releases only a lock that `lock_mapped` of this pointer took.
///
/// Locks: `mutex_` guards the list, and is never held during a call that may wait.
class MappedLocks {
 public:
  /// `map` must outlive this. Locks that are left when this is destroyed stay.
  explicit MappedLocks(PinnedMap& map) : map_(map) {}

  /// For a buffer that is being mapped: count one more lock if a region holds it; otherwise enter what another owner
  /// has pinned; otherwise, unless off, lock it. Returns the device pointer, or nullopt if it is not locked.
  ///
  /// If mandatory, throws as `PinnedMap::lock`, and there is nothing to unlock. Otherwise a std::exception of the
  /// locker means "not locked". Always throws InvalidRange for an invalid range.
  std::optional<Address> lock_mapped(Address ptr, std::uint64_t size, LockMapped policy, LockOptions options = {},
                                     std::uint64_t piece = 0) {
    PinnedMap::check(ptr, size);
    Mapped one;  // made first: once the lock is taken nothing can fail
    std::optional<Hold>& hold = one.emplace(ptr, std::nullopt)->second;
    try {
      hold = map_.track(ptr, size, options);
      if (!hold && policy != LockMapped::off) hold = map_.lock(ptr, size, options, piece);
    } catch (std::exception const&) {
      if (policy == LockMapped::mandatory) throw;
    }
    auto const device_ptr = hold ? std::optional(hold->device_ptr) : std::nullopt;
    std::lock_guard const guard(mutex_);
    mapped_.merge(one);
    return device_ptr;
  }

  /// For a buffer that is being unmapped: undo one `lock_mapped` of this pointer, if one is left. Those that locked
  /// nothing are undone first, so that the buffer stays locked while another mapping needs it. Throws what the locker
  /// throws; then it can be called again.
  void unlock_unmapped(Address ptr) {
    Mapped::node_type one;
    {
      std::lock_guard const guard(mutex_);
      auto const [first, end] = mapped_.equal_range(ptr);
      if (first == end) return;
      auto const idle = std::find_if(first, end, [&](auto const& each) { return !locks(each.second); });
      one = mapped_.extract(idle != end ? idle : std::prev(end));
    }
    if (!one.mapped()) return;
    try {
      map_.unlock(*one.mapped());
    } catch (...) {
      std::lock_guard const guard(mutex_);
      mapped_.insert(std::move(one));
      throw;
    }
  }

 private:
  using Mapped = std::multimap<Address, std::optional<Hold>>;

  bool locks(std::optional<Hold> const& hold) const noexcept { return hold && map_.holds(*hold); }

  PinnedMap& map_;
  Mapped mapped_;  // one entry for each mapping, oldest first for each pointer; no hold if it locked nothing
  std::mutex mutex_;
};

}  // namespace pinning
