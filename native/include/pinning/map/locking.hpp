// SPDX-License-Identifier: Apache-2.0
// How a range is locked. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

inline std::optional<Hold> PinnedMap::try_lock(Address ptr, std::uint64_t size, Coherence wanted) {
  std::unique_lock const guard(mutex_, std::try_to_lock);
  if (size == 0 || !guard) return std::nullopt;
  bool watched = false;
  if (!table_.find(ptr, [&](Record const& record) { watched = record.has(Record::watched); })) return std::nullopt;
  // The memory that is gone may be this region's.
  if (watcher_ != nullptr && (watched ? !watcher_->is_quiet() : watcher_->has_pending())) return std::nullopt;
  return count_existing(ptr, size, wanted, no_serial);
}

/// Count one more lock of a region that holds the range. One that others have pinned must be `confirmed`.
inline std::optional<Hold> PinnedMap::count_existing(Address ptr, std::uint64_t size, Coherence wanted,
                                                     std::uint64_t confirmed) noexcept {
  auto region = table_.find(ptr);
  if (!region) return std::nullopt;
  Record& record = table_.value(region->id);
  State const state = record.state.load(std::memory_order_relaxed);
  if (!Record::is_shown(state) && state != State::idle) return std::nullopt;
  std::uint64_t const held = record.held.load(std::memory_order_relaxed);
  if (!pagetable::Region{region->start, held, 0}.contains(ptr, size)) return std::nullopt;
  if (record.of_others() && record.serial.load(std::memory_order_relaxed) != confirmed) return std::nullopt;
  if (!suits(record.coherence.load(std::memory_order_relaxed), wanted)) return std::nullopt;
  if (state == State::idle) {
    forget_idle(record);
    set_state(record, State::locked);
    return hold_of(region->id, region->start, ptr);
  }
  std::uint32_t const references = record.references.load(std::memory_order_relaxed);
  if (references == most_references) return std::nullopt;
  record.references.store(references + 1, std::memory_order_release);
  return hold_of(region->id, region->start, ptr);
}

// Note [PinnedMap design]
// ~~~~~~~~~~~~~~~~~~~~~~~
// Three rules: one registration with the vendor for each range, however many locks are in it; no vendor call under a
// mutex, because a registration may take a second; and `find` takes no mutex at all.
//
// Structures
//   table_   page table: address -> region, with a Record of atomics for each. Every region is in it, from before the
//            vendor is asked to lock until after the vendor has unlocked, so that overlaps are seen in any state.
//   ends_    where the pieces of a region end, which locker has locked it, which registrars have it; has no entry for a
//            region of one piece that the map's own locker has locked and no registrar has.
//   idle_    cached registrations (regions without a lock) by serial, so oldest first: what the budget takes back.
//   starts_  a filter over the table: may a region start in this range? Read by threads that may take no mutex.
//
// Mutexes
//   `mutex_` guards every change to the above. It is held for a few hundred nanoseconds, never during a vendor call,
//   a Python call or a wait. A region whose vendor call is in progress is marked as in transit, claimed by the calling
//   thread; any other thread that needs the outcome waits on `state_changed_`. The budget's mutex is taken before
//   `mutex_`, the page table's within it. A function that is given `guard` may release the mutex and take it
//   again, and the table must then be searched again: therefore `acquire` is a loop.
//
// The life of a region
//
//     enter          publish / grow                    last unlock                       leave
//   ---------> entering ---------> [growing] --> locked ---------> leaving ----------------------> (gone)
//                  |                               |  ^              |  the vendor refuses
//                  | the vendor refuses            |  | next lock    v
//                  v                     kept by   v  |         half_unlocked: `unlock` tries again
//                (gone)                the budget  idle
//
//   Only `growing` and `locked` are found and counted. A region in pieces grows: each piece is counted and found as
//   soon as it is locked, and a lock of a part that is not locked yet waits. If a later piece fails and others have
//   locks in the earlier ones, the region is cut short instead of undone. Memory that is unmapped, moved or discarded
//   makes its region `invalidated`: no longer found, and unlocked by `drain` of the next thread. External regions
//   (pinned by other code) skip the vendor: entered as `locked`, confirmed with the vendor before each new lock,
//   removed without a call.
//
// Acquiring a lock: `acquire` repeats these phases until one of them has the answer.
//   count_existing   a region holds the range: one more reference.
//   make_way         something overlaps: wait for it, evict or confirm it, or refuse. Decided before any vendor call.
//   lock_entered     the range is entered; the vendor's calls, without the mutex. On failure all is as before.
//   adopt_external   the vendor says "already pinned": enter what it reports as external.
//
// Why `find` needs no lock: the table's readers are lock-free (Note [PageTable design]), and a Record is read between
// two reads of its version, so all of an answer belongs to one region. Within the region's life a writer stores what a
// state promises (`device_ptr`, `held`) before the state, by release; a reader that sees the state sees these. `held`
// only rises while a region is shown. A reader may be late by the duration of its own read, never wrong.

