// SPDX-License-Identifier: Apache-2.0
// The locks that the tool holds for one vendor's devices. They never overlap, and no transfer crosses one: it lies in
// one lock, or clear of all, or those in its way go first.
//
// `mutex_` guards all of it and is held during no call of a vendor or of the loader, under whose locks others free: a
// lock that is being made or undone is `changing` meanwhile, and whoever meets it waits for the outcome.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "devices.hpp"
#include "journal.hpp"
#include "mappings.hpp"
#include "policy.hpp"
#include "stacks.hpp"

namespace pinning::omp {

/// What all vendors' locks share.
struct Context {
  Policy policy;
  bool frees_seen = false;  // by the functions of hooks.cpp, which are the program's only where they were loaded first
  Journal journal;
  Stacks stacks;
  std::atomic<std::size_t> locked_bytes = 0;
};

class Locks {
 public:
  explicit Locks(Context& context) : context_(context) {}

  void mapped(int number, Range const& host, Address device_ptr);
  void unmapped(int number, Address device_ptr);
  void unmapped_host(int number, Address host);

  /// Before a transfer is submitted: makes way for it, and locks its buffer if that is due.
  struct Transfer {
    std::optional<Range> lock;  // that it lies in
    bool watched = false;       // until `submitted`, no lock is made that it would cross, and its own does not go
  };
  Transfer before_transfer(int number, Device& device, Range const& moved, Address device_ptr);
  /// Afterwards, where it is watched.
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
    bool changing = true;
    bool gone = false;  // unlocked, while a transfer in it was being submitted
    bool stays = false;  // without anyone who needs it, until its memory is freed

    bool idle() const noexcept { return mappings == 0 && asked == 0 && !changing; }
  };
  using Table = std::map<Address, Lock>;  // by start
  using Some = std::vector<Table::iterator>;
  using Guard = std::unique_lock<std::mutex>;

  Some meeting(Range const& range);
  Lock* holding(Range const& range);
  void settle(Guard& guard, Range const& range);
  Range due(int number, Range const& moved, Address device_ptr);
  Lock* replace(Guard& guard, Device& device, Range const& moved, Range const& wanted, std::size_t asked,
                std::string& why);
  Range widened(Range range);
  bool make_room(Some& go, std::size_t size, std::size_t budget);
  Lock* make(Guard& guard, Device& device, Range const& range, std::size_t asked, std::string& why);
  bool drop(Guard& guard, Some const& which, char const* why);
  void release(Guard& guard, Range const& host);
  void refuse(Device& device, Range const& range, std::string const& why);
  void changed();

  Context& context_;
  std::mutex mutex_;
  std::condition_variable settled_;
  Table table_;
  Mappings mappings_;
  std::vector<Range> moving_;  // what is watched
  inline static thread_local Lock* submits_in_ = nullptr;  // this thread's own transfer
  std::size_t uses_ = 0, bytes_ = 0;
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all locks: what lies outside needs no mutex
};

}  // namespace pinning::omp
