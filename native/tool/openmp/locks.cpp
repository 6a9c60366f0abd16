// SPDX-License-Identifier: Apache-2.0
#include "locks.hpp"

#include <dlfcn.h>
#include <link.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <utility>

#include "../output.hpp"
#include "../stacks.hpp"
#include "../uncancelled.hpp"

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

/// Whether the only lock that meets a range contains it.
bool is_inside(Range const& range, std::vector<Range> const& locks) {
  return locks.size() == 1 && locks.front().holds(range);
}

/// Report what `unlock` throws; whether it has thrown nothing.
template <class Unlock>
bool reported(Address ptr, Unlock&& unlock) noexcept {
  try {
    try {
      unlock();
      return true;
    } catch (std::exception const& error) {
      say("what is locked at " + describe(ptr) + " stays locked: " + error.what());
    }
  } catch (std::exception const&) {  // no memory for the text
  }
  return false;
}

bool has(std::vector<Range> const& locks, Hold const& hold) {
  return std::ranges::any_of(locks, [&](Range const& lock) { return lock.start <= hold.ptr && hold.ptr < lock.end; });
}

}  // namespace

// ---- what the runtime and the program do ----

void Locks::mapped(int number, Range const& host, Address device_ptr) {
  if (host.size() < context_.policy.min_bytes) return;
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  end(guard, mappings_.add(number, host, device_ptr));
}

void Locks::unmapped(int number, Address device_ptr) {
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  end(guard, mappings_.remove(number, device_ptr));
}

void Locks::unmapped_host(int number, Address host) {
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  end(guard, mappings_.remove_host(number, host));
}

std::optional<Range> Locks::before_transfer(int number, Device& device, Range const& moved, Address device_ptr) {
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  await(guard, moved);
  Mapping* mapping = mappings_.find(number, moved, device_ptr);
  if (is_held(mapping)) return enter({{moved, mapping->lock}});
  Range buffer = moved;
  Refusal refusal;
  auto locks = cleared(guard, moved, true);
  if (locks.empty()) {
    buffer = due(mappings_.find(number, moved, device_ptr), moved);
    if (!buffer.empty()) locks = cleared(guard, buffer, false);
    if (!locks.empty() && !is_inside(buffer, locks)) {
      refusal = {Kind::rule, "the program, or others, have locked a part of it"};
      locks = cleared(guard, moved, true);  // others may have locked some of it while this thread waited
      if (!locks.empty()) buffer = moved, refusal = {};
    } else if (locks.empty() && crosses_a_transfer(buffer)) {
      refusal = {Kind::passes, "a transfer that is being submitted crosses it"};
    }
  }
  if (!locks.empty() && !is_inside(buffer, locks)) {
    refusal = {Kind::rule, "it crosses a lock of others, or one that the vendor refuses to unlock"};
  }
  std::list<Transfer> transfer{{moved}};  // made first: once the lock is taken nothing may fail
  if (!buffer.empty() && refusal.kind == Kind::none) {
    mapping = mappings_.find(number, moved, device_ptr);
    Outcome const outcome = acquire(guard, {device, buffer, locks, mapping != nullptr, false});
    refusal = outcome.refusal;
    if (outcome.hold) {
      mapping = mappings_.find(number, moved, device_ptr);
      bool const is_mappings = mapping != nullptr && !is_held(mapping) && outcome.lock.holds(mapping->host);
      Use& use = is_mappings ? mapping->use : transfer.front().use;
      use = {outcome.hold, outcome.stays};
      if (is_mappings) mapping->lock = outcome.lock;
      transfer.front().lock = outcome.lock;
    }
  }
  if (refusal.kind > Kind::passes) mappings_.refused(buffer);
  auto const lock = enter(std::move(transfer));
  guard.unlock();
  if (refusal.kind != Kind::none) refuse(device, buffer, refusal);
  return lock;
}

void Locks::submitted() {
  Transfer* const mine = std::exchange(submits_, nullptr);
  if (mine == nullptr) return;
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  if (mine->lock) map_.load()->device->expect_copies_of_others();
  if (Use const use = std::exchange(mine->use, {}); use.hold) {
    guard.unlock();
    bool const released = release(*use.hold, use.stays);
    guard.lock();
    if (!released) unused_.push_back(*use.hold);
  }
  transfers_.remove_if([&](Transfer const& each) { return &each == mine; });
  changed_.notify_all();
}