/// `lock`; without `pieces`, `track`.
inline std::optional<Hold> PinnedMap::acquire(Address ptr, std::uint64_t size, LockOptions options, Pieces* pieces) {
  check(ptr, size);
  Request request{ptr, size, options, pieces};  // outlives `guard`: destroying a locker's error may take the GIL
  await_invalidations(ptr, size);
  std::unique_lock guard(mutex_);
  for (;;) {
    if (auto const hold = count_existing(ptr, size, options.coherence, request.confirmed)) return hold;
    request.coherence = locker_.coherence().choose(options.coherence);
    if (!make_way(guard, request)) continue;
    if (pieces != nullptr) pieces->cut(size, most_by_one_call_.load(std::memory_order_relaxed));
    Id const id = enter(ptr, size, pieces != nullptr ? pieces->unit() : 0);
    guard.unlock();
    std::optional<Pinned> pinned;
    if (auto const hold = lock_entered(guard, request, id, pinned)) return hold;
    if (pinned) {
      if (auto const hold = adopt_external(guard, request, *pinned)) return hold;
    } else if (request.already_pinned) {
      std::rethrow_exception(request.already_pinned);
    } else {
      return std::nullopt;
    }
  }
}

/// Whether nothing is in the way of the range. Otherwise waits for it, has it unlocked or confirmed, and the caller
/// must look again; throws if it stays.
inline bool PinnedMap::make_way(std::unique_lock<std::mutex>& guard, Request& request) {
  if (!await_outcomes(guard, request.ptr, request.size) || !drain_beside(guard, request.ptr, request.size)) return false;
  auto const first = first_overlapping(request.ptr, request.size);
  if (!first) return true;
  if (evict(guard, *first) || confirm(guard, *first, request.confirmed)) return false;
  if (first->contains(request.ptr, request.size)) refuse_inside(*first);
  refuse(request.ptr, request.size, *first);
}

/// The same for a larger range that is to be entered around the requested one; `first` is in the way of that.
inline void PinnedMap::make_way_around(std::unique_lock<std::mutex>& guard, Request& request, Address start,
                                       std::uint64_t size, pagetable::Region const& first) {
  if (first.contains(request.ptr, request.size)) return;
  if (evict(guard, first) || confirm(guard, first, request.confirmed)) return;
  refuse(start, size, first);
}

/// Have the vendor lock a range that has been entered, without the mutex. Without a result the entry is gone, the mutex
/// is held, and `pinned` is what others have pinned there.
inline std::optional<Hold> PinnedMap::lock_entered(std::unique_lock<std::mutex>& guard, Request& request, Id id,
                                                   std::optional<Pinned>& pinned) {
  Attempt attempt{id, request.ptr, request.size, request.undo_refused};
  try {
    if (request.pieces != nullptr) {
      if (auto const hold = lock_watched(attempt, request)) return hold;
    }
    if (take_back(attempt)) pinned = pinned_by_others(request.ptr, request.size);
  } catch (Ended const&) {
    roll_back(guard, attempt);
    if (request.undo_refused) std::rethrow_exception(request.undo_refused);
    throw;
  } catch (...) {
    roll_back(guard, attempt);
    throw;
  }
  guard.lock();
  bool const invalidated = attempt.ours && table_.value(id).is_invalidated();
  abandon(guard, attempt);
  if (invalidated) refuse_invalidated(request.ptr, request.size);
  return std::nullopt;
}

