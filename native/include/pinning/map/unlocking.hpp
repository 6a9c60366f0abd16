// SPDX-License-Identifier: Apache-2.0
// How a region is unlocked and removed. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

/// False if no lock of a region with this serial is held there.
inline bool PinnedMap::count_down(Address ptr, std::uint64_t serial, bool keep) {
  if (is_parents()) return false;
  await_invalidations();  // otherwise the vendor might unlock what has replaced it
  std::unique_lock guard(mutex_);
  for (;;) {
    auto region = table_.find(ptr);
    if (!region || !is(*region, serial)) return false;
    Record& record = table_.value(region->id);
    std::uint32_t const references = record.references.load(std::memory_order_relaxed);
    if (record.in_transit() && !(record.is_growing() && references > 1)) {
      state_changed_.wait(guard);
      continue;
    }
    if (record.is_invalidated()) {
      if (record.state.load(std::memory_order_relaxed) == State::invalidated) {
        drain(guard, *region);
      } else if (serial == any_serial) {  // the vendor has refused before: an unlock by address reports its error
        unlock_last(guard, *region, record);
        return true;
      }
      return false;
    }
    if (references == 0 || record.is_idle()) return false;
    if (keep && !record.has(external)) record.set(Record::kept);
    if (references > 1 || record.has(registered)) {
      record.references.store(references - 1, std::memory_order_release);
    } else if (record.has(external)) {
      leave(guard, *region);
    } else if (make_idle(*region, record)) {
      guard.unlock();
      if (budget_.has_excess()) budget_.give_back_excess();
    } else {
      unlock_last(guard, *region, record);
    }
    return true;
  }
}

inline bool PinnedMap::try_count_down(Address ptr, std::uint64_t serial, bool keep) {
  if (is_parents()) return false;
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (!guard) return false;
  auto region = table_.find(ptr);
  if (!region || !is(*region, serial)) return false;
  Record& record = table_.value(region->id);
  std::uint32_t const references = record.references.load(std::memory_order_relaxed);
  if (references == 0 || record.is_invalidated() || record.is_idle()) return false;
  if (record.in_transit() && !(record.is_growing() && references > 1)) return false;
  if (keep && !record.has(external)) record.set(Record::kept);
  if (references > 1) {
    record.references.store(references - 1, std::memory_order_release);
    return true;
  }
  return budget_.has_room_to_keep(region->size) && make_idle(*region, record);
}

/// Have the vendor unlock the region, with the mutex released meanwhile.
inline void PinnedMap::unlock_last(std::unique_lock<std::mutex>& guard, pagetable::Region const& region,
                                   Record& record) {
  if (record.has(external)) {
    leave(guard, region);
    return;
  }
  State const before = record.state.load(std::memory_order_relaxed);
  bool const idle = record.is_idle();
  Budget::Unlocking unlocking(budget_);
  unlocking.begin();
  forget_idle(record);
  set_state(record, State::leaving);
  unlock_claimed(guard, region, record, before, idle);
}

/// The same for a region that is already leaving; returns the bytes that are no longer locked.
inline std::uint64_t PinnedMap::unlock_claimed(std::unique_lock<std::mutex>& guard, pagetable::Region const& region,
                                               Record& record, State before, bool idle) {
  AllRegistered::node_type kept = ends_.extract(region.id);
  std::uint64_t const bytes = kept ? kept.mapped().bytes() : region.size;
  std::size_t const registrations = kept ? kept.mapped().registrations.size() : 0;
  auto const gone = invalidated_part(region.start, record);
  guard.unlock();
  try {
    if (kept) deregister(kept.mapped().registrations);
    try {
      if (kept) {
        unlock_pieces(region.start, kept.mapped(), gone);
      } else {
        unlock_piece(locker_, region.start, gone);
      }
    } catch (...) {
      if (kept) budget_.release(bytes - kept.mapped().bytes());
      throw;
    }
    budget_.release(bytes);
  } catch (...) {
    guard.lock();
    std::uint64_t const left = kept ? kept.mapped().bytes() : region.size;
    bool const as_before = left == bytes && !record.is_invalidated() &&
                           (registrations == 0 || kept.mapped().registrations.size() == registrations);
    ends_.insert(std::move(kept));
    if (idle) {
      if (!as_before) record.references.store(0, std::memory_order_release);
      remember_idle(region.start, record, left);
    }
    set_state(record, as_before ? before : refused_state(record, gone.has_value()));
    throw;
  }
  guard.lock();
  leave(guard, region);
  return bytes;
}

