// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "pinned_map.hpp"

namespace pinning {

/// Whether buffers are locked while a runtime has them mapped. Off: no, but what another owner has pinned is entered.
/// On: where it can be done. Mandatory: it is an error where it cannot.
enum class LockMapped : std::uint8_t { off, on, mandatory };

/// The locks that a runtime takes by itself, of each buffer from its mapping to its unmapping. The rules are those of
/// LLVM's offload plugins; but an `unlock_unmapped` gives up only what a `lock_mapped` of this pointer has locked.
///
/// Locks: `mutex_` guards the list, and is held during no call that may wait.
class MappedLocks {
 public:
  /// `map` must outlive this. What is left when this goes stays locked.
  explicit MappedLocks(PinnedMap& map) : map_(map) {}

  /// For a buffer that is being mapped: counts one more lock where a region holds it, else enters what another owner has
  /// pinned, else, unless off, locks it. The device pointer, or nothing where it is not locked.
  ///
  /// Where mandatory, throws as `PinnedMap::lock`, and there is nothing to unlock. Else what a locker throws of the
  /// kind std::exception means "not locked". InvalidRange for what is no range is thrown always.
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

  /// For a buffer that is being unmapped: undoes one `lock_mapped` of this pointer, if there is one left. Of several
  /// the ones that locked nothing go first, so that the buffer stays locked while any other mapping needs it. Throws
  /// what the locker throws; then it can be called again.
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
  Mapped mapped_;  // one entry for each mapping, oldest first for each pointer; without a hold where it locked nothing
  std::mutex mutex_;
};

}  // namespace pinning