/// Nullopt if the vendor reports that some of it is already pinned; pieces before that may be locked.
inline std::optional<Hold> PinnedMap::lock_watched(Attempt& attempt, Request& request) {
  {
    Watching watching(*this, attempt.start, attempt.size);
    std::lock_guard const guard(mutex_);
    watching.becomes(attempt.id);
  }
  try {
    return lock_pieces(attempt, request);
  } catch (AlreadyPinned const&) {
    request.already_pinned = std::current_exception();
    return std::nullopt;
  }
}

/// Enter the whole of what others have pinned around the range; nullopt if something was in the way: look again.
inline std::optional<Hold> PinnedMap::adopt_external(std::unique_lock<std::mutex>& guard, Request& request,
                                                     Pinned const& pinned) {
  if (!contains(pinned, request.ptr, request.size)) {
    Span const wanted{request.ptr, request.ptr + request.size}, others{pinned.base, pinned.base + pinned.size};
    throw PartialOverlap(wanted, others, By::others, covering(wanted, others));
  }
  // Other threads may be adopting other parts of it. One of them enters the whole; if each tried the vendor again
  // instead, they would keep each other waiting.
  while (!await_outcomes(guard, pinned.base, pinned.size)) {
  }
  if (auto const first = first_overlapping(pinned.base, pinned.size)) {
    if (is(*first, pinned)) {
      request.confirmed = serial_of(*first);
    } else {
      make_way_around(guard, request, pinned.base, pinned.size, *first);
    }
    return std::nullopt;
  }
  Coherence const coherence = external_coherence();
  if (!suits(coherence, request.options.coherence)) throw not_fine(pinned.base, pinned.size, coherence);
  Id const whole = enter(pinned.base, pinned.size, 0);
  publish(whole, {.device_ptr = pinned.device_ptr, .references = 1, .flags = external, .coherence = coherence},
          pinned.size);
  return hold_of(whole, pinned.base, request.ptr);
}

inline PinnedMap::Id PinnedMap::enter(Address ptr, std::uint64_t size, std::uint64_t piece) {
  Id const id = table_.insert(ptr, size, [&](Record& record) {
    record.device_ptr.store(0, std::memory_order_release);
    record.piece.store(piece, std::memory_order_release);
    record.held.store(0, std::memory_order_release);
    record.serial.store(budget_.next(), std::memory_order_release);
    record.references.store(0, std::memory_order_release);
    record.flags.store(0, std::memory_order_release);
    record.coherence.store(Coherence::unknown, std::memory_order_release);
    record.state.store(State::entering, std::memory_order_release);
  }).id;
  starts_.add(ptr);
  return id;
}

/// Make the first `held` bytes visible to lookups.
inline void PinnedMap::publish(Id id, Facts const& facts, std::uint64_t held, State state) noexcept {
  Record& record = table_.value(id);
  record.device_ptr.store(facts.device_ptr, std::memory_order_release);
  record.held.store(held, std::memory_order_release);
  record.references.store(facts.references, std::memory_order_release);
  record.flags.store(facts.flags | (record.flags.load(std::memory_order_relaxed) & Record::watched),
                     std::memory_order_release);
  record.coherence.store(facts.coherence, std::memory_order_release);
  if (record.has(external)) budget_.enter_external(held);
  set_state(record, state);
}

