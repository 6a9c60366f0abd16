// SPDX-License-Identifier: Apache-2.0
// How a range comes to be locked. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

inline std::optional<Hold> PinnedMap::try_lock(Address ptr, std::uint64_t size, Grain wish) {
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (size == 0 || !guard) return std::nullopt;
  bool watched = false;
  auto const look = [&](Record const& record) {
    watched = (record.flags.load(std::memory_order_relaxed) & Record::watched) != 0;
  };
  if (!table_.find(ptr, look)) return std::nullopt;
  // What has left by now may be this.
  if (watcher_ != nullptr && (watched ? !watcher_->settled() : watcher_->unheard())) return std::nullopt;
  return count_one_more(ptr, size, wish, none);
}

/// A region of others counts only if it is the `confirmed` one.
inline std::optional<Hold> PinnedMap::count_one_more(Address ptr, std::uint64_t size, Grain wish,
                                                     std::uint64_t confirmed) noexcept {
  auto region = table_.find(ptr, [](Record const&) {});
  if (!region) return std::nullopt;
  Record& record = table_.value(region->id);
  State const state = record.state.load(std::memory_order_relaxed);
  if (!Record::is_shown(state) && state != State::idle) return std::nullopt;
  std::uint64_t const held = record.held.load(std::memory_order_relaxed);
  if (!pagetable::Region{region->start, held, 0}.contains(ptr, size)) return std::nullopt;
  if (record.of_others() && record.serial.load(std::memory_order_relaxed) != confirmed) return std::nullopt;
  if (!suits(record.grain.load(std::memory_order_relaxed), wish)) return std::nullopt;
  if (state == State::idle) {
    forget_idle(record);
    settle_as(record, State::locked);
    return hold_of(region->id, region->start, ptr);
  }
  std::uint32_t const references = record.references.load(std::memory_order_relaxed);
  if (references == most_references) return std::nullopt;
  record.references.store(references + 1, std::memory_order_release);
  return hold_of(region->id, region->start, ptr);
}

/// `lock`; without `pieces`, `track`.
inline std::optional<Hold> PinnedMap::acquire(Address ptr, std::uint64_t size, Wish wish, Pieces* pieces) {
  check(ptr, size);
  // They outlive `guard`: to destroy what a locker threw may need a lock of the locker's own.
  std::exception_ptr refused, undo_refused;
  std::uint64_t confirmed = none;  // the region of others of which the vendor has said that it is still pinned
  hear_of_all_that_left();
  Unwatching const afterwards(*this);
  std::unique_lock guard(mutex_);
  for (;;) {
    if (auto const hold = count_one_more(ptr, size, wish.grain, confirmed)) return hold;
    Grain const grain = locker_.grains().choose(wish.grain);
    if (!settle(guard, ptr, size)) continue;
    if (auto const first = first_overlapping(ptr, size)) {
      if (evict(guard, *first) || confirm(guard, *first, confirmed)) continue;
      if (first->contains(ptr, size)) refuse_inside(*first);
      refuse(ptr, size, *first);
    }
    if (pieces != nullptr) pieces->cut(size, most_by_one_call_.load(std::memory_order_relaxed));
    std::uint64_t const unit = pieces != nullptr ? pieces->unit() : 0;
    Id id;
    if (siblings_ != nullptr && siblings_->several()) {
      guard.unlock();
      auto entered = enter_among_siblings(ptr, size, unit, wish.grain, confirmed);
      if (entered && entered->registered) return share(*entered, ptr);
      if (!entered) {
        guard.lock();
        continue;
      }
      id = entered->id;
    } else {
      id = enter(ptr, size, unit);
      guard.unlock();
    }
    Attempt attempt{id, ptr, size, undo_refused};
    if (pieces != nullptr) {
      Watching watching(*this, ptr, size);
      std::lock_guard const briefly(mutex_);
      watching.becomes(id);
    }
    std::optional<Pinned> pinned;
    try {
      try {
        if (pieces != nullptr) return lock_pieces(attempt, {wish.access, grain}, *pieces);
        pinned = pinned_by_others(ptr, size);
      } catch (AlreadyPinned const&) {
        refused = std::current_exception();
        if (take_back(attempt)) pinned = pinned_by_others(ptr, size);
      }
    } catch (Ended const&) {
      take_back(attempt);
      guard.lock();
      abandon(attempt);
      if (!undo_refused) throw;
      std::rethrow_exception(undo_refused);
    } catch (...) {
      take_back(attempt);
      guard.lock();
      abandon(attempt);
      throw;
    }
    guard.lock();
    bool const left = attempt.ours && table_.value(id).has_left();
    abandon(attempt);
    if (left) refuse_left(ptr, size);
    if (!pinned) {
      if (refused) std::rethrow_exception(refused);
      return std::nullopt;
    }
    if (!contains(*pinned, ptr, size)) throw PartialOverlap(ptr, size, pinned->base, pinned->size, By::others);
    // Other threads may be finding out the same about other parts of it. One of us enters the whole; to try the
    // vendor again instead would keep all of us in each other's way.
    while (!settle(guard, pinned->base, pinned->size)) {
    }
    if (auto const first = first_overlapping(pinned->base, pinned->size)) {
      if (is(*first, *pinned)) {
        confirmed = serial_of(*first);
      } else if (!first->contains(ptr, size) && !evict(guard, *first) && !confirm(guard, *first, confirmed)) {
        refuse(pinned->base, pinned->size, *first);
      }
      continue;
    }
    if (!suits(others_grain(), wish.grain)) throw not_fine(pinned->base, pinned->size, others_grain());
    Id const whole = enter(pinned->base, pinned->size, 0);
    publish(whole, {.device_ptr = pinned->device_ptr, .references = 1, .flags = external, .grain = others_grain()},
            pinned->size);
    return hold_of(whole, pinned->base, ptr);
  }
}

