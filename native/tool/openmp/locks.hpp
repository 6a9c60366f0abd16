// SPDX-License-Identifier: Apache-2.0
// The locks that the tool holds for one vendor's devices. They never overlap, and no transfer crosses the border of
// one: it lies inside one lock, or outside all, or the locks in its way are released first.
//
// One mutex guards everything, and each decision is one step while it is held: which locks are released, what is locked
// in their place, and that both the budget and the transfers in progress allow it. It is held during no call of a
// vendor or of the loader, which have locks under which other threads free memory. Ranges being locked are in
// `incoming_` meanwhile, and locks being released are `leaving`; a thread that meets one waits for the outcome.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <pinning/watcher.hpp>
#include <ranges>
#include <span>
#include <string>
#include <vector>

#include "../journal.hpp"
#include "../policy.hpp"
#include "devices.hpp"
#include "mappings.hpp"

namespace pinning::tool::openmp {

/// State that the locks of all vendors share.
struct Context {
  Policy policy;
  bool frees_seen = false;  // by hooks.cpp, whose functions the program calls only if they were loaded first
  Journal journal;
  std::mutex mutex;
  struct Sum {
    std::size_t bytes = 0, locks = 0;

    void operator+=(Range const& lock) noexcept { bytes += lock.size(), locks++; }
    void operator-=(Range const& lock) noexcept { bytes -= lock.size(), locks--; }
  };
  Sum locked, leaving;  // guarded by the mutex; what is incoming or leaving counts as locked
  std::size_t most_locks = ~std::size_t{0};  // each may take two of the mappings that a process may have
};

class Locks : public InvalidationListener {
 public:
  explicit Locks(Context& context) : context_(context), mutex_(context.mutex) {}

  void mapped(int number, Range const& host, Address device_ptr);
  void unmapped(int number, Address device_ptr);
  void unmapped_host(int number, Address host);

  /// Called before a transfer is submitted: release locks that it crosses, and lock its buffer if that is due. Until
  /// `submitted`, no lock is made that it would cross, and its own is not released. Returns the lock that contains it.
  std::optional<Range> before_transfer(int number, Device& device, Range const& moved, Address device_ptr);
  void submitted(Range const& moved);

  /// Called before the memory is freed or its pages are replaced.
  void freed(Range const& range);
  /// Called after it is gone by a call that hooks.cpp does not see. Its locks are given up by the next call that meets
  /// them; libpinning's map makes the vendor calls.
  std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept override;
  void drain_invalidations() override {}
  bool may_have(Address ptr, std::uint64_t size) const noexcept override { return may_meet({ptr, ptr + size}); }
  /// False if no lock shares bytes with the range. Takes no mutex.
  bool may_meet(Range const& range) const noexcept {
    return range.start < high_.load(std::memory_order_acquire) && low_.load(std::memory_order_acquire) < range.end;
  }

  /// Lock a range that the program itself requests, whatever the budget. The lock stays until `unlock`, and may grow.
  pinning_status lock(Device& device, Range const& range, void** device_ptr);
  /// False if there is no such lock.
  bool unlock(Address ptr);

 private:
  struct Lock {
    Range range;
    Device* device = nullptr;
    Address device_ptr = 0;
    std::size_t mappings = 0, asked = 0;  // its users: mappings that meet it, and calls of `lock`
    std::size_t submitting = 0;  // transfers in it that are reported and not yet submitted
    std::size_t last_use = 0;
    bool listed = false;  // in `idle_`
    bool stays = false;  // also without users, until its memory is freed
    bool invalidated = false;  // its memory is gone
    bool leaving = false;
    bool unlocked = false;  // for the unlocking thread only
    bool orphaned = false;  // released while a transfer in it was being submitted: that thread erases it

    bool idle() const noexcept { return mappings == 0 && asked == 0 && !leaving; }
  };
  using Table = std::map<Address, Lock>;  // by start
  using Run = std::ranges::subrange<Table::iterator>;
  using Entries = std::span<Table::iterator const>;
  using Guard = std::unique_lock<std::mutex>;

  /// What to lock, or what to clear for a transfer.
  struct Request {
    Device& device;
    Range moved;            // by a transfer, or to be locked for the program
    Range buffer;           // to be locked; empty if only the way of a transfer is to be cleared
    std::size_t asked = 0;  // calls of `lock`

    Range whole() const noexcept { return buffer.empty() ? moved : around(moved, buffer); }
  };
  /// Why something is not locked. If the reason `passes`, the next transfer tries again, otherwise a later one; and
  /// only `fails` ends a program for which locks are mandatory.
  enum class Kind { none, passes, rule, fails };
  struct Refusal {
    Kind kind = Kind::none;
    std::string why;
  };
  /// A decision: unlock the outgoing locks, which are in the way or idle, then lock `target`, which contains all that
  /// are in the way, unless it is empty.
  struct Plan {
    std::vector<Table::iterator> outgoing;  // those in the way, then idle ones
    std::size_t in_the_way = 0;
    Range target;
    Refusal refusal;
  };
  struct Incoming {
    Range range;
    bool invalidated = false;  // its memory is already gone
  };
  /// A lock, or why there is none.
  struct Outcome {
    Lock* lock = nullptr;
    Refusal refusal;
  };

  Guard entered();
  Run meeting(Range const& range) noexcept;
  Run settled(Guard& guard, Range const& range);
  static Lock* holding(Run const& met, Range const& range) noexcept;
  Range widened(Range range) noexcept;
  Range due(int number, Range const& moved, Address device_ptr);
  Outcome replace(Guard& guard, Request const& request);
  Plan decide(Request const& request);
  bool make_room(Plan& plan, Range const& target);
  Outcome make(Guard& guard, Request const& request, Plan const& plan);
  bool drop(Guard& guard, Entries entries, char const* why);
  void begin_leaving(Entries entries) noexcept;
  bool unlock(Entries entries, char const* why) noexcept;
  void end_leaving(Entries entries) noexcept;
  bool vendor_locks(Lock& lock, bool needed, Refusal& refusal) noexcept;
  bool vendor_unlocks(Lock const& lock, char const* why) noexcept;
  void release(Guard& guard, Range const& host);
  void forget(Range const& host) noexcept;
  void refuse(Device& device, Range const& range, Refusal const& refusal);
  void list(Lock& lock, bool used = false) noexcept;
  void changed() noexcept;

  Context& context_;
  std::mutex& mutex_;
  std::condition_variable settled_;
  std::once_flag listens_;  // to invalidations
  Table table_;
  std::list<Incoming> incoming_;  // ranges being locked
  std::map<std::size_t, Lock*> idle_;  // locks without users, by last use
  Mappings mappings_;
  std::vector<Range> moving_;  // transfers that are being submitted
  inline static thread_local Lock* submits_in_ = nullptr;  // the lock of this thread's own transfer
  std::size_t uses_ = 0;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all locks: ranges outside need no mutex
};

}  // namespace pinning::tool::openmp