/// The state after the vendor has refused. If it was not told that the memory is gone, `drain` asks it once more.
inline Record::State PinnedMap::refused_state(Record const& record, bool told) noexcept {
  return record.is_invalidated() && !told ? State::invalidated : State::half_unlocked;
}

/// Remove the region from the table. If it is watched, end that first, with the mutex released meanwhile.
inline void PinnedMap::leave(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) noexcept {
  Record& record = table_.value(region.id);
  set_state(record, State::leaving);
  if (record.has(Record::watched)) {
    guard.unlock();
    watcher_->unwatch(region.start, region.size);
    guard.lock();
  }
  table_.remove(region.start);
  starts_.remove(region.start);
  if (record.is_invalidated()) {
    invalidated_count_.store(invalidated_count_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
  }
  if (record.has(external)) budget_.leave_external(region.size);
  set_state(record, State::leaving);
}

inline void PinnedMap::clear(bool wait) {
  if (is_parents()) return;
  std::exception_ptr first_error;
  std::unique_lock guard(mutex_);
  for (auto const& range : table_.regions()) {
    if (wait) {
      do {
        end_growth(range.start);
      } while (!await_outcomes(guard, range.start, range.size));
    }
    auto region = table_.find(range.start);
    if (!region || *region != range) continue;
    Record& record = table_.value(region->id);
    if (record.in_transit()) continue;
    try {
      unlock_last(guard, *region, record);
    } catch (...) {
      if (!first_error) first_error = std::current_exception();
      guard.unlock();  // before this error is destroyed, see `acquire`
      guard.lock();
    }
  }
  if (first_error) std::rethrow_exception(first_error);
}

inline void PinnedMap::end_growth(Address start) noexcept {
  auto const region = table_.find(start);
  if (!region || !table_.value(region->id).is_growing()) return;
  table_.value(region->id).set(ending);
}

/// Whether no vendor call is in progress in the range, or due for an invalidated region; otherwise waits for it or
/// makes it, and must be called again. A growing region has grown by one piece then; one that does not contain the
/// range is skipped, because the range is refused anyway.
inline bool PinnedMap::await_outcomes(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size) {
  for (auto const& region : table_.overlapping(ptr, size)) {
    Record const& record = table_.value(region.id);
    if (record.is_growing() && !region.contains(ptr, size)) continue;
    if (record.in_transit()) {
      state_changed_.wait(guard);
    } else if (!drain(guard, region)) {
      continue;
    }
    return false;
  }
  return true;
}

inline bool PinnedMap::changed_since(std::uint64_t changes, Address ptr, std::uint64_t size) {
  std::unique_lock guard(mutex_);
  while (!await_outcomes(guard, ptr, size) && changes_ == changes) {
  }
  return changes_ != changes;
}

inline bool PinnedMap::is_changing(Address ptr, std::uint64_t size) const {
  auto const regions = table_.overlapping(ptr, size);
  return std::any_of(regions.begin(), regions.end(), [&](auto const& each) { return !look(each.start, 1, true); });
}

inline void PinnedMap::await_changes(Address ptr, std::uint64_t size) {
  await_invalidations();
  std::unique_lock guard(mutex_);
  while (!await_outcomes(guard, ptr, size)) {
  }
}

inline void PinnedMap::set_state(Record& record, State state) noexcept {
  State const before = record.state.load(std::memory_order_relaxed);
  record.state.store(state, std::memory_order_release);
  size_.store(size_.load(std::memory_order_relaxed) + Record::is_shown(state) - Record::is_shown(before),
              std::memory_order_relaxed);
  changes_.store(changes_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  state_changed_.notify_all();
}

}  // namespace pinning