/// Have the vendor lock a region, one piece after another.
inline Hold PinnedMap::lock_pieces(Attempt& attempt, Request const& request) {
  Locker& locker = request.options.locker != nullptr ? *request.options.locker : locker_;
  LockOptions const options{request.options.access, request.coherence};
  Pieces& pieces = *request.pieces;
  {
    AllRegistered one;  // made first: once something is locked nothing may fail
    one.try_emplace(attempt.id).first->second.by = &locker;
    attempt.ends = one.extract(attempt.id);
  }
  PieceEnds& ends = attempt.ends.mapped().ends;
  budget_.reserve(attempt.size);
  attempt.reserved = attempt.size;
  Address device_ptr = 0;
  std::uint64_t most = 0;  // bytes per call, once the vendor has refused more
  for (std::uint64_t held = 0;;) {
    std::uint64_t const bytes = pieces.next(held, attempt.size);
    if (ends.size() == ends.capacity()) ends.reserve(2 * ends.size() + 1);
    Address piece_ptr;
    try {
      piece_ptr = budget_.with_room(bytes, [&] { return locker.lock(attempt.start + held, bytes, options); }, this);
    } catch (VendorError const& error) {
      // Some kernels pin at most 2 GiB in one call, some hosts at most 96 GiB, which only trying shows.
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
    if (held == attempt.size) register_with_all(attempt.start, attempt.ends.mapped());
    auto const hold = grow(attempt, {.device_ptr = device_ptr, .references = 1, .coherence = options.coherence}, held);
    pieces.locked(held);
    if (hold) return *hold;
  }
}

/// Record how much of a region is locked; returns the lock once that is all of it.
inline std::optional<Hold> PinnedMap::grow(Attempt& attempt, Facts const& facts, std::uint64_t held) {
  std::lock_guard const guard(mutex_);
  Record& record = table_.value(attempt.id);
  if (record.is_invalidated()) refuse_invalidated(attempt.start, attempt.size);
  State const now = held == attempt.size ? State::locked : State::growing;
  if (!record.is_growing()) {
    publish(attempt.id, facts, held, now);
  } else {
    record.held.store(held, std::memory_order_release);
    set_state(record, now);
  }
  if (now == State::locked) {
    Registered const& registered = attempt.ends.mapped();
    if (registered.ends.size() > 1 || registered.by != &locker_ || !registered.registrations.empty()) {
      ends_.insert(std::move(attempt.ends));
    }
    return hold_of(attempt.id, attempt.start, attempt.start);
  }
  if (!record.has(ending)) return std::nullopt;
  throw Ended("the lock of " + describe(attempt.start, attempt.size) + " was ended when " + std::to_string(held) +
              " bytes were locked, because all locks are undone");
}

/// After a refused `lock`: have the vendor unlock what it has locked; returns whether it has done so. If others have
/// locks in the region, it is theirs from now on, cut short.
inline bool PinnedMap::take_back(Attempt& attempt) noexcept {
  if (!attempt.ends) return attempt.ours;
  Budget::Unlocking unlocking(budget_);
  unlocking.begin();
  std::optional<Span> gone;
  {
    std::lock_guard const guard(mutex_);
    Record& record = table_.value(attempt.id);
    if (record.is_growing()) {
      std::uint32_t const others = record.references.load(std::memory_order_relaxed) - 1;
      record.flags.store(record.flags.load(std::memory_order_relaxed) & Record::watched, std::memory_order_release);
      attempt.ours = others == 0;
      if (!attempt.ours) {  // if ours, lookups may still find it, with its last lock
        record.references.store(others, std::memory_order_release);
        release_all_but(attempt.ends.mapped().bytes(), attempt);
        ends_.insert(std::move(attempt.ends));
      }
      set_state(record, attempt.ours ? State::leaving : State::locked);
      if (!attempt.ours) return false;
    }
    gone = invalidated_part(attempt.start, record);
    attempt.told = gone.has_value();
  }
  try {
    unlock_pieces(attempt.start, attempt.ends.mapped(), gone);
  } catch (...) {
    attempt.refused = std::current_exception();
  }
  release_all_but(attempt.ends.mapped().bytes(), attempt);
  return attempt.ends.mapped().ends.empty();
}

/// After `take_back`, remove the entry, unless the vendor has refused to unlock some of it, for `unlock` to try again.
inline void PinnedMap::abandon(std::unique_lock<std::mutex>& guard, Attempt& attempt) noexcept {
  if (!attempt.ours) return;
  if (!attempt.ends || attempt.ends.mapped().ends.empty()) {
    return leave(guard, {attempt.start, attempt.size, attempt.id});
  }
  Record& record = table_.value(attempt.id);
  record.references.store(1, std::memory_order_release);
  ends_.insert(std::move(attempt.ends));
  set_state(record, refused_state(record, attempt.told));
}

/// Undo a failed lock, and take the mutex.
inline void PinnedMap::roll_back(std::unique_lock<std::mutex>& guard, Attempt& attempt) {
  take_back(attempt);
  guard.lock();
  abandon(guard, attempt);
}

inline void PinnedMap::release_all_but(std::uint64_t bytes, Attempt& attempt) noexcept {
  if (attempt.reserved > bytes) budget_.release(std::exchange(attempt.reserved, bytes) - bytes);
}

}  // namespace pinning
