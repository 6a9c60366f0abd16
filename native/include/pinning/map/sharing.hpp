// SPDX-License-Identifier: Apache-2.0
// What maps of one vendor share. A part of pinned_map.hpp, which includes it.
#pragma once

#include <algorithm>

namespace pinning {

/// What a sibling has in a range that is to be entered here.
struct PinnedMap::Found {
  enum class What : std::uint8_t { nothing, changing, idle_in_the_way, registered } what = What::nothing;
  Address start = 0;
  std::uint64_t size = 0, piece = 0;
  Coherence coherence = Coherence::unknown;
  bool idle = false;
  AllRegistered::node_type registered{};
};

/// A region entered before the vendor is called, with the bounds of what a sibling has `registered`, if anything.
struct PinnedMap::Claimed {
  Id id;
  Address start;
  Coherence coherence = Coherence::unknown;
  AllRegistered::node_type registered{};
};

/// Report what this map has in the range to a sibling that holds the claim and is about to enter it. A region to be
/// shared is marked so. Throws what a lock of the range here would throw, if a region is in the way.
inline PinnedMap::Found PinnedMap::tell(Address ptr, std::uint64_t size) {
  using What = Found::What;
  std::lock_guard const guard(mutex_);
  for (auto const& region : table_.overlapping(ptr, size)) {
    Record& record = table_.value(region.id);
    State const state = record.state.load(std::memory_order_relaxed);
    bool const grows_elsewhere = state == State::growing && !region.contains(ptr, size);
    if ((record.in_transit() && !grows_elsewhere) || state == State::invalidated) return {.what = What::changing};
    if (record.has(external)) continue;
    auto const known = ends_.find(region.id);
    std::uint64_t const held = known != ends_.end() ? known->second.bytes() : region.size;
    if (region.start < ptr && ptr - region.start >= held) continue;  // it was cut short before that
    bool const contained = pagetable::Region{region.start, held, 0}.contains(ptr, size);
    if (record.is_idle() && !(contained && state == State::idle)) {
      return {.what = What::idle_in_the_way, .start = region.start};
    }
    if (!contained || state == State::half_unlocked) refuse(ptr, size, region);
    AllRegistered one;
    Registered& registered = one.try_emplace(Id{}, Registered{{held}, &locker_}).first->second;
    if (known != ends_.end()) registered = {known->second.ends, known->second.by};
    record.set(Record::shared);
    return {.what = What::registered,
            .start = region.start,
            .size = held,
            .piece = record.piece.load(std::memory_order_relaxed),
            .coherence = record.coherence.load(std::memory_order_relaxed),
            .idle = state == State::idle,
            .registered = one.extract(one.begin())};
  }
  return {};
}

/// Whether it shares a region that starts there.
inline bool PinnedMap::shares(Address start) {
  std::lock_guard const guard(mutex_);
  auto const region = table_.find(start);
  return region && region->start == start && table_.value(region->id).has(Record::shared);
}

inline void PinnedMap::wait_for_change(Address ptr, std::uint64_t size) {
  std::unique_lock guard(mutex_);
  await_outcomes(guard, ptr, size);
}

/// `claim_range` with siblings; nullopt if the caller must look again.
inline std::optional<PinnedMap::Claimed> PinnedMap::claim_among_siblings(Request& request, std::uint64_t unit) {
  Address const ptr = request.ptr;
  std::uint64_t const size = request.size;
  Siblings::Claim claim(*siblings_);
  for (PinnedMap* const each : claim.maps()) {
    if (each == this) continue;
    Found found = each->tell(ptr, size);
    switch (found.what) {
      case Found::What::nothing: continue;
      case Found::What::changing: {
        Siblings::Visit const visit(claim, *each);
        each->wait_for_change(ptr, size);
        return std::nullopt;
      }
      case Found::What::idle_in_the_way: {
        Siblings::Visit const visit(claim, *each);
        each->give_back_idle(found.start);
        return std::nullopt;
      }
      case Found::What::registered: break;
    }
    if (!suits(found.coherence, request.options.coherence)) {
      if (!found.idle) throw not_fine(found.start, found.size, found.coherence);
      Siblings::Visit const visit(claim, *each);
      each->give_back_idle(found.start);
      return std::nullopt;
    }
    std::unique_lock guard(mutex_);
    if (first_overlapping(found.start, found.size)) {
      claim.end();
      if (!await_outcomes(guard, found.start, found.size)) return std::nullopt;
      auto const first = first_overlapping(found.start, found.size);
      if (first) make_way_around(guard, request, found.start, found.size, *first);
      return std::nullopt;
    }
    Claimed entered{enter(found.start, found.size, found.piece), found.start, found.coherence,
                    std::move(found.registered)};
    table_.value(entered.id).flags.store(Record::shared, std::memory_order_release);
    guard.unlock();
    entered.registered.key() = entered.id;
    if (found.idle) move_over(claim, *each, found.start);
    return entered;
  }
  std::lock_guard const guard(mutex_);
  if (first_overlapping(ptr, size)) return std::nullopt;
  return Claimed{enter(ptr, size, unit), ptr};
}

/// Take over what a sibling has idle.
inline void PinnedMap::move_over(Siblings::Claim& claim, PinnedMap& sibling, Address start) noexcept {
  try {
    Siblings::Visit const visit(claim, sibling);
    sibling.give_back_idle(start);  // which calls no vendor now
  } catch (std::bad_alloc const&) {  // it stays idle there as well
  }
}

/// Complete a region that was entered with a sibling's registration, and return the lock of the range in it.
inline Hold PinnedMap::share(Claimed& entered, Address ptr) {
  Address const start = entered.start;
  Registered& registered = entered.registered.mapped();
  std::uint64_t const size = registered.bytes();
  try {
    Watching watching(*this, start, size);
    Address const device_ptr = device_ptr_of(start, registered);
    register_with_all(start, registered);
    std::lock_guard const guard(mutex_);
    watching.becomes(entered.id);
    if (table_.value(entered.id).is_invalidated()) refuse_invalidated(start, size);
    ends_.insert(std::move(entered.registered));
    publish(entered.id, {device_ptr, 1, Record::shared, entered.coherence}, size);
    return hold_of(entered.id, start, ptr);
  } catch (...) {
    std::unique_lock guard(mutex_);
    auto const region = table_.find(start);
    Record& record = table_.value(entered.id);
    record.references.store(1, std::memory_order_release);
    ends_.insert(std::move(entered.registered));
    set_state(record, State::leaving);
    try {
      unlock_claimed(guard, *region, record, State::half_unlocked, false);
    } catch (...) {  // it is half unlocked
      guard.unlock();
    }
    throw;
  }
}

/// The device pointer of what a sibling has registered, as this map's vendor reports it.
inline Address PinnedMap::device_ptr_of(Address start, Registered const& registered) {
  Address device_ptr = 0;
  std::uint64_t begin = 0;
  for (std::uint64_t const end : registered.ends) {
    auto const pinned = locker_.is_pinned(start + begin);
    if (!pinned || pinned->base != start + begin) {
      throw AlreadyPinned(describe(start, registered.bytes()) + " is locked for another device, and this one's driver "
                          "does not know of it; unlock it there first");
    }
    if (begin == 0) device_ptr = pinned->device_ptr;
    if (pinned->device_ptr != device_ptr + begin) throw NotContiguous();
    begin = end;
  }
  return device_ptr;
}

inline std::optional<Region> PinnedMap::first_of_siblings(Address ptr, std::uint64_t size) const {
  if (siblings_ == nullptr || !siblings_->several()) return std::nullopt;
  std::optional<Region> first;
  Siblings::Claim const claim(*siblings_);
  for (PinnedMap const* const each : claim.maps()) {
    if (each == this) continue;
    auto const regions = each->overlapping(ptr, size, true, 1);
    if (!regions.empty() && (!first || regions.front().start < first->start)) first = regions.front();
  }
  return first;
}

inline bool PinnedMap::siblings_have(Siblings::Claim& claim, Address start) {
  auto const& maps = claim.maps();
  return std::any_of(maps.begin(), maps.end(), [&](PinnedMap* each) { return each != this && each->shares(start); });
}

/// Whether siblings also have a region that is leaving; otherwise it is no longer shared. Releases the mutex meanwhile.
inline bool PinnedMap::siblings_have(std::unique_lock<std::mutex>& guard, pagetable::Region const& region,
                                     Record& record) {
  guard.unlock();
  Siblings::Claim claim(*siblings_);
  bool const theirs = siblings_have(claim, region.start);
  guard.lock();
  if (!theirs) record.clear(Record::shared);
  return theirs;
}

/// If siblings also have a region that is leaving, remove it and return with the mutex held: the vendor call is left to
/// them. From the end of the claim on, they see it as changing.
inline bool PinnedMap::leave_to_siblings(std::unique_lock<std::mutex>& guard, pagetable::Region const& region,
                                         Record& record) {
  Siblings::Claim claim(*siblings_);
  bool const theirs = siblings_have(claim, region.start);
  guard.lock();
  record.clear(Record::shared);
  claim.end();
  if (theirs) {
    leave(guard, region);
  } else {
    guard.unlock();
  }
  return theirs;
}

}  // namespace pinning