inline PinnedMap::Id PinnedMap::enter(Address ptr, std::uint64_t size, std::uint64_t piece) {
  Id const id = table_.insert(ptr, size, [&](Record& record) {
    record.device_ptr.store(0, std::memory_order_release);
    record.piece.store(piece, std::memory_order_release);
    record.held.store(0, std::memory_order_release);
    record.serial.store(budget_.next(), std::memory_order_release);
    record.references.store(0, std::memory_order_release);
    record.flags.store(0, std::memory_order_release);
    record.grain.store(Grain::unknown, std::memory_order_release);
    record.state.store(State::entering, std::memory_order_release);
  }).id;
  starts_.add(ptr);
  return id;
}

/// From now on its first `held` bytes are found.
inline void PinnedMap::publish(Id id, Facts const& facts, std::uint64_t held, State state) noexcept {
  Record& record = table_.value(id);
  record.device_ptr.store(facts.device_ptr, std::memory_order_release);
  record.held.store(held, std::memory_order_release);
  record.references.store(facts.references, std::memory_order_release);
  record.flags.store(facts.flags | (record.flags.load(std::memory_order_relaxed) & Record::watched),
                     std::memory_order_release);
  record.grain.store(facts.grain, std::memory_order_release);
  if (is_external(record)) budget_.enter_external(held);
  settle_as(record, state);
}

/// Has the vendor lock a region, one piece after another.
inline Hold PinnedMap::lock_pieces(Attempt& attempt, Wish wish, Pieces& pieces) {
  {
    AllRegistered one;  // made first: once something is locked nothing may fail
    one.try_emplace(attempt.id).first->second.by = &locker_;
    attempt.ends = one.extract(attempt.id);
  }
  PieceEnds& ends = attempt.ends.mapped().ends;
  budget_.reserve(attempt.size);
  attempt.reserved = attempt.size;
  Address device_ptr = 0;
  std::uint64_t most = 0;  // bytes by one call, since the vendor has refused more
  for (std::uint64_t held = 0;;) {
    std::uint64_t const bytes = pieces.next(held, attempt.size);
    ends.reserve(ends.size() + 1);
    Address piece_ptr;
    try {
      piece_ptr = budget_.with_room(bytes, [&] { return locker_.lock(attempt.start + held, bytes, wish); });
    } catch (VendorError const& error) {
      // Some kernels pin no more than 2 GiB by one call, some hosts no more than 96, and only trying tells.
      most = std::bit_floor(bytes - 1);
      if (!error.call.no_memory || held > 0 || most < least_cut || !pieces.cut(attempt.size, most)) throw;
      std::lock_guard const guard(mutex_);
      table_.value(attempt.id).piece.store(pieces.unit(), std::memory_order_release);
      continue;
    }
    if (most != 0) most_by_one_call_.store(std::exchange(most, 0), std::memory_order_relaxed);
    ends.push_back(held + bytes);
    if (held == 0) device_ptr = piece_ptr;
    if (piece_ptr != device_ptr + held) throw NotContiguous();
    held += bytes;
    if (held == attempt.size) tell_all(attempt.start, attempt.ends.mapped());
    auto const hold = grow(attempt, {.device_ptr = device_ptr, .references = 1, .grain = wish.grain}, held);
    pieces.locked(held);
    if (hold) return *hold;
  }
}

