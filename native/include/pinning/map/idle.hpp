// SPDX-License-Identifier: Apache-2.0
// Regions without a lock that stay registered. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

inline bool PinnedMap::give_back_idle(Address start) {
  if (is_parents()) return false;
  std::unique_lock guard(mutex_);
  auto const region = table_.find(start);
  if (!region || region->start != start || !table_.value(region->id).is_idle()) return false;
  unlock_last(guard, *region, table_.value(region->id));
  return true;
}

/// Make the region idle instead of unlocking it; false if it is not to be kept.
inline bool PinnedMap::make_idle(pagetable::Region const& region, Record& record) noexcept {
  if (!record.has(Record::kept) || !budget_.keeps(region.size)) return false;
  if (record.state.load(std::memory_order_relaxed) != State::locked) return false;
  if (record.held.load(std::memory_order_relaxed) != region.size) return false;  // it was cut short
  if (!remember_idle(region.start, record, region.size)) return false;
  set_state(record, State::idle);
  return true;
}

/// Enter it in `idle_` with a new serial, so that earlier holds do not count for the next lock. False without memory.
inline bool PinnedMap::remember_idle(Address start, Record& record, std::uint64_t bytes) noexcept {
  std::uint64_t const serial = budget_.next();
  try {
    idle_.emplace(serial, Idle{start, bytes});
  } catch (std::bad_alloc const&) {
    return false;
  }
  record.serial.store(serial, std::memory_order_release);
  oldest_idle_ = idle_.begin()->first;  // first: a thread that sees that some bytes are idle must find the region
  budget_.enter_idle(bytes);
  locker_.note_idle(start, bytes, true);
  return true;
}

inline void PinnedMap::forget_idle(Record const& record) noexcept {
  auto const entry = idle_.find(record.serial.load(std::memory_order_relaxed));
  if (entry == idle_.end()) return;
  budget_.leave_idle(entry->second.bytes);
  locker_.note_idle(entry->second.start, entry->second.bytes, false);
  idle_.erase(entry);
  oldest_idle_ = idle_.empty() ? Budget::unlimited : idle_.begin()->first;
}

/// Have the vendor unlock the region if it is idle, with the mutex released meanwhile; false if it is not.
inline bool PinnedMap::evict(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) {
  if (!table_.value(region.id).is_idle()) return false;
  unlock_last(guard, region, table_.value(region.id));
  return true;
}

/// Also if it has been invalidated meanwhile: the vendor has yet to unlock it.
inline std::optional<PinnedMap::Claim> PinnedMap::claim_idle(std::uint64_t number,
                                                                     Budget::Unlocking& unlocking) noexcept {
  std::lock_guard const guard(mutex_);
  auto const entry = idle_.find(number);
  if (entry == idle_.end()) return std::nullopt;
  Address const start = entry->second.start;
  Record& record = table_.value(table_.find(start)->id);
  unlocking.begin();
  forget_idle(record);
  bool const half = record.state.load(std::memory_order_relaxed) == State::half_unlocked;
  set_state(record, State::leaving);
  return Claim{start, half};
}

inline std::uint64_t PinnedMap::give_back(Claim claim) {
  std::unique_lock guard(mutex_);
  auto const region = table_.find(claim.start);
  State const before = claim.half ? State::half_unlocked : State::idle;
  return unlock_claimed(guard, *region, table_.value(region->id), before, true);
}

}  // namespace pinning