void Locks::freed(Range const& range) {
  if (range.empty() || !may_meet(range)) return;
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  retire(mappings_.freed(range));
  auto const locks = locks_in(guard, range);
  report_lost(locks, "some of it is freed", range);
  clear(guard, range, locks, "unlock: freed");
}

pinning_status Locks::lock(Device& device, Range const& range, void** device_ptr) {
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  forget_gone();
  auto const locks = cleared(guard, range, false);
  bool const inside = is_inside(range, locks);
  if (!inside && is_requested(locks)) {
    std::string const why = "the range " + text(range) + " shares bytes with " + text(locks.front()) +
                            ", which is locked, and does not lie in it";
    return pinning_fail(PINNING_PARTIAL_OVERLAP, why.c_str());
  }
  std::list<Requested> requested{{range, {}}};
  Outcome outcome;
  if (!inside && crosses_a_transfer(range)) {
    outcome.refusal.why = "a transfer that is being submitted crosses " + text(range);
  } else {
    outcome = acquire(guard, {device, range, locks, true, true});
  }
  if (!outcome.hold) return pinning_fail(PINNING_VENDOR_ERROR, outcome.refusal.why.c_str());
  requested.front().hold = *outcome.hold;
  requested_.splice(requested_.end(), requested);
  *device_ptr = pointer(outcome.hold->device_ptr);
  return PINNING_OK;
}

bool Locks::unlock(Address ptr) {
  Uncancelled const uncancelled;
  Guard guard(mutex_);
  forget_gone();
  auto const locks = locks_in(guard, {ptr, ptr + 1});
  auto const is_of_it = [&](Requested const& each) { return has(locks, each.hold); };
  auto const one = std::ranges::find_if(requested_, is_of_it);
  if (one == requested_.end()) return false;
  Hold const hold = one->hold;
  requested_.erase(one);
  bool const last = std::ranges::none_of(requested_, is_of_it);
  Range const lock = locks.front();
  std::vector<Hold> holds, refused;
  auto const began = now();
  auto const take_holds = [&] {
    holds.push_back(hold);
    // What the program has locked beyond the budget does not become the lock of the mappings in it.
    if (last && process_budget().figures().locked > context_.policy.budget) mappings_.take_holds(lock, holds);
    refused.reserve(holds.size());
  };
  change(guard, {lock}, take_holds, [&] {
    for (Hold const& each : holds) {
      if (!release(each, false)) refused.push_back(each);
    }
    if (last && refused.empty()) give_back(lock);
  });
  unused_.insert(unused_.end(), refused.begin(), refused.end());
  note_ended(lock, "unlock", began);
  return true;
}

// ---- changes of the map ----

/// Wait until nothing in the range is being locked or given back.
void Locks::await(Guard& guard, Range const& range) {
  changed_.wait(guard, [&] { return !is_changing(range); });
}

/// Not for a thread that frees memory while it submits: two that waited could wait for each other.
bool Locks::is_changing(Range const& range) const noexcept {
  return submits_ == nullptr &&
         std::ranges::any_of(changing_, [&](Range const& each) { return each.meets(range); });
}

/// Release the locks that a range crosses, once nothing changes there; those of the program's own only if
/// `requested_too`. Returns what is left: the lock that contains it, or those that stay in its way.
std::vector<Range> Locks::cleared(Guard& guard, Range const& range, bool requested_too) {
  for (bool tried = false;;) {
    auto locks = locks_in(guard, range);
    if (locks.empty() || is_inside(range, locks) || tried || (!requested_too && is_requested(locks))) return locks;
    tried = true;
    if (requested_too) {
      report_lost(locks, "a transfer crosses it");
      for (Range const& lock : locks) mappings_.crossed(lock);
    }
    clear(guard, range, locks, requested_too ? "unlock: crossed" : "unlock: for another");
  }
}

