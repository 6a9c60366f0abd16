// SPDX-License-Identifier: Apache-2.0
#include "locks.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <ranges>
#include <utility>

#include "../output.hpp"
#include "../stacks.hpp"
#include "../uncancelled.hpp"
#include "drain.hpp"

namespace pinning::tool::openmp {

namespace {

/// Whether the range is a library's own memory, which dlclose unmaps unseen. Waits for a thread that loads a library.
bool is_of_a_library(Range const& range) {
  Dl_info object;
  link_map* owner = nullptr;
  if (dladdr1(pointer(range.start), &object, reinterpret_cast<void**>(&owner), RTLD_DL_LINKMAP) == 0) return false;
  return owner != _r_debug.r_map;  // the first of all is the program
}

std::string text(Range const& range) {
  char bounds[64];
  std::snprintf(bounds, sizeof bounds, "[%#zx, %#zx)", range.start, range.end);
  return bounds;
}

}  // namespace

void Locks::mapped(int number, Range const& host, Address device_ptr) {
  if (host.size() < context_.policy.min_bytes) return;
  Guard const guard = entered();
  for (auto const& replaced : mappings_.add(number, host, device_ptr)) forget(replaced);
  for (auto& [start, lock] : meeting(host)) {
    lock.mappings++;
    list(lock);
  }
}

void Locks::unmapped(int number, Address device_ptr) {
  Guard guard = entered();
  if (auto const host = mappings_.remove(number, device_ptr)) release(guard, *host);
}

void Locks::unmapped_host(int number, Address host) {
  Guard guard = entered();
  if (auto const range = mappings_.remove_host(number, host)) release(guard, *range);
}

std::optional<Range> Locks::before_transfer(int number, Device& device, Range const& moved, Address device_ptr) {
  Guard guard = entered();
  Run const met = settled(guard, moved);
  Outcome outcome{holding(met, moved), {}};
  moving_.push_back(moved);
  Range buffer;
  if (outcome.lock == nullptr) {
    try {
      buffer = due(number, moved, device_ptr);
      if (!buffer.empty() || !met.empty()) outcome = replace(guard, {device, moved, buffer});
    } catch (...) {
      if (!guard.owns_lock()) guard.lock();
      moving_.erase(std::ranges::find(moving_, moved));
      throw;
    }
    if (outcome.refusal.kind > Kind::passes) mappings_.refused(buffer);
  }
  if (outcome.lock == nullptr) {
    guard.unlock();
    if (outcome.refusal.kind != Kind::none) refuse(device, buffer.empty() ? moved : buffer, outcome.refusal);
    return std::nullopt;
  }
  list(*outcome.lock, true);
  outcome.lock->submitting++;
  submits_in_ = outcome.lock;
  return outcome.lock->range;
}

void Locks::submitted(Range const& moved) {
  Guard const guard(mutex_);
  moving_.erase(std::ranges::find(moving_, moved));
  if (Lock* const lock = std::exchange(submits_in_, nullptr)) {
    if (--lock->submitting == 0 && lock->orphaned) {
      table_.erase(lock->range.start);
      changed();
    }
    settled_.notify_all();
  }
}

void Locks::freed(Range const& range) {
  if (!may_meet(range)) return;
  Guard guard = entered();
  Run const met = submits_in_ == nullptr ? settled(guard, range) : meeting(range);
  for (auto const& gone : mappings_.freed(range)) forget(gone);
  std::vector<Table::iterator> go;
  for (auto each = met.begin(); each != met.end(); ++each) {
    Lock const& lock = each->second;
    if (lock.leaving) continue;
    go.push_back(each);
    if (lock.asked == 0 || range.holds(lock.range)) continue;
    say("what the program has locked in " + text(lock.range) + " is locked no more, for some of it is freed");
  }
  drop(guard, go, "unlock: freed");
}

pinning_status Locks::lock(Device& device, Range const& range, void** device_ptr) {
  Guard guard = entered();
  Run const met = settled(guard, range);
  Lock* lock = holding(met, range);
  if (lock == nullptr) {
    for (auto const& [start, other] : met) {
      if (other.asked == 0) continue;
      std::string const why = "the range " + text(range) + " shares bytes with " + text(other.range) +
                              ", which is locked, and does not lie in it";
      return pinning_fail(PINNING_PARTIAL_OVERLAP, why.c_str());
    }
    Outcome const outcome = replace(guard, {device, range, range, 1});
    if (outcome.lock == nullptr) return pinning_fail(PINNING_VENDOR_ERROR, outcome.refusal.why.c_str());
    lock = outcome.lock;
  } else {
    lock->asked++;
  }
  list(*lock, true);
  *device_ptr = pointer(lock->device_ptr + (range.start - lock->range.start));
  return PINNING_OK;
}

bool Locks::unlock(Address ptr) {
  Range const byte{ptr, ptr + 1};
  Guard guard = entered();
  Run const met = settled(guard, byte);
  Lock* const lock = holding(met, byte);
  if (lock == nullptr || lock->asked == 0) return false;
  lock->asked--;
  list(*lock);
  bool const fits = context_.locked.bytes <= context_.policy.budget;
  auto const it = met.begin();
  if (lock->asked == 0 && (lock->mappings == 0 || !fits)) drop(guard, {&it, 1}, "unlock");
  return true;
}

std::optional<bool> Locks::try_invalidate(Address ptr, std::uint64_t size) noexcept {
  Guard const guard(mutex_, std::try_to_lock);
  if (!guard) return std::nullopt;
  Range const gone{ptr, ptr + size};
  for (auto& [start, lock] : meeting(gone)) lock.invalidated = true;
  for (Incoming& each : incoming_) each.invalidated |= each.range.meets(gone);
  return false;
}

/// Take the mutex, once all invalidations by this thread, and earlier ones by others, have been delivered.
Locks::Guard Locks::entered() {
  process_watcher().await_pending();
  return Guard(mutex_);
}

/// The locks that share bytes with the range, ascending.
Locks::Run Locks::meeting(Range const& range) noexcept {
  auto const after = table_.lower_bound(range.end);
  auto first = after;
  while (first != table_.begin() && std::prev(first)->second.range.end > range.start) --first;
  return {first, after};
}

/// The same, once nothing in the range is incoming or leaving and invalidated locks have been given up.
Locks::Run Locks::settled(Guard& guard, Range const& range) {
  for (;;) {
    Run const met = meeting(range);
    bool const leaves = std::ranges::any_of(met, [](auto const& each) { return each.second.leaving; });
    if (!leaves && std::ranges::none_of(incoming_, [&](auto const& each) { return each.range.meets(range); })) {
      auto lost = met.begin();
      while (lost != met.end() && !lost->second.invalidated) ++lost;
      if (lost == met.end()) return met;
      if (lost->second.asked != 0) {
        say("what the program has locked in " + text(lost->second.range) + " is locked no more, for its memory has gone");
      }
      drop(guard, {&lost, 1}, "unlock: gone");
      continue;
    }
    Uncancelled const uncancelled;
    settled_.wait(guard);
  }
}

/// The lock of `met` that contains the whole range, or null.
Locks::Lock* Locks::holding(Run const& met, Range const& range) noexcept {
  return !met.empty() && met.front().second.range.holds(range) ? &met.front().second : nullptr;
}

/// The buffer of this transfer if it is due to be locked, otherwise an empty range.
Range Locks::due(int number, Range const& moved, Address device_ptr) {
  Policy const& policy = context_.policy;
  if (policy.mode == Mode::off) return {};
  auto const mapped = mappings_.find(number, moved, device_ptr);
  bool const outlives = policy.until_freed && context_.frees_seen;
  Range const buffer = mapped ? *mapped : outlives ? moved : Range{};
  if (buffer.size() < policy.min_bytes || mappings_.count_transfer(buffer) < policy.after) return {};
  if (on_a_stack(buffer)) {
    context_.journal.refused(buffer, "", "it lies on a stack");
    return {};
  }
  return buffer;
}

/// Make one lock of the moved bytes and the buffer, in place of all locks that these meet. None if nothing is to be
/// locked or it is refused: the locks in the transfer's way are then released, unless the vendor refuses to unlock one.
Locks::Outcome Locks::replace(Guard& guard, Request const& request) {
  for (Range all; all != widened(request.whole());) {
    settled(guard, all = widened(request.whole()));
    if (Lock* const lock = holding(meeting(request.moved), request.moved)) {  // made by another thread
      lock->asked += request.asked;
      return {lock, {}};
    }
  }
  Plan const plan = decide(request);
  bool const requested = std::ranges::any_of(plan.outgoing, [](auto const& each) { return each->second.asked != 0; });
  Outcome outcome{nullptr, plan.refusal};
  if (!plan.target.empty()) {
    outcome = make(guard, request, plan);
  } else if (!drop(guard, plan.outgoing, "unlock: crossed")) {
    outcome.refusal = {Kind::fails, "the vendor refuses to unlock what a transfer crosses"};
  }
  if (requested && outcome.lock == nullptr && meeting(request.moved).empty()) {
    say("what the program has locked around " + text(request.moved) + " is locked no more, for a transfer crosses it: " +
        outcome.refusal.why);
  }
  return outcome;
}

/// The range, extended by all locks that it meets and that these meet.
Range Locks::widened(Range range) noexcept {
  for (Range before; before != range;) {
    before = range;
    for (auto const& [start, lock] : meeting(range)) range = around(range, lock.range);
  }
  return range;
}

/// Decide what to do, while nothing is incoming or leaving there. Changes nothing.
Locks::Plan Locks::decide(Request const& request) {
  Plan plan;
  auto const clear = [&](Range const& range) {
    plan.outgoing.clear();
    Run const met = meeting(range);
    for (auto each = met.begin(); each != met.end(); ++each) plan.outgoing.push_back(each);
    plan.in_the_way = plan.outgoing.size();
  };
  // A range that crosses a lock extends it, unless frees of the rest would not be seen.
  if (!request.buffer.empty() || context_.frees_seen) {
    Range const target = widened(request.whole());
    clear(target);
    auto const crosses = [&](Range const& each) { return each.meets(target) && !target.holds(each); };
    if (std::ranges::any_of(moving_, crosses)) {
      plan.refusal = {Kind::passes, "a transfer that is being submitted crosses it"};
    } else if (request.asked != 0 || make_room(plan, target)) {
      plan.target = target;
      return plan;
    }
  }
  clear(request.moved);
  return plan;
}

/// Add idle locks to the plan, oldest first, until the target fits. False, with the reason, if it does not.
bool Locks::make_room(Plan& plan, Range const& target) {
  std::size_t const size = target.size(), budget = context_.policy.budget, most = context_.most_locks;
  Context::Sum remaining = context_.locked;
  auto const fits = [&](Context::Sum const& beside) {
    return size <= budget && beside.bytes <= budget - size && beside.locks < most;
  };
  for (auto const& each : plan.outgoing) remaining -= each->second.range;
  for (auto next = idle_.begin(); !fits(remaining); ++next) {
    if (size > budget || next == idle_.end()) {
      bool const passes = fits({remaining.bytes - context_.leaving.bytes, remaining.locks - context_.leaving.locks});
      plan.refusal = {passes ? Kind::passes : Kind::fails,
                      remaining.locks >= most ? "the mappings that a process may have, vm.max_map_count, allow " +
                                               std::to_string(most) + " locks at once"
                                         : "PINNING_LOCK_BUDGET allows " + in_units(budget) + " at once"};
      return false;
    }
    if (next->second->range.meets(target)) continue;
    remaining -= next->second->range;
    plan.outgoing.push_back(table_.find(next->second->range.start));
  }
  return true;
}

/// Execute a plan. If the vendor refuses to lock, the outgoing locks are still released, unless it refuses that too.
Locks::Outcome Locks::make(Guard& guard, Request const& request, Plan const& plan) {
  Uncancelled const uncancelled;
  Table entry;  // first everything that allocates
  Lock& lock = entry[plan.target.start];
  auto const incoming = incoming_.insert(incoming_.end(), {plan.target});
  Entries const outgoing = plan.outgoing;

  lock.range = plan.target;
  lock.device = &request.device;
  lock.asked = request.asked;
  for (auto const& each : outgoing) lock.asked += each->second.asked;
  context_.locked += lock.range;
  begin_leaving(outgoing);
  changed();
  // Copies in a lock must be complete before it is released: `drain` waits for them once they are submitted.
  settled_.wait(guard, [&] {
    return std::ranges::all_of(outgoing, [](auto const& each) { return each->second.submitting == 0; });
  });
  bool const needed = lock.asked != 0 || mappings_.count(lock.range) != 0;
  guard.unlock();
  Refusal refusal;
  bool clear = unlock(outgoing.first(plan.in_the_way), "unlock: crossed");
  clear &= unlock(outgoing.subspan(plan.in_the_way), "unlock: for another");
  bool const locked = clear && vendor_locks(lock, needed, refusal);
  guard.lock();
  end_leaving(outgoing);
  bool const invalidated = incoming->invalidated;
  incoming_.erase(incoming);
  Table::iterator place;
  if (locked) {
    lock.mappings = mappings_.count(lock.range);
    place = table_.insert(entry.extract(entry.begin())).position;
  } else {
    context_.locked -= lock.range;
  }
  context_.journal.locked_bytes(context_.locked.bytes);
  changed();
  settled_.notify_all();
  if (invalidated) {
    if (locked) drop(guard, {&place, 1}, "unlock: gone");  // the map may not know yet
    return {nullptr, {Kind::passes, "its memory has gone"}};
  }
  if (locked) return {&lock, {}};
  if (!clear) refusal = {Kind::fails, "the vendor refuses to unlock what is in its way"};
  return {nullptr, refusal};
}

/// Unlock them. False if the vendor refuses one, which stays; the others are released.
bool Locks::drop(Guard& guard, Entries entries, char const* why) {
  if (entries.empty()) return true;
  Uncancelled const uncancelled;
  begin_leaving(entries);
  // As in `make`. But a thread that frees memory while it submits does not wait: two of them could wait for each other.
  if (submits_in_ == nullptr) {
    settled_.wait(guard, [&] {
      return std::ranges::all_of(entries, [](auto const& each) { return each->second.submitting == 0; });
    });
  }
  guard.unlock();
  bool const clear = unlock(entries, why);
  guard.lock();
  end_leaving(entries);
  context_.journal.locked_bytes(context_.locked.bytes);
  changed();
  settled_.notify_all();
  return clear;
}

void Locks::begin_leaving(Entries entries) noexcept {
  for (auto const& each : entries) {
    Lock& lock = each->second;
    lock.leaving = true;
    lock.unlocked = lock.invalidated;
    list(lock);
    context_.leaving += lock.range;
  }
}

/// Unlock them without holding the mutex. False if the vendor refuses one.
bool Locks::unlock(Entries entries, char const* why) noexcept {
  if (entries.empty()) return true;
  drain(entries.front()->second.device->vendor());
  bool clear = true;
  for (auto const& each : entries) {
    Lock& lock = each->second;
    if (lock.unlocked) context_.journal.unlocked(lock.range, lock.device->name(), why, now(), now());
    else lock.unlocked = vendor_unlocks(lock, why);
    clear &= lock.unlocked;
  }
  return clear;
}

void Locks::end_leaving(Entries entries) noexcept {
  for (auto const& each : entries) {
    Lock& lock = each->second;
    context_.leaving -= lock.range;
    if (!lock.unlocked) {
      lock.leaving = false;
      list(lock);
      continue;
    }
    context_.locked -= lock.range;
    if (lock.submitting == 0) table_.erase(each);
    else lock.orphaned = true;
  }
}

bool Locks::vendor_locks(Lock& lock, bool needed, Refusal& refusal) noexcept {
  try {
    lock.stays = context_.policy.until_freed && context_.frees_seen && !is_of_a_library(lock.range);
    if (!needed && !lock.stays) {
      refusal = {Kind::rule, "it is a library's and not mapped, so its end would not be seen"};
      return false;
    }
    pinning_map* const map = lock.device->map();
    if (map == nullptr) {
      refusal = {Kind::fails, "there is no library for " + lock.device->name()};
      return false;
    }
    // Added after the map, and so informed before it: what the map still has is already invalidated here.
    std::call_once(listens_, [&] { process_watcher().add(*this, false); });
    void* device_ptr = nullptr;
    auto const began = now();
    if (pinning_lock(map, pointer(lock.range.start), lock.range.size(), &device_ptr) != PINNING_OK) {
      refusal = {Kind::fails, pinning_last_error()};
      return false;
    }
    lock.device_ptr = reinterpret_cast<Address>(device_ptr);
    context_.journal.locked(lock.range, lock.device->name(), began, now());
    return true;
  } catch (std::exception const&) {  // no memory for the reason
    refusal.kind = Kind::fails;
    return false;
  }
}

/// False if the vendor refuses, which is reported.
bool Locks::vendor_unlocks(Lock const& lock, char const* why) noexcept {
  auto const began = now();
  pinning_status const status = pinning_unlock(lock.device->map(), pointer(lock.range.start));
  if (status == PINNING_OK || status == PINNING_NOT_LOCKED) {
    context_.journal.unlocked(lock.range, lock.device->name(), why, began, now());
    return true;
  }
  try {
    say("what is locked at " + text(lock.range) + " stays locked: " + pinning_last_error());
  } catch (std::exception const&) {
  }
  return false;
}

/// After an unmapping: release the locks that are now idle, except those that stay until their memory is freed.
void Locks::release(Guard& guard, Range const& host) {
  forget(host);
  Run const met = settled(guard, host);
  std::vector<Table::iterator> go;
  for (auto each = met.begin(); each != met.end(); ++each) {
    if (each->second.idle() && !each->second.stays) go.push_back(each);
  }
  drop(guard, go, "unlock: unmapped");
}

/// A mapping has ended: its locks have one user less. A lock being made counts its mappings when it is done.
void Locks::forget(Range const& host) noexcept {
  for (auto& [start, lock] : meeting(host)) {
    if (lock.mappings != 0) lock.mappings--;
    list(lock);
  }
}

void Locks::refuse(Device& device, Range const& range, Refusal const& refusal) {
  context_.journal.refused(range, device.name(), refusal.why);
  if (context_.policy.mode != Mode::mandatory || refusal.kind != Kind::fails) return;
  Output::standard_error().write("pinning: PINNING_LOCK_MAPPED is mandatory, and " + text(range) +
                                 " cannot be locked for " + device.name() + ": " + refusal.why + "\n");
  std::_Exit(1);
}

/// Update `idle_`, after each change of what makes a lock idle and at each use.
void Locks::list(Lock& lock, bool used) noexcept {
  if (lock.listed) idle_.erase(lock.last_use);
  lock.listed = false;
  if (used) lock.last_use = ++uses_;
  if (!lock.idle()) return;
  try {
    lock.listed = idle_.try_emplace(lock.last_use, &lock).second;
  } catch (std::bad_alloc const&) {  // the lock does not make room for others
  }
}

/// Update the bounds, after each change of what is locked, incoming or leaving.
void Locks::changed() noexcept {
  Range all{~Address{0}, 0};
  if (!table_.empty()) all = {table_.begin()->first, std::prev(table_.end())->second.range.end};
  for (Incoming const& each : incoming_) all = around(all, each.range);
  low_ = all.start;
  high_ = all.end;
}

}  // namespace pinning::tool::openmp
