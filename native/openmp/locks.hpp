// SPDX-License-Identifier: Apache-2.0
// The locks that the tool holds for one vendor's devices. They never overlap, and no transfer crosses one: it lies in
// one lock, or clear of all, or those in its way go first.
//
// One mutex guards all of it, and what is to be done is decided in one step under it: which locks go, what is locked in
// their place, and that both the budget and the transfers under way allow that. It is held during no call of a vendor or
// of the loader, under whose locks others free: a lock that is being made or undone is `changing` meanwhile, and whoever
// meets it waits for the outcome.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
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
  std::size_t locked_bytes = 0, locks = 0;  // under the mutex; what is being locked counts
  std::size_t most_locks = ~std::size_t{0};  // each may take two of the mappings that a process may have
};

class Locks {
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
    std::size_t mappings = 0, asked = 0;  // who needs it: mappings that meet it, and calls of `lock`
    std::size_t submitting = 0;  // transfers in it that are told and not yet submitted
    std::size_t last_use = 0;
    bool listed = false;  // in `idle_`
    bool changing = true;
    bool gone = false;  // unlocked, while a transfer in it was being submitted
    bool stays = false;  // without anyone who needs it, until its memory is freed

    bool idle() const noexcept { return mappings == 0 && asked == 0 && !changing; }
  };
  using Table = std::map<Address, Lock>;  // by start
  using Some = std::vector<Table::iterator>;
  using Guard = std::unique_lock<std::mutex>;

  /// Who wants that.
  struct Wish {
    Device& device;
    Range moved;            // by a transfer, or to be locked for the program
    Range buffer;           // to be locked; empty where a transfer just needs its way
    std::size_t asked = 0;  // calls of `lock`
  };
  /// Why something is not locked. What passes by itself is tried again at the next transfer, all else more seldom; and
  /// only what fails ends a program for which locks are mandatory.
  enum class Kind { none, passes, rule, fails };
  struct Refusal {
    Kind kind = Kind::none;
    std::string why;
  };
  /// What is to be done: all that is in the way goes, and what is idle goes to make room; then `target`, which is around
  /// all that is in the way, is locked, unless it is empty.
  struct Plan {
    Some in_the_way, idle;
    Range target;
    Refusal refusal;
  };

  Some meeting(Range const& range);
  Lock* holding(Range const& range);
  bool meets(Range const& range) noexcept;
  void settle(Guard& guard, Range const& range);
  Range due(int number, Range const& moved, Address device_ptr);
  Lock* replace(Guard& guard, Wish const& wish, Refusal& refusal);
  Plan decide(Wish const& wish);
  Range widened(Range range);
  bool make_room(Plan& plan);
  Lock* make(Guard& guard, Wish const& wish, Plan const& plan, Refusal& refusal);
  bool vendor_locks(Lock& lock, bool needed, Refusal& refusal) noexcept;
  bool vendor_unlocks(Lock const& lock, char const* why) noexcept;
  bool drop(Guard& guard, Some const& which, char const* why);
  void release(Guard& guard, Range const& host);
  void forget(Range const& host) noexcept;
  void refuse(Device& device, Range const& range, Refusal const& refusal);
  void list(Lock& lock, bool used = false) noexcept;
  void count(Lock const& lock, bool comes) noexcept;
  void changed() noexcept;

  Context& context_;
  std::mutex& mutex_;
  std::condition_variable settled_;
  Table table_;
  std::map<std::size_t, Lock*> idle_;  // those that nobody needs, by their last use
  Mappings mappings_;
  std::vector<Range> moving_;  // transfers that are being submitted
  inline static thread_local Lock* submits_in_ = nullptr;  // this thread's own transfer
  std::size_t uses_ = 0;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all locks: what lies outside needs no mutex
};

}  // namespace pinning::omp