/// Call `body`, which does not throw, without the mutex, while threads that meet one of the ranges wait; before that,
/// `prepare` with the mutex.
template <class Prepare, class Body>
void Locks::change(Guard& guard, std::list<Range> ranges, Prepare&& prepare, Body&& body) {
  auto const first = ranges.begin(), last = std::prev(ranges.end());
  changing_.splice(changing_.end(), ranges);
  are_changing_ = changing_.size();
  auto const end = [&] {
    changing_.erase(first, std::next(last));
    are_changing_ = changing_.size();
    changed_.notify_all();
  };
  try {
    prepare();
  } catch (...) {
    end();
    throw;
  }
  guard.unlock();
  body();
  guard.lock();
  end();
}

/// The locks that share bytes with a range, also those of others and those without a user, ascending; once nothing changes
/// in the range or in them.
std::vector<Range> Locks::locks_in(Guard& guard, Range const& range) {
  for (;;) {
    await(guard, range);
    std::vector<Range> locks;
    PinnedMap* const map = this->map();
    if (map == nullptr) return locks;
    std::uint64_t const changes = map->changes();
    if (map->is_changing(range.start, range.size())) {  // by others, or for the budget; not among those that overlap
      change(guard, {range}, [] {}, [&] { map->await_changes(range.start, range.size()); });
      continue;
    }
    for (Region const& each : map->overlapping(range.start, range.size(), true)) {
      locks.push_back({each.start, each.start + each.whole});
    }
    auto const changing = std::ranges::find_if(locks, [&](Range const& each) { return is_changing(each); });
    if (changing != locks.end()) {
      await(guard, *changing);
    } else if (map->changes() == changes) {
      return locks;
    }
  }
}

/// End every use of the locks in a range that the tool knows, and give them back. One that others use, or that the vendor
/// refuses to unlock, stays.
void Locks::clear(Guard& guard, Range const& range, std::vector<Range> const& locks, char const* why) {
  if (locks.empty()) return;
  std::vector<Hold> holds, refused;
  auto const began = now();
  auto const is_in_one = [&](Range const& range) {
    return std::ranges::any_of(locks, [&](Range const& each) { return each.meets(range); });
  };
  auto const take = [&](auto& list, auto&& hold_of) {
    std::erase_if(list, [&](auto& each) {
      auto const hold = hold_of(each);
      if (!has(locks, hold)) return false;
      holds.push_back(hold);
      return true;
    });
  };
  auto const take_holds = [&] {
    // Copies in a lock must be complete before it is released: the vendor waits for them once they are submitted.
    if (submits_ == nullptr) {
      changed_.wait(guard, [&] {
        return std::ranges::none_of(transfers_, [&](Transfer const& each) { return is_in_one(each.moved); });
      });
    }
    for (Range const& each : locks) mappings_.take_holds(each, holds);
    take(requested_, [](Requested const& each) { return each.hold; });
    take(unused_, [](Hold const& each) { return each; });
    for (Transfer& each : transfers_) {
      if (!each.use.hold || !has(locks, *each.use.hold)) continue;
      holds.push_back(*each.use.hold);
      each.use = {};
    }
    refused.reserve(holds.size());
    if (!transfers_.empty()) map_.load()->device->expect_copies_of_others();
  };
  std::list<Range> ranges(locks.begin(), locks.end());
  ranges.push_back(range);  // no lock is made there meanwhile
  change(guard, std::move(ranges), take_holds, [&] {
    for (Hold const& each : holds) {
      if (!release(each, true)) refused.push_back(each);
    }
    for (Range const& each : locks) give_back(each);
  });
  unused_.insert(unused_.end(), refused.begin(), refused.end());
  for (Range const& each : locks) note_ended(each, why, began);
}

/// Mappings have ended: their holds are unused, unless another mapping of the lock needs one.
void Locks::retire(std::vector<Mapping> const& ended) {
  for (Mapping const& each : ended) {
    if (each.use.hold && !mappings_.hand_on(each)) unused_.push_back(*each.use.hold);
  }
}

/// The same, and release them.
void Locks::end(Guard& guard, std::vector<Mapping> const& ended) {
  retire(ended);
  for (Mapping const& each : ended) {
    if (!each.use.hold) continue;
    await(guard, each.lock);
    Hold const its = *each.use.hold;
    auto const unused = std::ranges::find_if(unused_, [&](Hold const& hold) { return hold == its; });
    if (unused == unused_.end()) continue;  // handed on, or released meanwhile
    unused_.erase(unused);
    bool released = false;
    auto const began = now();
    change(guard, {each.lock}, [] {}, [&] { released = release(its, each.use.stays); });
    if (!released) unused_.push_back(its);
    note_ended(each.lock, "unlock: unmapped", began);
  }
}

