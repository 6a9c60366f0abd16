// SPDX-License-Identifier: Apache-2.0
// The locks that the tool holds for one vendor's devices. They never overlap, and no transfer crosses one: it lies in
// one lock, or clear of all, or those in its way go first.
//
// One mutex guards all of it, and what is to be done is decided in one step under it: which locks go, what is locked in
// their place, and that both the budget and the transfers under way allow that. It is held during no call of a vendor or
// of the loader, under whose locks others free: what is locked meanwhile is `incoming_`, what is unlocked is `leaving`, and
// a thread that meets that waits for the outcome.
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

#include "devices.hpp"
#include "journal.hpp"
#include "mappings.hpp"
#include "policy.hpp"

namespace pinning::omp {

/// What all vendors' locks share.
struct Context {
  Policy policy;
  bool frees_seen = false;  // by the functions of hooks.cpp, which are the program's only where they were loaded first
  Journal journal;
  std::mutex mutex;
  struct Sum {
    std::size_t bytes = 0, locks = 0;

    void operator+=(Range const& lock) noexcept { bytes += lock.size(), locks++; }
    void operator-=(Range const& lock) noexcept { bytes -= lock.size(), locks--; }
  };
  Sum locked, leaving;  // under the mutex; what is coming or leaving counts as locked
  std::size_t most_locks = ~std::size_t{0};  // each may take two of the mappings that a process may have
};

class Locks : public InvalidationListener {
 public:
  explicit Locks(Context& context) : context_(context), mutex_(context.mutex) {}

  void mapped(int number, Range const& host, Address device_ptr);
  void unmapped(int number, Address device_ptr);
  void unmapped_host(int number, Address host);

  /// Before a transfer is submitted: makes way for it, and locks its buffer if that is due. Until `submitted`, no lock
  /// is made that it would cross, and its own does not go. Returns the lock that it lies in.
  std::optional<Range> before_transfer(int number, Device& device, Range const& moved, Address device_ptr);
  void submitted(Range const& moved);

  /// Before the memory goes, or gets other pages.
  void freed(Range const& range);
  /// After it has gone by a call that hooks.cpp does not see. Its locks are given up by the next call that meets them; the
  /// vendor is told by libpinning's map.
  std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept override;
  void drain_invalidations() override {}
  bool may_have(Address ptr, std::uint64_t size) const noexcept override { return may_meet({ptr, ptr + size}); }
  /// False where no lock shares bytes with the range. Takes no mutex.
  bool may_meet(Range const& range) const noexcept {
    return range.start < high_.load(std::memory_order_acquire) && low_.load(std::memory_order_acquire) < range.end;
  }

  /// What the program asks for itself, whatever the budget. It stays until it is given back, and may grow meanwhile.
  pinning_status lock(Device& device, Range const& range, void** device_ptr);
  /// False where there is no such lock.
  bool unlock(Address ptr);

 private:
  struct Lock {
    Range range;
    Device* device = nullptr;
    Address device_ptr = 0;
    std::size_t mappings = 0, asked = 0;  // its users: mappings that meet it, and calls of `lock`
    std::size_t submitting = 0;  // transfers in it that are told and not yet submitted
    std::size_t last_use = 0;
    bool listed = false;  // in `idle_`
    bool stays = false;  // without users, until its memory is freed
    bool invalidated = false;  // its memory has gone
    bool leaving = false;
    bool unlocked = false;  // for the unlocking thread alone
    bool orphaned = false;  // it ended while a transfer in it was being submitted: that thread erases it

    bool idle() const noexcept { return mappings == 0 && asked == 0 && !leaving; }
  };
  using Table = std::map<Address, Lock>;  // by start
  using Run = std::ranges::subrange<Table::iterator>;
  using Entries = std::span<Table::iterator const>;
  using Guard = std::unique_lock<std::mutex>;

  /// What is to be locked, or made way for.
  struct Request {
    Device& device;
    Range moved;            // by a transfer, or to be locked for the program
    Range buffer;           // to be locked; empty where a transfer just needs its way
    std::size_t asked = 0;  // calls of `lock`

    Range whole() const noexcept { return buffer.empty() ? moved : around(moved, buffer); }
  };
  /// Why something is not locked. What passes by itself is tried again at the next transfer, all else more seldom; and
  /// only what fails ends a program for which locks are mandatory.
  enum class Kind { none, passes, rule, fails };
  struct Refusal {
    Kind kind = Kind::none;
    std::string why;
  };
  /// What is to be done: the outgoing locks, which are in the way or idle, are unlocked; then `target`, which is around all
  /// that is in the way, is locked, unless it is empty.
  struct Plan {
    std::vector<Table::iterator> outgoing;  // what is in the way, then what is idle
    std::size_t in_the_way = 0;
    Range target;
    Refusal refusal;
  };
  struct Incoming {
    Range range;
    bool invalidated = false;  // already
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
  std::list<Incoming> incoming_;  // what is being locked
  std::map<std::size_t, Lock*> idle_;  // those without users, by their last use
  Mappings mappings_;
  std::vector<Range> moving_;  // transfers that are being submitted
  inline static thread_local Lock* submits_in_ = nullptr;  // this thread's own transfer
  std::size_t uses_ = 0;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all of them: what lies outside needs no mutex
};

}  // namespace pinning::omp
