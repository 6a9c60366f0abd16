// SPDX-License-Identifier: Apache-2.0
// The pages that this process has locked by mlock, which works on whole pages and does not nest: one munlock undoes all
// mlocks of a page. So the locks of each page are counted, and a page is unlocked with its last lock.
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

/// A change of a range waits only for changes of the same pages. The kernel is called without the mutex, and the counts
/// change only after the call. No memory is allocated or freed under the mutex: the program's allocator may return
/// pages to the kernel, which a tool may first want to unlock.
///
/// Memory that moves stays locked by mlock: the next `lock`, or the watcher's thread, unlocks it at its new address.
class PageLocks : private InvalidationListener {
 public:
  struct Range {
    Address start;
    std::uint64_t size;
    friend auto operator<=>(Range const&, Range const&) = default;
  };

  /// Adds a lock to the pages of a range; ranges may overlap in any way. Throws VendorError, or LockLimit if
  /// RLIMIT_MEMLOCK is too low; then nothing has changed.
  void lock(Range range);

  /// Undoes one `lock` of a range that starts at `ptr`, the smallest of several: the remaining pages cover the others.
  /// Throws NotLocked, or VendorError, after which the whole range is still locked. Pages in `gone` were unlocked when
  /// they were unmapped: whatever is mapped there now is left alone.
  void unlock(Address ptr, Span gone = {});

  /// Removes one lock of a range from the counts; the caller is about to unmap its pages, which unlocks them.
  void forget(Range range);

  /// The largest locked range that contains the byte at `ptr`.
  std::optional<Range> around(Address ptr);

  ~PageLocks() override;

  /// Unlocks memory that has moved, at its new address.
  void drain_invalidations() override;

 private:
  struct Pages {
    Address start, end;
    friend bool operator==(Pages const&, Pages const&) = default;
  };
  struct Moved {
    Pages pages;
    bool grows;  // it ends where the moved memory ended, and the move may have extended that
    std::uint64_t serial;  // of the move: another may have the same addresses
    friend bool operator==(Moved const&, Moved const&) = default;
  };
  struct Locks {
    unsigned all, live;  // with and without those of `gone_`
  };
  /// Each page from this step's address up to the next step is in `locks` ranges. A step exists while a range begins or
  /// ends there (`borders`), so that removing a range always finds its steps.
  struct Step {
    Locks locks{};
    unsigned borders = 0;
  };
  using Steps = std::map<Address, Step>;
  using Held = std::multiset<Range>;
  /// The nodes of one range in `held_` and `steps_`, allocated before the kernel is called and freed after everything.
  struct Entry {
    Held::node_type range;
    Steps::node_type start, end;
  };
  class Change;

  std::optional<bool> try_move(Address ptr, std::uint64_t size, Address to) noexcept override;
  std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept override;
  void will_invalidate(Address ptr, std::uint64_t size) noexcept override;
  bool may_have(Address, std::uint64_t) const noexcept override { return true; }

  void listen();
  void unlock_moved(Moved const& moved);

  static Pages pages_of(Range range);
  static Entry entry_for(Range range, Pages pages);
  Held& ranges_like(std::uint64_t size);

  // With the mutex held:
  void count(Entry& entry, Pages pages);
  void uncount(Entry& entry, Pages pages, bool is_gone = false);
  Steps::iterator step_at(Address address, Steps::node_type& spare);
  void drop_border(Address address, Steps::node_type& dropped);
  template <class Wanted>
  std::optional<Pages> next_run(Address from, Address end, Wanted&& wanted) const;
  static bool take(Held& held, Address ptr, Entry& entry);

  /// Calls `act` with each run of pages whose number of locks satisfies `wanted`, until `act` returns a code that is
  /// not 0. Returns that code, or 0.
  template <class Wanted, class Act>
  int each_run(Pages pages, Wanted&& wanted, Act&& act);

  std::mutex mutex_;
  std::condition_variable changed_;
  Change* changing_ = nullptr;
  Steps steps_;
  /// The locked ranges, by the bit width of their sizes: finding those around an address takes a few looks at each set,
  /// the larger sizes first.
  std::array<Held, 65> held_;
  /// Ranges of which some memory is gone, until they are unlocked: they keep no page locked from locks of new memory.
  Held gone_;
  /// The new addresses of pages that moved while locked. Pages for which there is no room here stay locked.
  std::array<Moved, 256> moved_;
  std::size_t moved_count_ = 0;
  std::uint64_t moves_ = 0;
  std::atomic<bool> any_moved_ = false;
  std::atomic<bool> listens_ = false;
};

}  // namespace pinning