/// So much of a region is locked now; the lock, when that is all.
inline std::optional<Hold> PinnedMap::grow(Attempt& attempt, Facts const& facts, std::uint64_t held) {
  std::lock_guard const guard(mutex_);
  Record& record = table_.value(attempt.id);
  if (record.has_left()) refuse_left(attempt.start, attempt.size);
  State const now = held == attempt.size ? State::locked : State::growing;
  if (!record.is_growing()) {
    publish(attempt.id, facts, held, now);
  } else {
    record.held.store(held, std::memory_order_release);
    settle_as(record, now);
  }
  if (now == State::locked) {
    Registered const& registered = attempt.ends.mapped();
    if (registered.ends.size() > 1 || !registered.registrations.empty()) ends_.insert(std::move(attempt.ends));
    return hold_of(attempt.id, attempt.start, attempt.start);
  }
  if ((record.flags.load(std::memory_order_relaxed) & ending) == 0) return std::nullopt;
  throw Ended("the lock of " + describe(attempt.start, attempt.size) + " was ended when " + std::to_string(held) +
              " bytes were locked, because all locks are undone");
}

/// After a refused `lock`: has the vendor unlock what it has locked; whether it has done so. Where others have locks
/// in that, the region is theirs from now on, cut short.
inline bool PinnedMap::take_back(Attempt& attempt) noexcept {
  if (!attempt.ends) return attempt.ours;
  std::optional<Span> gone;
  {
    std::lock_guard const guard(mutex_);
    Record& record = table_.value(attempt.id);
    if (record.is_growing()) {
      std::uint32_t const others = record.references.load(std::memory_order_relaxed) - 1;
      record.flags.store(record.flags.load(std::memory_order_relaxed) & Record::watched, std::memory_order_release);
      attempt.ours = others == 0;
      if (!attempt.ours) {  // else it is still found just now, and whoever finds it is told of its last lock
        record.references.store(others, std::memory_order_release);
        give_up_all_but(attempt.ends.mapped().bytes(), attempt);
        ends_.insert(std::move(attempt.ends));
      }
      settle_as(record, attempt.ours ? State::leaving : State::locked);
      if (!attempt.ours) return false;
    }
    gone = gone_of(attempt.start, record);
  }
  try {
    unlock_pieces(attempt.start, attempt.ends.mapped(), gone);
  } catch (...) {
    attempt.refused = std::current_exception();
  }
  give_up_all_but(attempt.ends.mapped().bytes(), attempt);
  return attempt.ends.mapped().ends.empty();
}

/// After `take_back` the entry goes, unless the vendor has refused to unlock some of it; then an `unlock` can try again.
inline void PinnedMap::abandon(Attempt& attempt) noexcept {
  if (!attempt.ours) return;
  if (!attempt.ends || attempt.ends.mapped().ends.empty()) return leave(attempt.start);
  Record& record = table_.value(attempt.id);
  record.references.store(1, std::memory_order_release);
  ends_.insert(std::move(attempt.ends));
  settle_as(record, State::half_unlocked);
}

inline void PinnedMap::give_up_all_but(std::uint64_t bytes, Attempt& attempt) noexcept {
  if (attempt.reserved > bytes) budget_.give_up(std::exchange(attempt.reserved, bytes) - bytes);
}

}  // namespace pinning
