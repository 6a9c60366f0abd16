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

#include "drain.hpp"
#include "output.hpp"
#include "stacks.hpp"
#include "uncancelled.hpp"

namespace pinning::omp {

namespace {

/// Whether it is a library's own memory, which dlclose unmaps, and nobody says so. Waits for whoever loads a library.
bool is_of_a_library(Range const& range) {
  Dl_info object;
  link_map* of = nullptr;
  if (dladdr1(pointer(range.start), &object, reinterpret_cast<void**>(&of), RTLD_DL_LINKMAP) == 0) return false;
  return of == nullptr || of->l_prev != nullptr;  // the first of all is the program
}

std::string text(Range const& range) {
  char made[64];
  std::snprintf(made, sizeof made, "[%#zx, %#zx)", range.start, range.end);
  return made;
}

}  // namespace

void Locks::mapped(int number, Range const& host, Address device_ptr) {
  if (host.size() < context_.policy.min_bytes) return;
  Guard const guard(mutex_);
  for (auto const& replaced : mappings_.add(number, host, device_ptr)) forget(replaced);
  for (auto const& each : meeting(host)) {
    each->second.mappings++;
    list(each->second);
  }
}

void Locks::unmapped(int number, Address device_ptr) {
  Guard guard(mutex_);
  if (auto const host = mappings_.remove(number, device_ptr)) release(guard, *host);
}

void Locks::unmapped_host(int number, Address host) {
  Guard guard(mutex_);
  if (auto const range = mappings_.remove_host(number, host)) release(guard, *range);
}

std::optional<Range> Locks::before_transfer(int number, Device& device, Range const& moved, Address device_ptr) {
  Guard guard(mutex_);
  settle(guard, moved);
  Lock* lock = holding(moved);
  moving_.push_back(moved);
  Refusal refusal;
  Range buffer;
  if (lock == nullptr) {
    try {
      buffer = due(number, moved, device_ptr);
      if (!buffer.empty() || meets(moved)) lock = replace(guard, {device, moved, buffer}, refusal);
    } catch (...) {
      if (!guard.owns_lock()) guard.lock();
      moving_.erase(std::ranges::find(moving_, moved));
      throw;
    }
    if (refusal.kind > Kind::passes) mappings_.refused(buffer);
  }
  if (lock == nullptr) {
    guard.unlock();
    if (refusal.kind != Kind::none) refuse(device, buffer.empty() ? moved : buffer, refusal);
    return std::nullopt;
  }
  list(*lock, true);
  lock->submitting++;
  submits_in_ = lock;
  return lock->range;
}

void Locks::submitted(Range const& moved) {
  Guard const guard(mutex_);
  moving_.erase(std::ranges::find(moving_, moved));
  if (Lock* const lock = std::exchange(submits_in_, nullptr)) {
    if (--lock->submitting == 0 && lock->gone) {
      table_.erase(lock->range.start);
      changed();
    }
    settled_.notify_all();
  }
}

void Locks::freed(Range const& range) {
  if (!may_meet(range)) return;
  Guard guard(mutex_);
  if (submits_in_ == nullptr) settle(guard, range);
  for (auto const& gone : mappings_.freed(range)) forget(gone);
  Some go = meeting(range);
  std::erase_if(go, [](auto const& each) { return each->second.changing; });
  for (auto const& each : go) {
    if (each->second.asked == 0 || range.holds(each->second.range)) continue;
    say("what the program has locked in " + text(each->second.range) + " is locked no more, for some of it is freed");
  }
  drop(guard, go, "unlock: freed");
}

pinning_status Locks::lock(Device& device, Range const& range, void** device_ptr) {
  Guard guard(mutex_);
  settle(guard, range);
  Lock* lock = holding(range);
  if (lock == nullptr) {
    Refusal refusal;
    for (auto const& each : meeting(range)) {
      if (each->second.asked == 0) continue;
      std::string const why = "the range " + text(range) + " shares bytes with " + text(each->second.range) +
                              ", which is locked, and does not lie in it";
      return pinning_fail(PINNING_PARTIAL_OVERLAP, why.c_str());
    }
    lock = replace(guard, {device, range, range, 1}, refusal);
    if (lock == nullptr) return pinning_fail(PINNING_VENDOR_ERROR, refusal.why.c_str());
  } else {
    lock->asked++;
  }
  list(*lock, true);
  *device_ptr = pointer(lock->device_ptr + (range.start - lock->range.start));
  return PINNING_OK;
}

bool Locks::unlock(Address ptr) {
  Range const byte{ptr, ptr + 1};
  Guard guard(mutex_);
  settle(guard, byte);
  Lock* const lock = holding(byte);
  if (lock == nullptr || lock->asked == 0) return false;
  lock->asked--;
  list(*lock);
  bool const fits = context_.locked_bytes <= context_.policy.budget;
  if (lock->asked == 0 && (lock->mappings == 0 || !fits)) drop(guard, meeting(byte), "unlock");
  return true;
}

/// The locks that share bytes with the range, ascending.
Locks::Some Locks::meeting(Range const& range) {
  Some found;
  auto each = table_.upper_bound(range.start);
  if (each != table_.begin()) --each;
  for (; each != table_.end() && each->first < range.end; ++each) {
    if (each->second.range.meets(range)) found.push_back(each);
  }
  return found;
}

bool Locks::meets(Range const& range) noexcept {
  auto const next = table_.lower_bound(range.end);
  return next != table_.begin() && std::prev(next)->second.range.end > range.start;
}

Locks::Lock* Locks::holding(Range const& range) {
  auto const next = table_.upper_bound(range.start);
  if (next == table_.begin() || !std::prev(next)->second.range.holds(range)) return nullptr;
  return &std::prev(next)->second;
}

/// Returns when nothing in the range is changing.
void Locks::settle(Guard& guard, Range const& range) {
  while (meets(range)) {
    auto const found = meeting(range);
    if (std::ranges::none_of(found, [](auto const& each) { return each->second.changing; })) return;
    Uncancelled const uncancelled;
    settled_.wait(guard);
  }
}

/// The buffer of this transfer, if it is time to lock it; else nothing.
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

/// One lock that holds what is moved and the buffer, in place of all that these meet. Null where there is none then:
/// nothing is to be locked, or it is refused, and what was in the way of the transfer has just gone.
Locks::Lock* Locks::replace(Guard& guard, Wish const& wish, Refusal& refusal) {
  for (;;) {
    Plan const plan = decide(wish);
    if (std::ranges::any_of(plan.in_the_way, [](auto const& each) { return each->second.changing; })) {
      settle(guard, plan.target.empty() ? wish.moved : plan.target);
      Lock* const made = holding(wish.moved);
      if (made == nullptr) continue;
      made->asked += wish.asked;
      return made;
    }
    refusal = plan.refusal;
    if (!plan.target.empty()) return make(guard, wish, plan, refusal);
    bool asked = false;
    for (auto const& each : plan.in_the_way) asked |= each->second.asked != 0;
    if (!drop(guard, plan.in_the_way, "unlock: crossed")) {
      refusal = {Kind::fails, "the vendor refuses to unlock what a transfer crosses"};
    } else if (asked) {
      say("what the program has locked around " + text(wish.moved) + " is locked no more, for a transfer crosses it: " +
          refusal.why);
    }
    return nullptr;
  }
}

/// Changes nothing.
Locks::Plan Locks::decide(Wish const& wish) {
  Plan plan;
  // Whoever crosses a lock shall have it too; but not where nobody would say that the rest is freed.
  if (!wish.buffer.empty() || context_.frees_seen) {
    plan.target = widened(wish.buffer.empty() ? wish.moved : around(wish.moved, wish.buffer));
    plan.in_the_way = meeting(plan.target);
    auto const crosses = [&](Range const& each) { return each.meets(plan.target) && !plan.target.holds(each); };
    if (std::ranges::any_of(moving_, crosses)) {
      plan.refusal = {Kind::passes, "a transfer that is being submitted crosses it"};
    } else if (wish.asked != 0 || make_room(plan)) {
      return plan;
    }
    plan.target = {};
    plan.idle.clear();
  }
  plan.in_the_way = meeting(wish.moved);
  return plan;
}

/// The range and all locks that it meets, and that these meet.
Range Locks::widened(Range range) {
  for (Range before; before != range;) {
    before = range;
    for (auto const& each : meeting(range)) range = around(range, each->second.range);
  }
  return range;
}

/// Adds those that nobody needs, oldest first, until there is room for the target. False, and why, where there is not.
bool Locks::make_room(Plan& plan) {
  std::size_t const size = plan.target.size(), budget = context_.policy.budget, most = context_.most_locks;
  std::size_t left = context_.locked_bytes, locks = context_.locks;
  for (auto const& each : plan.in_the_way) {
    if (each->second.gone) continue;
    left -= each->second.range.size();
    locks--;
  }
  auto next = idle_.begin();
  while (size > budget || left > budget - size || locks >= most) {
    while (next != idle_.end() && next->second->range.meets(plan.target)) ++next;
    if (size > budget || next == idle_.end()) {
      plan.refusal = {Kind::fails, locks >= most
                                       ? "the mappings that a process may have, vm.max_map_count, allow " +
                                             std::to_string(most) + " locks at once"
                                       : "PINNING_LOCK_BUDGET allows " + in_units(budget) + " at once"};
      return false;
    }
    left -= next->second->range.size();
    locks--;
    plan.idle.push_back(table_.find(next->second->range.start));
    ++next;
  }
  return true;
}

/// Does what is planned. Null, and why, where the vendor refuses; then what was in the way has gone all the same, but
/// for what the vendor does not unlock.
Locks::Lock* Locks::make(Guard& guard, Wish const& wish, Plan const& plan, Refusal& refusal) {
  Uncancelled const uncancelled;
  // First all that may find no memory.
  Table fresh;
  Lock& lock = fresh[plan.target.start];
  std::vector<Table::node_type> old;
  old.reserve(plan.in_the_way.size());

  lock.range = plan.target;
  lock.device = &wish.device;
  lock.asked = wish.asked;
  for (auto const& each : plan.in_the_way) {
    lock.asked += each->second.asked;
    each->second.changing = true;
    list(each->second);
    count(each->second, false);
    old.push_back(table_.extract(each));
  }
  for (auto const& each : plan.idle) {
    each->second.changing = true;
    list(each->second);
    count(each->second, false);
  }
  table_.insert(fresh.extract(fresh.begin()));
  count(lock, true);
  changed();
  // A copy that is under way in a lock must be over when that goes.
  settled_.wait(guard, [&] {
    return std::ranges::all_of(old, [](auto const& each) { return each.mapped().submitting == 0; }) &&
           std::ranges::all_of(plan.idle, [](auto const& each) { return each->second.submitting == 0; });
  });
  bool const needed = lock.asked != 0 || mappings_.count(lock.range) != 0;
  guard.unlock();
  if (!old.empty() || !plan.idle.empty()) drain(wish.device.vendor());
  bool clear = true;
  for (auto& each : old) clear &= each.mapped().gone = vendor_unlocks(each.mapped(), "unlock: crossed");
  for (auto const& each : plan.idle) clear &= each->second.gone = vendor_unlocks(each->second, "unlock");
  bool const locked = clear && vendor_locks(lock, needed, refusal);
  guard.lock();
  for (auto const& each : plan.idle) {
    if (each->second.gone) {
      table_.erase(each);
    } else {
      each->second.changing = false;
      count(each->second, true);
      list(each->second);
    }
  }
  std::size_t const asked_before = lock.asked - wish.asked;
  if (locked) {
    lock.mappings = mappings_.count(lock.range);
    lock.changing = false;
    list(lock, true);
  } else {
    count(lock, false);
    table_.erase(plan.target.start);
    for (auto& each : old) {
      if (each.mapped().gone) continue;
      each.mapped().changing = false;
      each.mapped().mappings = mappings_.count(each.mapped().range);
      count(each.mapped(), true);
      list(each.mapped());
      table_.insert(std::move(each));
    }
  }
  changed();
  settled_.notify_all();
  if (locked) return &lock;
  if (!clear) refusal = {Kind::fails, "the vendor refuses to unlock what is in its way"};
  if (asked_before != 0 && clear) {
    say("what the program has locked around " + text(wish.moved) + " is locked no more, for a transfer crosses it: " +
        refusal.why);
  }
  return nullptr;
}

bool Locks::vendor_locks(Lock& lock, bool needed, Refusal& refusal) noexcept {
  try {
    lock.stays = context_.policy.until_freed && context_.frees_seen && !is_of_a_library(lock.range);
    if (!needed && !lock.stays) {
      refusal = {Kind::rule, "it is a library's and not mapped, so nobody would say when it goes"};
      return false;
    }
    pinning_map* const map = lock.device->map();
    if (map == nullptr) {
      refusal = {Kind::fails, "there is no library for " + lock.device->name()};
      return false;
    }
    void* device_ptr = nullptr;
    auto const began = now();
    if (pinning_lock(map, pointer(lock.range.start), lock.range.size(), &device_ptr) != PINNING_OK) {
      refusal = {Kind::fails, pinning_last_error()};
      return false;
    }
    lock.device_ptr = reinterpret_cast<Address>(device_ptr);
    context_.journal.locked(lock.range, lock.device->name(), began, now());
    return true;
  } catch (std::exception const&) {  // no memory to say more
    refusal.kind = Kind::fails;
    return false;
  }
}

/// False where the vendor refuses, which is said.
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

/// Unlocks them. False where the vendor refuses one, which stays; the others go.
bool Locks::drop(Guard& guard, Some const& which, char const* why) {
  if (which.empty()) return true;
  Uncancelled const uncancelled;
  std::vector<bool> gone(which.size());
  for (auto const& each : which) {
    each->second.changing = true;
    list(each->second);
  }
  // A copy that is under way in a lock must be over when that goes. But who frees memory while it submits waits for
  // nobody, or two of them could wait for each other.
  if (submits_in_ == nullptr) {
    settled_.wait(guard, [&] {
      return std::ranges::all_of(which, [](auto const& each) { return each->second.submitting == 0; });
    });
  }
  guard.unlock();
  drain(which.front()->second.device->vendor());
  for (std::size_t i = 0; i < which.size(); ++i) gone[i] = vendor_unlocks(which[i]->second, why);
  guard.lock();
  for (std::size_t i = 0; i < which.size(); ++i) {
    Lock& lock = which[i]->second;
    if (!gone[i]) {
      lock.changing = false;
      list(lock);
      continue;
    }
    count(lock, false);
    if (lock.submitting == 0) table_.erase(which[i]);
    else lock.gone = true;  // whoever submits in it lets go of it
  }
  changed();
  settled_.notify_all();
  return std::ranges::all_of(gone, std::identity());
}

/// After an unmapping: the locks that nobody needs any more go, or wait for the memory to be freed.
void Locks::release(Guard& guard, Range const& host) {
  forget(host);
  settle(guard, host);
  Some go;
  for (auto const& each : meeting(host)) {
    if (each->second.idle() && !each->second.stays) go.push_back(each);
  }
  drop(guard, go, "unlock: unmapped");
}

/// A mapping has ended. What is being locked counts them at the end.
void Locks::forget(Range const& host) noexcept {
  for (auto each = table_.lower_bound(host.end); each != table_.begin();) {
    Lock& lock = (--each)->second;
    if (lock.range.end <= host.start) break;
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

/// After each change of what makes a lock idle, and at each use.
void Locks::list(Lock& lock, bool used) noexcept {
  if (lock.listed) idle_.erase(lock.last_use);
  lock.listed = false;
  if (used) lock.last_use = ++uses_;
  if (!lock.idle()) return;
  try {
    lock.listed = idle_.try_emplace(lock.last_use, &lock).second;
  } catch (std::bad_alloc const&) {  // it just does not give way
  }
}

void Locks::count(Lock const& lock, bool comes) noexcept {
  if (comes) {
    context_.locked_bytes += lock.range.size();
    context_.locks++;
  } else {
    context_.locked_bytes -= lock.range.size();
    context_.locks--;
  }
  context_.journal.locked_bytes(context_.locked_bytes);
}

/// After each change of the table.
void Locks::changed() noexcept {
  low_ = table_.empty() ? ~Address{0} : table_.begin()->first;
  high_ = table_.empty() ? 0 : std::prev(table_.end())->second.range.end;
}

}  // namespace pinning::omp