/// Count one more use of a lock, which is made if there is none.
Locks::Outcome Locks::acquire(Guard& guard, Request const& request) {
  Outcome outcome;
  Range const range = request.range;
  bool const is_locked = !request.locks.empty();
  std::list<Range> ranges{is_locked ? request.locks.front() : range};
  std::size_t const comes = is_locked ? 0 : range.size();
  context_.coming_bytes += comes;
  context_.coming += !is_locked;
  low_ = std::min(low_.load(), range.start);
  high_ = std::max(high_.load(), range.end);
  auto const began = now();
  change(guard, std::move(ranges), [] {}, [&] {
    Refusal& refusal = outcome.refusal;
    try {
      pinning_map* const map = opened(request.device);
      if (map == nullptr) {
        refusal = {Kind::fails, "there is no library for " + request.device.name()};
        return;
      }
      bool const asks = request.is_used || !is_locked;
      outcome.stays = asks && outlives_use() && !is_of_a_library(range);
      if (!is_locked && !request.is_used && !outcome.stays) {
        refusal = {Kind::rule, "it is a library's and not mapped, so its end would not be seen"};
        return;
      }
      if (!is_locked && !request.is_requested && !make_room(range.size(), outcome)) return;
      outcome.hold = is_locked ? map->map->track(range.start, range.size())
                               : map->map->lock(range.start, range.size(), map->options(), map->piece(range.size()));
      auto const lock = map->map->find(range.start, range.size());
      outcome.lock = lock ? Range{lock->start, lock->start + lock->whole} : range;
    } catch (PartialOverlap const& error) {
      refusal = {Kind::fails, error.what()};
    } catch (InvalidRange const& error) {  // its memory has gone
      refusal = {Kind::rule, error.what()};
    } catch (std::exception const& error) {
      refusal = {Kind::fails, error.what()};
    }
  });
  context_.coming_bytes -= comes;
  context_.coming -= !is_locked;
  if (!outcome.made_room.empty()) note_ended(outcome.made_room, "unlock: for another", began);
  if (outcome.hold) note(outcome.lock, request.device, began);
  return outcome;
}

/// Have locks without a user given back until so many bytes more may be locked; false, with the reason, if that is not
/// enough. Called without the mutex, when they are counted as coming.
bool Locks::make_room(std::size_t size, Outcome& outcome) {
  Budget& budget = process_budget();
  std::size_t const most = context_.policy.budget;
  for (;;) {
    std::uint64_t const ended = budget.ended();
    std::uint64_t locked = budget.figures().locked;
    std::size_t locks = 0;
    bool others = false;  // are being made
    {
      Guard const guard(mutex_);
      locked += context_.coming_bytes;
      locks += context_.coming;
      others = context_.coming > 1;
      for (PinnedMap const* const each : context_.maps) locks += each->count();
    }
    bool const too_many = locks > context_.most_locks;
    if (locked <= most && !too_many) return true;
    if (size <= most) {
      Budget::Given const given = budget.give_back(locked > most ? locked - most : 1);
      if (given.bytes != 0) {
        Range const starts{given.lowest, given.highest + 1};
        outcome.made_room = outcome.made_room.empty() ? starts : around(outcome.made_room, starts);
      }
      if (given.bytes != 0 || budget.wait_for_an_end(ended)) continue;
    }
    outcome.refusal = {size <= most && others ? Kind::passes : Kind::fails,
                       too_many ? "the mappings that a process may have, vm.max_map_count, allow " +
                                      std::to_string(context_.most_locks) + " locks at once"
                                : "PINNING_LOCK_BUDGET allows " + in_units(most) + " at once"};
    return false;
  }
}

/// End one use of a lock. False if the vendor refuses to unlock, which is reported.
bool Locks::release(Hold const& hold, bool keep) noexcept {
  return reported(hold.ptr, [&] { map()->unlock(hold, keep); });
}

/// Have a lock without a user unlocked; if another thread is doing so, wait for that.
bool Locks::give_back(Range const& lock) noexcept {
  return reported(lock.start, [&] {
    if (!map()->give_back_idle(lock.start)) map()->await_changes(lock.start, lock.size());
  });
}

