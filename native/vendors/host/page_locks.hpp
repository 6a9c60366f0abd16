// SPDX-License-Identifier: Apache-2.0
// The pages that this process has locked by mlock, which works on whole pages and does not nest: one munlock undoes every
// mlock of a page. So the locks of each page are counted, and a page is unlocked when its last one goes.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <pinning/locker.hpp>
#include <pinning/watcher.hpp>
#include <set>

namespace pinning {

/// A change of a range waits for a change of the same pages to end, and for no other. The kernel is called without the
/// mutex, and what is counted changes only after it has done its part. No memory is allocated or freed under the mutex: a
/// program's allocator may give pages back, which a tool may want to unlock first.
///
/// Memory that moves takes mlock's lock along: there it is unlocked by the next lock, or by the watcher's thread.
class PageLocks : private InvalidationListener {
 public:
  struct Range {
    Address start;
    std::uint64_t size;
    friend auto operator<=>(Range const&, Range const&) = default;
  };

  /// Locks the pages of a range once more; ranges may overlap in any way. Throws VendorError, or LockLimit where
  /// RLIMIT_MEMLOCK is in the way; then nothing has changed.
  void lock(Range range);

  /// Undoes one `lock` of a range that starts at `ptr`, of several the smallest: what stays covers the others.
  /// Throws NotLocked, or VendorError, after which all of it is still locked. Pages in `gone` took their lock with them
  /// when they were unmapped: what is there now is not touched.
  void unlock(Address ptr, Span gone = {});

  /// Counts one lock of a range less, whose pages are about to be unmapped, which unlocks them.
  void forget(Range range);

  /// The largest range locked that holds the byte at `ptr`.
  std::optional<Range> around(Address ptr);

  ~PageLocks() override;

  /// Unlocks what has moved, where it is now.
  void drain_invalidations() override;

 private:
  struct Pages {
    Address start, end;
    friend bool operator==(Pages const&, Pages const&) = default;
  };
  struct Moved {
    Pages pages;
    bool grows;  // up to the end of what moved with it, behind which there may be more
    std::uint64_t serial;  // of the move: another one may have the same addresses
    friend bool operator==(Moved const&, Moved const&) = default;
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

  std::optional<bool> try_move(Address ptr, std::uint64_t size, Address to) noexcept override;
  std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept override;
  void will_invalidate(Address ptr, std::uint64_t size) noexcept override;
  bool may_have(Address, std::uint64_t) const noexcept override { return false; }  // it hears of calls before they are made

  void listen();
  void unlock_moved(Moved const& moved);

  static Pages pages_of(Range range);
  static Entry entry_for(Range range, Pages pages);
  Held& ranges_like(std::uint64_t size);

  // With the mutex:
  void count(Entry& entry, Pages pages);
  void uncount(Entry& entry, Pages pages);
  Steps::iterator step_at(Address address, Steps::node_type& spare);
  void drop_border(Address address, Steps::node_type& dropped);
  template <class Wanted>
  std::optional<Pages> next_run(Address from, Address end, Wanted&& wanted) const;
  Held::node_type take(Address ptr);
  /// The largest range that shares bytes with this one.
  std::optional<Range> meeting(Address ptr, std::uint64_t size) const;

  /// Calls `act` with each run of pages of which `wanted` says so by how many ranges hold them, until one gives a code that
  /// is not 0.
  template <class Wanted, class Act>
  int each_run(Pages pages, Wanted&& wanted, Act&& act);

  std::mutex mutex_;
  std::condition_variable changed_;
  Change* changing_ = nullptr;
  Steps steps_;
  /// The ranges locked, by the bit width of their sizes: so those around an address are found by looking at a few places
  /// of each, the larger ones first.
  std::array<Held, 65> held_;
  /// Where pages are by now that were locked as they moved. What finds no room here stays locked.
  std::array<Moved, 256> moved_;
  std::size_t moved_count_ = 0;
  std::uint64_t moves_ = 0;
  std::atomic<bool> any_moved_ = false;
  std::atomic<bool> listens_ = false;
};

}  // namespace pinning
