// SPDX-License-Identifier: Apache-2.0
// What the tool locks for one vendor's devices: a policy over the map of the process, which has the locks, and keeps
// those without a user registered within the budget, to be given back longest idle first.
//
// A lock is used by mappings, each from its first transfer in it until it ends; by transfers that no mapping contains,
// until they are submitted; and by calls of `lock`. No transfer crosses the border of a lock: it lies inside one, or
// outside all, or the locks in its way are released first.
//
// One mutex guards everything here. It is held during no call of a vendor or of the loader, which have locks under which
// other threads free memory: the ranges of such a call are in `changing_`, and a thread that meets one waits.
#pragma once

#include <atomic>
#include <condition_variable>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <pinning/shared_map.hpp>
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
  std::size_t most_locks = ~std::size_t{0};  // each may take two of the mappings that a process may have
  std::mutex mutex;
  std::vector<PinnedMap const*> maps;         // (mutex) of the vendors
  std::size_t coming_bytes = 0, coming = 0;  // (mutex) locks that are being made
};

class Locks {
 public:
  explicit Locks(Context& context) : context_(context), mutex_(context.mutex) {}

  void mapped(int number, Range const& host, Address device_ptr);
  void unmapped(int number, Address device_ptr);
  void unmapped_host(int number, Address host);

  /// Called before a transfer is submitted: release locks that it crosses, and lock its buffer if that is due. Until
  /// `submitted`, no lock is made that it would cross, and its own is not released. Returns the lock that contains it.
  std::optional<Range> before_transfer(int number, Device& device, Range const& moved, Address device_ptr);
  /// This thread's transfer is submitted.
  void submitted();

  /// Called before the memory is freed or its pages are replaced.
  void freed(Range const& range);
  /// False if no lock shares bytes with the range. Takes no mutex.
  bool may_meet(Range const& range) const noexcept {
    if (range.start >= high_.load(std::memory_order_acquire) || low_.load(std::memory_order_acquire) >= range.end) {
      return false;
    }
    PinnedMap const* const known = map();
    return are_changing_ != 0 || (known != nullptr && known->may_have(range.start, range.size()));
  }

  /// Lock a range that the program itself requests, whatever the budget, until `unlock`.
  pinning_status lock(Device& device, Range const& range, void** device_ptr);
  /// False if there is no such lock.
  bool unlock(Address ptr);

 private:
  using Guard = std::unique_lock<std::mutex>;

  /// A transfer that is being submitted.
  struct Transfer {
    Range moved;
    std::optional<Range> lock = {};  // that contains it
    Use use = {};                    // of that, unless a mapping has one
  };
  /// A lock that the program itself has requested.
  struct Requested {
    Range range;
    Hold hold;
  };
  /// Why something is not locked. If the reason `passes`, the next transfer tries again, otherwise a later one; and
  /// only `fails` ends a program for which locks are mandatory.
  enum class Kind { none, passes, rule, fails };
  struct Refusal {
    Kind kind = Kind::none;
    std::string why;
  };
  /// What is to be locked, and for which use.
  struct Request {
    Device& device;
    Range range;
    std::vector<Range> const& locks;  // the one that contains it, which gets one user more; otherwise none
    bool is_used;       // by a mapping or the program, so that its end is seen
    bool is_requested;  // by the program, whatever the budget
  };
  /// A lock, or why there is none.
  struct Outcome {
    std::optional<Hold> hold;
    Range lock;
    bool stays = false;  // also without a user, until its memory is freed
    Range made_room;     // where the locks start that were given back for it
    Refusal refusal;
  };

  PinnedMap* map() const noexcept {
    pinning_map* const known = map_;
    return known == nullptr ? nullptr : known->map;
  }
  pinning_map* opened(Device& device);

  void await(Guard& guard, Range const& range);
  bool is_changing(Range const& range) const noexcept;
  std::vector<Range> cleared(Guard& guard, Range const& range, bool requested_too);
  template <class Prepare, class Body>
  void change(Guard& guard, std::list<Range> ranges, Prepare&& prepare, Body&& body);
  std::vector<Range> locks_in(Guard& guard, Range const& range);
  void clear(Guard& guard, Range const& range, std::vector<Range> const& locks, char const* why);
  void retire(std::vector<Mapping> const& ended);
  void end(Guard& guard, std::vector<Mapping> const& ended);
  Outcome acquire(Guard& guard, Request const& request);
  bool make_room(std::size_t size, Outcome& outcome);
  bool release(Hold const& hold, bool keep) noexcept;
  bool give_back(Range const& lock) noexcept;

  std::optional<Range> enter(std::list<Transfer> transfer);
  Range due(Mapping const* mapping, Range const& moved);
  bool outlives_use() const noexcept { return context_.policy.until_freed && context_.frees_seen; }
  bool is_held(Mapping const* mapping) const;
  bool crosses_a_transfer(Range const& range) const noexcept;
  bool is_requested(std::vector<Range> const& locks) const noexcept;
  void forget_gone();
  void report_lost(std::vector<Range> const& locks, std::string const& why, Range const& beside = {});
  void refuse(Device& device, Range const& range, Refusal const& refusal);
  void note(Range const& lock, Device& device, Moment began);
  void note_ended(Range const& in, char const* why, Moment began);

  Context& context_;
  std::mutex& mutex_;
  std::condition_variable changed_;
  std::atomic<pinning_map*> map_ = nullptr;  // of the first device that locks
  std::list<Range> changing_;              // being locked, or given back
  std::atomic<std::size_t> are_changing_ = 0;
  Mappings mappings_;
  std::list<Transfer> transfers_;
  std::list<Requested> requested_;
  std::vector<Hold> unused_;  // to be released; those that the vendor has refused, when something meets them
  struct Noted {
    Range lock;
    Device* device;
  };
  std::map<Address, Noted> noted_;  // in the journal as locked, by start
  std::atomic<Address> low_ = ~Address{0}, high_ = 0;  // around all that was ever locked: ranges outside need no mutex
  static constinit inline thread_local Transfer* submits_ = nullptr;  // this thread's own transfer
};

}  // namespace pinning::tool::openmp