/// The map of the first device that locks: a lock for one is valid for all of the vendor. Null if it cannot be opened.
pinning_map* Locks::opened(Device& device) {
  if (pinning_map* const known = map_) return known;
  pinning_map* const map = device.map();
  if (map == nullptr) return nullptr;
  Guard const guard(mutex_);
  if (map_ != nullptr) return map_;
  context_.maps.push_back(map->map);
  Budget& budget = process_budget();
  budget.set(std::nullopt, std::max<std::uint64_t>(budget.figures().idle_limit, context_.policy.budget));
  return map_ = map;
}

// ---- decisions, with the mutex ----

/// This thread submits the transfer in the list.
std::optional<Range> Locks::enter(std::list<Transfer> transfer) {
  transfers_.splice(transfers_.end(), transfer);
  submits_ = &transfers_.back();
  return submits_->lock;
}

/// The buffer of this transfer if it is due to be locked, otherwise an empty range.
Range Locks::due(Mapping const* mapping, Range const& moved) {
  Policy const& policy = context_.policy;
  if (policy.mode == Mode::off) return {};
  Range const buffer = mapping != nullptr ? mapping->host : outlives_use() ? moved : Range{};
  if (buffer.size() < policy.min_bytes || mappings_.count_transfer(buffer) < policy.after) return {};
  if (on_a_stack(buffer)) {
    context_.journal.refused(buffer, "", "it lies on a stack");
    return {};
  }
  return buffer;
}

/// Whether a mapping has a lock.
bool Locks::is_held(Mapping const* mapping) const {
  return mapping != nullptr && mapping->use.hold && map()->holds(*mapping->use.hold);
}

bool Locks::crosses_a_transfer(Range const& range) const noexcept {
  return std::ranges::any_of(transfers_, [&](Transfer const& each) {
    return each.moved.meets(range) && !range.holds(each.moved);
  });
}

bool Locks::is_requested(std::vector<Range> const& locks) const noexcept {
  return std::ranges::any_of(requested_, [&](Requested const& each) { return has(locks, each.hold); });
}

/// Forget what the program has locked where the memory has gone.
void Locks::forget_gone() {
  requested_.remove_if([&](Requested const& each) {
    if (map()->holds(each.hold)) return false;
    say("what the program has locked in " + text(each.range) + " is locked no more, for its memory has gone");
    return true;
  });
}

/// Report locks of the program's own that end early, unless all of their memory is in a range.
void Locks::report_lost(std::vector<Range> const& locks, std::string const& why, Range const& beside) {
  for (Range const& lock : locks) {
    if (beside.holds(lock) || !is_requested({lock})) continue;
    say("what the program has locked in " + text(lock) + " is locked no more, for " + why);
  }
}

void Locks::refuse(Device& device, Range const& range, Refusal const& refusal) {
  context_.journal.refused(range, device.name(), refusal.why);
  if (context_.policy.mode != Mode::mandatory || refusal.kind != Kind::fails) return;
  Output::standard_error().write("pinning: PINNING_LOCK_MAPPED is mandatory, and " + text(range) +
                                 " cannot be locked for " + device.name() + ": " + refusal.why + "\n");
  std::_Exit(1);
}

// ---- the journal, with the mutex ----

void Locks::note(Range const& lock, Device& device, Moment began) {
  if (!context_.journal.is_kept()) return;
  note_ended(lock, "unlock: gone", began);
  if (!noted_.try_emplace(lock.start, Noted{lock, &device}).second) return;
  context_.journal.locked(lock, device.name(), began, now());
  context_.journal.locked_bytes(process_budget().figures().locked);
}

/// Note which of the locks that start in a range have ended by now.
void Locks::note_ended(Range const& in, char const* why, Moment began) {
  for (auto each = noted_.lower_bound(in.start); each != noted_.end() && each->first < in.end;) {
    auto const& [lock, device] = each->second;
    auto const region = map()->find_registered(lock.start);
    if (region && region->start == lock.start && region->whole == lock.size()) {
      ++each;
      continue;
    }
    context_.journal.unlocked(lock, device->name(), why, began, now());
    context_.journal.locked_bytes(process_budget().figures().locked);
    each = noted_.erase(each);
  }
}

}  // namespace pinning::tool::openmp
