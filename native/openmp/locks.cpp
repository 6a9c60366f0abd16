// SPDX-License-Identifier: Apache-2.0
#include "locks.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <ranges>
#include <utility>

#include "drain.hpp"

namespace pinning::omp {

namespace {

/// Whether it is a library's own memory, which dlclose unmaps, and nobody says so. Waits for whoever loads a library.
bool is_of_a_library(Range const& range) {
  Dl_info object, program;
  if (dladdr(pointer(range.start), &object) == 0) return false;
  void* const main = dlsym(RTLD_DEFAULT, "main");
  return main == nullptr || dladdr(main, &program) == 0 || object.dli_fbase != program.dli_fbase;
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
  mappings_.add(number, host, device_ptr);
  for (auto const each : meeting(host)) each->second.mappings = mappings_.count(each->second.range);
}

void Locks::unmapped(int number, Address device_ptr) {
  Guard guard(mutex_);
  if (auto const host = mappings_.remove(number, device_ptr)) release(guard, *host);
}

void Locks::unmapped_host(int number, Address host) {
  Guard guard(mutex_);
  if (auto const range = mappings_.remove_host(number, host)) release(guard, *range);
}

Locks::Transfer Locks::before_transfer(int number, Device& device, Range const& moved, Address device_ptr) {
  if (moved.size() < context_.policy.min_bytes && !may_meet(moved)) return {};
  Guard guard(mutex_);
  Lock* lock = holding(moved);
  if (lock == nullptr || lock->changing) {
    settle(guard, moved);
    lock = holding(moved);
  }
  moving_.push_back(moved);
  Range wanted;
  std::string why;
  if (lock == nullptr) {
    wanted = due(number, moved, device_ptr);
    lock = replace(guard, device, moved, wanted, 0, why);
    if (!why.empty()) mappings_.refused(wanted);
  }
  if (lock == nullptr) {
    guard.unlock();
    if (!why.empty()) refuse(device, wanted.empty() ? moved : wanted, why);
    return {{}, true};
  }
  lock->last_use = ++uses_;
  lock->submitting++;
  submits_in_ = lock;
  return {lock->range, true};
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
  mappings_.freed(range);
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
    std::string why;
    for (auto const& each : meeting(range)) {
      if (each->second.asked == 0) continue;
      why = "the range " + text(range) + " shares bytes with " + text(each->second.range) +
            ", which is locked, and does not lie in it";
      return pinning_fail(PINNING_PARTIAL_OVERLAP, why.c_str());
    }
    lock = replace(guard, device, range, range, 1, why);
    if (lock == nullptr) return pinning_fail(PINNING_VENDOR_ERROR, why.c_str());
  } else {
    lock->asked++;
  }
  lock->last_use = ++uses_;
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

Locks::Lock* Locks::holding(Range const& range) {
  auto const next = table_.upper_bound(range.start);
  if (next == table_.begin() || !std::prev(next)->second.range.holds(range)) return nullptr;
  return &std::prev(next)->second;
}

void Locks::settle(Guard& guard, Range const& range) {
  settled_.wait(guard, [&] {
    auto const found = meeting(range);
    return std::ranges::none_of(found, [](auto const& each) { return each->second.changing; });
  });
}

/// The buffer of this transfer, if it is time to lock it; else nothing.
Range Locks::due(int number, Range const& moved, Address device_ptr) {
  Policy const& policy = context_.policy;
  if (policy.mode == Mode::off) return {};
  auto const mapped = mappings_.find(number, moved, device_ptr);
  bool const outlives = policy.until_freed && context_.frees_seen;
  Range const buffer = mapped ? *mapped : outlives ? moved : Range{};
  if (buffer.size() < policy.min_bytes || mappings_.count_transfer(buffer) < policy.after) return {};
  if (context_.stacks.meet(buffer)) {
    context_.journal.refused(buffer, "", "it lies on a stack");
    return {};
  }
  return buffer;
}

/// One lock that holds what is moved and what is wanted, in place of all that these meet, for who asked for those and
/// `asked` more. Where nothing is wanted, or it cannot be locked, what is in the way of the transfer just goes. Null,
/// and perhaps why, where there is no lock then.
Locks::Lock* Locks::replace(Guard& guard, Device& device, Range const& moved, Range const& wanted, std::size_t asked,
                            std::string& why) {
  std::size_t const budget = asked != 0 ? ~std::size_t{0} : context_.policy.budget;
  std::size_t before = 0;
  for (;;) {
    // Whoever crosses a lock shall have it too; but not where nobody would say that the rest is freed.
    bool const widens = !wanted.empty() || (context_.frees_seen && !meeting(moved).empty());
    Range target = widens ? widened(wanted.empty() ? moved : around(moved, wanted)) : Range{};
    Some go = meeting(widens ? target : moved);
    if (go.empty() && !widens) return nullptr;
    if (std::ranges::any_of(go, [](auto const& each) { return each->second.changing; })) {
      settle(guard, around(moved, target.empty() ? moved : target));
      if (Lock* const made = holding(moved)) {
        made->asked += asked + before;
        return made;
      }
      continue;
    }
    auto const crosses = [&](Range const& other) { return other.meets(target) && !target.holds(other); };
    if (std::ranges::any_of(moving_, crosses)) {
      why = "a transfer that is being submitted crosses it";
      target = {};
      go = meeting(moved);
    } else if (widens && !make_room(go, target.size(), budget)) {
      why = "PINNING_LOCK_BUDGET allows " + in_units(budget) + " at once";
      target = {};
      go = meeting(moved);
    }
    for (auto const& each : go) before += each->second.asked;
    if (!drop(guard, go, "unlock: crossed")) {
      why = "the vendor refuses to unlock what a transfer crosses";
      return nullptr;
    }
    if (!target.empty()) {
      if (!meeting(target).empty() || std::ranges::any_of(moving_, crosses)) continue;  // others came meanwhile
      if (Lock* const made = make(guard, device, target, asked + before, why)) return made;
    }
    if (before != 0) {
      say("what the program has locked around " + text(moved) + " is locked no more, for a transfer crosses it" +
          (why.empty() ? "" : ": " + why));
    }
    return nullptr;
  }
}

/// The range and all locks that it meets, and that these meet.
Range Locks::widened(Range range) {
  for (Range before; before != range;) {
    before = range;
    for (auto const& each : meeting(range)) range = around(range, each->second.range);
  }
  return range;
}

/// Adds to `go`, which goes anyway, those that nobody needs, oldest first, until there is room for `size` bytes.
bool Locks::make_room(Some& go, std::size_t size, std::size_t budget) {
  std::size_t left = context_.locked_bytes;
  for (auto const& each : go) left -= each->second.range.size();
  Some idle;
  for (auto each = table_.begin(); each != table_.end(); ++each) {
    if (each->second.idle() && std::ranges::find(go, each) == go.end()) idle.push_back(each);
  }
  std::ranges::sort(idle, std::greater(), [](auto const& each) { return each->second.last_use; });
  while (size > budget || left > budget - size) {
    if (size > budget || idle.empty()) return false;
    left -= idle.back()->second.range.size();
    go.push_back(idle.back());
    idle.pop_back();
  }
  return true;
}

Locks::Lock* Locks::make(Guard& guard, Device& device, Range const& range, std::size_t asked, std::string& why) {
  Lock& lock = table_[range.start];
  lock.range = range;
  lock.device = &device;
  changed();
  bool const needed = asked != 0 || mappings_.count(range) != 0;
  guard.unlock();
  bool const stays = context_.policy.until_freed && context_.frees_seen && !is_of_a_library(range);
  void* device_ptr = nullptr;
  auto const began = now();
  pinning_status status = PINNING_UNAVAILABLE;
  if (!needed && !stays) {
    why = "it is a library's and not mapped, so nobody would say when it goes";
  } else if (pinning_map* const map = device.map(); map == nullptr) {
    why = "there is no library for " + device.name();
  } else {
    status = pinning_lock(map, pointer(range.start), range.size(), &device_ptr);
    if (status != PINNING_OK) why = pinning_last_error();
  }
  if (status == PINNING_OK) context_.journal.locked(range, device.name(), began, now());
  guard.lock();
  settled_.notify_all();
  if (status != PINNING_OK) {
    table_.erase(range.start);
    changed();
    return nullptr;
  }
  lock.device_ptr = reinterpret_cast<Address>(device_ptr);
  lock.mappings = mappings_.count(range);
  lock.asked = asked;
  lock.stays = stays;
  lock.changing = false;
  changed();
  return &lock;
}

/// Unlocks them. False where the vendor refuses one, which stays; the others go.
bool Locks::drop(Guard& guard, Some const& which, char const* why) {
  if (which.empty()) return true;
  for (auto const& each : which) each->second.changing = true;
  // A copy that is under way in a lock must be over when that goes. But who frees memory while it submits waits for
  // nobody, or two of them could wait for each other.
  if (submits_in_ == nullptr) {
    settled_.wait(guard, [&] {
      return std::ranges::all_of(which, [](auto const& each) { return each->second.submitting == 0; });
    });
  }
  guard.unlock();
  drain(which.front()->second.device->vendor());
  std::vector<bool> gone;
  for (auto const& [start, lock] : which | std::views::transform([](auto const& each) -> auto& { return *each; })) {
    auto const began = now();
    pinning_status const status = pinning_unlock(lock.device->map(), pointer(start));
    gone.push_back(status == PINNING_OK || status == PINNING_NOT_LOCKED);
    if (gone.back()) context_.journal.unlocked(lock.range, lock.device->name(), why, began, now());
    else say("what is locked at " + text(lock.range) + " stays locked: " + pinning_last_error());
  }
  guard.lock();
  for (std::size_t i = 0; i < which.size(); ++i) {
    if (!gone[i]) which[i]->second.changing = false;
    else if (which[i]->second.submitting == 0) table_.erase(which[i]);
    else which[i]->second.gone = true;  // whoever submits in it lets go of it
  }
  changed();
  settled_.notify_all();
  return std::ranges::all_of(gone, std::identity());
}

/// After an unmapping: the locks that nobody needs any more go, or wait for the memory to be freed.
void Locks::release(Guard& guard, Range const& host) {
  settle(guard, host);
  Some go;
  for (auto const& each : meeting(host)) {
    each->second.mappings = mappings_.count(each->second.range);
    if (each->second.idle() && !each->second.stays) go.push_back(each);
  }
  drop(guard, go, "unlock: unmapped");
}

void Locks::refuse(Device& device, Range const& range, std::string const& why) {
  context_.journal.refused(range, device.name(), why);
  if (context_.policy.mode != Mode::mandatory) return;
  std::fprintf(stderr, "pinning: PINNING_LOCK_MAPPED is mandatory, and %s cannot be locked for %s: %s\n",
               text(range).c_str(), device.name().c_str(), why.c_str());
  std::_Exit(1);
}

/// To be called with the mutex, after each change of the table.
void Locks::changed() {
  low_ = table_.empty() ? ~Address{0} : table_.begin()->first;
  high_ = table_.empty() ? 0 : std::prev(table_.end())->second.range.end;
  std::size_t sum = 0;
  for (auto const& [start, lock] : table_) sum += lock.range.size();
  context_.locked_bytes += sum - bytes_;
  bytes_ = sum;
  if (context_.journal.trace) context_.journal.trace->locked_bytes(context_.locked_bytes);
}

}  // namespace pinning::omp
