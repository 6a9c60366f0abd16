// SPDX-License-Identifier: Apache-2.0
// The pages that this process has locked by mlock, which works on whole pages and does not nest: one munlock undoes every
// mlock of a page. So the locks of each page are counted, and a page is unlocked when its last one goes.
#pragma once

#include <array>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <pinning/locker.hpp>
#include <set>

namespace pinning {

/// A change of a range waits for a change of the same pages to end, and for no other. The kernel is called without the
/// mutex, and what is counted changes only after it has done its part. No memory is allocated or freed under the mutex: a
/// program's allocator may give pages back, which a tool may want to unlock first.
class PageLocks {
 public:
  struct Range {
    Address start;
    std::uint64_t size;
    friend auto operator<=>(Range const&, Range const&) = default;
  };

  /// Locks the pages of a range once more; ranges may overlap in any way. Throws VendorError, or LockLimit where
  /// RLIMIT_MEMLOCK is in the way; then nothing has changed.
  void lock(Range range);

  /// Undoes one `lock` of a range that starts at `ptr`, of several the smallest: what stays covers whoever is left.
  /// Throws NotLocked, or VendorError, after which all of it is still locked. Pages in `gone` took their lock with them
  /// when they were unmapped: what is there now is not touched.
  void unlock(Address ptr, Span gone = {});

  /// Counts one lock of a range less, whose pages are about to be unmapped, which unlocks them.
  void forget(Range range);

  /// The largest range locked that holds the byte at `ptr`.
  std::optional<Range> around(Address ptr);

 private:
  struct Pages {
    Address start, end;
  };
  /// From its address on up to the next one `locks` ranges hold each page. It stays while a range begins or ends there,
  /// so that none is ever missing when a range goes.
  struct Step {
    unsigned locks = 0, borders = 0;
  };
  using Steps = std::map<Address, Step>;
  using Held = std::multiset<Range>;
  /// What a range takes of the account, made before the kernel is called and given back after all is done.
  struct Entry {
    Held::node_type range;
    Steps::node_type start, end;
  };
  class Change;

  static Pages pages_of(Range range);
  static Entry entry_for(Range range, Pages pages);
  Held& ranges_like(std::uint64_t size);

  // With the mutex:
  void count(Entry& entry, Pages pages);
  void uncount(Entry& entry, Pages pages);
  Steps::iterator step_at(Address address, Steps::node_type& spare);
  void drop_border(Address address, Steps::node_type& dropped);
  std::optional<Pages> next_run(Address from, Address end, unsigned locks) const;
  Held::node_type take(Address ptr);

  /// Calls `act` with each run of pages that so many ranges hold, until one gives a code that is not 0.
  template <class Act>
  int each_run(Pages pages, unsigned locks, Act&& act);

  std::mutex mutex_;
  std::condition_variable changed_;
  Change* changing_ = nullptr;
  Steps steps_;
  /// The ranges locked, by the bit width of their sizes: so those around an address are found by looking at a few places
  /// of each, the larger ones first.
  std::array<Held, 65> held_;
};

}  // namespace pinning
