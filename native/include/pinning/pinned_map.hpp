// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <pagetable/page_table.hpp>
#include <string>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "errors.hpp"
#include "locker.hpp"
#include "pieces.hpp"
#include "region.hpp"
#include "region_starts.hpp"
#include "watcher.hpp"

namespace pinning {

/// The locked host memory of a device, or of all devices for which memory is locked when one of them locks it, with
/// counted locks.
///
/// A region without a lock may stay registered as a cached registration, *idle*: the next lock inside it makes no
/// vendor call. Lookups do not show it, and it is unlocked if a lock partly overlaps it or the budget needs room.
///
/// Registrars add each region once all of it is locked, and remove it before the vendor unlocks any of it.
///
/// This file has the interface and the data; the implementation is in map/, one topic per file. Structures, mutexes and
/// the life of a region: Note [PinnedMap design] in map/locking.hpp.
class PinnedMap final : private InvalidationListener, private Budget::Keeper {
 public:
  /// `locker` locks unless `LockOptions` names another device's. All of them, `watcher` and `budget` must outlive the
  /// map. Without a watcher it learns only by `invalidate` that memory is gone. `drained_by_watcher`: a thread of the
  /// watcher calls `drain_invalidations`. Without a budget the map has its own, which has no limit and keeps nothing idle.
  explicit PinnedMap(Locker& locker, Watcher* watcher = nullptr, bool drained_by_watcher = false,
                     Budget* budget = nullptr)
      : locker_(locker),
        watcher_(watcher),
        own_(budget == nullptr ? std::make_unique<Budget>() : nullptr),
        budget_(budget == nullptr ? *own_ : *budget),
        made_in_(budget_.generation()) {
    if (watcher_ != nullptr) watcher_->add(*this, drained_by_watcher);
    budget_.join(*this);
  }
  PinnedMap(Locker& locker, Budget& budget) : PinnedMap(locker, nullptr, false, &budget) {}

  /// Unlock all regions. A destructor cannot report the vendor's errors.
  ~PinnedMap() override {
    budget_.leave(*this);
    try {
      clear();
    } catch (...) {
    }
    if (watcher_ != nullptr) watcher_->remove(*this);
  }

  /// Throw InvalidRange for a range that cannot be locked, whatever the map contains.
  static void check(Address ptr, std::uint64_t size);

  /// Free the table of a parent's map in a forked child. The map is neither used nor destroyed afterwards: a thread of
  /// the parent may have held its mutex.
  void abandon() noexcept { table_.abandon(); }

  /// Whether this is a fork of the process that made the map, and the budget has been reset. Then the map holds nothing
  /// and releases nothing: destructors may run before another map takes its place.
  bool is_parents() const noexcept { return made_in_ != budget_.generation(); }

  /// Count one more lock of [ptr, ptr + size), and lock it first if no region holds it.
  ///
  /// `pieces` decides what each vendor call locks. Throws InvalidRange, NotCoherent, PartialOverlap, StillLocked (half
  /// unlocked by a failed `unlock`, cut short, ended by `clear`, or not known to be as fine-grained as requested), or
  /// what the locker or `pieces` throw; then nothing has changed, with two exceptions: if others have locks in earlier
  /// pieces by then, the region stays, cut short, until the last of them is released; and if the vendor refuses a piece
  /// and then to undo the pieces before it, these stay as a half unlocked region, for which `unlock` can try again.
  Hold lock(Address ptr, std::uint64_t size, LockOptions options, Pieces& pieces) {
    return *acquire(ptr, size, options, &pieces);
  }

  /// `piece`: bytes per vendor call; 0: one call.
  Hold lock(Address ptr, std::uint64_t size, LockOptions options = {}, std::uint64_t piece = 0) {
    EqualPieces pieces(piece);
    return lock(ptr, size, options, pieces);
  }

  /// `lock` if a region already holds the range, or another owner has pinned it; nullopt if the vendor would have to
  /// lock it.
  std::optional<Hold> track(Address ptr, std::uint64_t size, LockOptions options = {}) {
    return acquire(ptr, size, options, nullptr);
  }

  /// Count one lock less of the region around `ptr`; the last one unlocks it, or makes it idle if it is kept. Throws
  /// NotLocked, also if the memory is gone, or what the locker throws; then the region stays, counted as before.
  void unlock(Address ptr) {
    if (count_down(ptr, any_serial, false)) return;
    if (find(ptr, 1)) throw NotLocked(describe(ptr) + " is locked by " + its_owner);
    throw NotLocked("no locked region holds " + describe(ptr) +
                    "; one lock allows one unlock, and one whose memory was unmapped, moved, discarded or replaced has ended");
  }

  /// The same for one lock; false if its region no longer exists. Throws what the locker throws.
  ///
  /// `keep`: from now on the caller keeps the region's memory in place until the region is gone, so that the last
  /// unlock, by any caller, makes it idle if the budget has room for that. (Not for external regions.)
  bool unlock(Hold const& hold, bool keep = false) { return count_down(hold.ptr, hold.serial, keep); }

  /// Unlock the idle region that starts at `start`; false if there is none. Throws what the locker throws.
  bool give_back_idle(Address start);

  /// Whether the region of this lock, and its memory, still exist. Takes no lock and writes nothing.
  bool holds(Hold const& hold) const noexcept {
    await_invalidations();
    std::uint64_t serial = any_serial;
    bool gone = false;
    auto const look = [&](Record const& record) {
      gone = (record.flags.load(std::memory_order_acquire) & Record::invalidated) != 0;
      serial = record.serial.load(std::memory_order_acquire);
    };
    return table_.find(hold.ptr, look).has_value() && serial == hold.serial && !gone && !is_parents();
  }

  /// The serial of the region around `ptr`, as in a `Hold`, also while it is half unlocked; 0 if there is none.
  std::uint64_t serial_at(Address ptr) const noexcept {
    std::uint64_t serial = no_serial;
    auto const look = [&](Record const& record) { serial = record.serial.load(std::memory_order_acquire); };
    return table_.find(ptr, look).has_value() ? serial : no_serial;
  }
  /// The same, but only while it is half unlocked; 0 otherwise.
  std::uint64_t half_unlocked_at(Address ptr) const noexcept {
    std::uint64_t serial = no_serial;
    auto const look = [&](Record const& record) {
      bool const half = record.state.load(std::memory_order_acquire) == State::half_unlocked;
      serial = half ? record.serial.load(std::memory_order_acquire) : no_serial;
    };
    return table_.find(ptr, look).has_value() ? serial : no_serial;
  }

  /// Enter memory that its owner has pinned: lookups find it, and this map never unlocks it. It is not a lock, so no
  /// `unlock` removes it. Throws InvalidRange, or PartialOverlap if any of it is in the map.
  void register_pinned(Address ptr, std::uint64_t size, Address device_ptr);

  /// Undo `register_pinned` of the region around `ptr`. Throws NotLocked, or StillLocked while locks are held.
  void unregister(Address ptr);

  /// From now on add every region that this map locks, or has locked, to `registrar`: from before the call that locks
  /// it returns until after the last unlock has begun. (Not external regions.) Throws what the registrar throws, or
  /// InvalidArgument if the map has one with that `self`; then nothing stays added.
  void add_registrar(std::unique_ptr<Registrar> registrar);

  /// Remove everything that was added to a registrar, and destroy it in any case. Throws its first error at the end.
  /// Without `wait`, one that other threads are calling is never destroyed, and what they add stays added.
  void remove_registrar(Registrar& registrar, bool wait = true) { remove_registrar(registrar.self(), wait); }
  /// The same by `Registrar::self`; false if there is none. In a forked child there is nothing to remove.
  bool remove_registrar(void const* self, bool wait = true);
  bool has_registrar(void const* self) const {
    std::lock_guard const guard(mutex_);
    return registrar_of(self) != nullptr;
  }

  /// The region that holds every byte of [ptr, ptr + size). Takes no lock and writes nothing. After a call that has
  /// taken watched memory away, it waits until the map knows.
  std::optional<Region> find(Address ptr, std::uint64_t size = 1) const noexcept { return look(ptr, size, false); }

  /// The same, but also finds idle regions.
  std::optional<Region> find_registered(Address ptr, std::uint64_t size = 1) const noexcept {
    return look(ptr, size, true);
  }

  /// `lock` without a vendor call or waiting; nullopt unless a region that is known to be valid already holds the
  /// range, and no thread is changing the map.
  std::optional<Hold> try_lock(Address ptr, std::uint64_t size, Coherence wanted = Coherence::unknown);

  /// `unlock` without a vendor call or waiting; false if it needs the vendor, or a thread is changing the map.
  bool try_unlock(Address ptr) { return try_count_down(ptr, any_serial, false); }
  /// The same for one lock, also if it is the last and makes the region idle. `keep` as for `unlock`.
  bool try_unlock(Hold const& hold, bool keep = false) { return try_count_down(hold.ptr, hold.serial, keep); }

  /// Query the vendor for every external region that was not registered, and remove those that are no longer pinned as
  /// they were entered, however many locks they have; returns them. If the locker throws, nothing has changed.
  std::vector<Region> refresh();

  /// Handle memory in [ptr, ptr + size) that has been unmapped, discarded or replaced: from now on no region that has
  /// some of it is found, and no lock in such a region is held. Calls no vendor, and neither allocates nor frees
  /// memory: the vendor unlocks in `drain_invalidations`, in the next lock there, or when a lock in the region is
  /// released. Returns whether it has anything to unlock.
  bool invalidate(Address ptr, std::uint64_t size) noexcept;

  /// The same without waiting; nullopt if another thread is changing the map.
  std::optional<bool> try_invalidate(Address ptr, std::uint64_t size) noexcept override;

  bool may_have(Address ptr, std::uint64_t size) const noexcept override {
    return table_.contains(ptr) || table_.contains(ptr + (size - 1)) || starts_.any(ptr, size);
  }

  /// Whether `drain_invalidations` has anything to do.
  bool any_invalidated() const noexcept;

  /// Have the vendor unlock the invalidated regions, or wait until other threads have done so. One that the vendor
  /// refuses to unlock becomes half unlocked. Call it before memory is passed to the vendor as pageable: a vendor that
  /// believes the memory locked copies what was there before.
  void drain_invalidations() override;

  /// Whether some region is idle.
  bool has_idle() const noexcept { return oldest_idle_ != Budget::unlimited; }

  /// Number of regions that `find` shows.
  std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }
  /// Number of all regions, in any state.
  std::size_t count() const noexcept { return table_.size(); }

  /// All regions, as `overlapping` reports them.
  std::vector<Region> regions(bool idle_too = false) const { return overlapping(1, ~Address{0}, idle_too); }

  /// The regions that share bytes with [ptr, ptr + size), or will once they have grown, ascending and disjoint. No
  /// thread waits while many are listed: each is as of its own instant; one that exists throughout the call is
  /// reported, one that is added or removed meanwhile may or may not be. The search ends once it has `most` of them.
  std::vector<Region> overlapping(Address ptr, std::uint64_t size, bool idle_too = false,
                                  std::size_t most = ~std::size_t{0}) const {
    std::size_t const slice_of_regions = std::min(most, std::size_t{256});
    std::vector<Region> found;
    for (Address from = ptr, end = ptr + size;;) {  // `end` may be 0, the top of the address space
      auto const slice = table_.overlapping(from, end - from, slice_of_regions);
      for (auto const& range : slice) {
        if (range.start < from && from != ptr) continue;  // it replaced a region that is already reported
        auto const region = look(range.start, 1, idle_too);
        if (region && region->start == range.start && region->whole == range.size) found.push_back(*region);
      }
      if (found.size() >= most) return found;
      if (slice.size() < slice_of_regions || slice.back().last() >= end - 1) return found;
      from = slice.back().last() + 1;
    }
  }

  /// Whether there is a region in a range, also an idle one.
  bool has_any(Address ptr, std::uint64_t size) const {
    return (this->size() != 0 || has_idle()) && !overlapping(ptr, size, true, 1).empty();
  }

  /// Number of changes to what is locked: regions that were added, grew, were removed or became idle.
  std::uint64_t changes() const noexcept { return changes_.load(std::memory_order_acquire); }

  /// Whether it has changed since; if not, waits first for changes in progress in [ptr, ptr + size). A caller
  /// that found memory pageable, and was refused by the vendor as if it were locked, thus knows whether to look again.
  bool changed_since(std::uint64_t changes, Address ptr, std::uint64_t size);
  /// Whether a vendor call is in progress, or due, for a region in [ptr, ptr + size), which is not shown then. Takes no lock.
  bool is_changing(Address ptr, std::uint64_t size) const;
  /// Wait until that is over, and have invalidated regions there unlocked.
  void await_changes(Address ptr, std::uint64_t size);

  /// Unlock every region, however many locks it has. If the vendor refuses one, the others are still unlocked and the
  /// first error is thrown at the end. Regions in the middle of a vendor call are waited for if `wait` (one that grows
  /// ends with the piece that is being locked), otherwise skipped.
  void clear(bool wait = true);

 private:
  using Id = pagetable::Id;
  using AllRegistered = std::map<Id, Registered>;

  using State = Record::State;
  static constexpr std::uint8_t external = Record::external, registered = Record::registered, ending = Record::ending;
  static constexpr std::uint64_t least_cut = std::uint64_t{1} << 30;  // every vendor takes this much in one call
  static constexpr std::uint32_t most_references = ~std::uint32_t{0};
  static constexpr std::uint64_t no_serial = 0, any_serial = ~std::uint64_t{0};  // no region's serial

  static bool contains(Pinned const& pinned, Address ptr, std::uint64_t size) noexcept {
    return pagetable::Region{pinned.base, pinned.size, 0}.contains(ptr, size);
  }

  std::optional<Region> look(Address ptr, std::uint64_t size, bool idle_too) const noexcept {
    await_invalidations();
    Region region{};
    bool found = false;
    auto range = table_.find(ptr, [&](Record const& record) { found = record.read(region, idle_too); });
    if (!range || !found || size == 0 || !pagetable::Region{range->start, region.size, 0}.contains(ptr, size)) {
      return std::nullopt;
    }
    region.start = range->start;
    region.whole = range->size;
    if (region.piece == 0 || region.piece > region.size) region.piece = region.size;
    return region;
  }

  Coherence external_coherence() const noexcept { return locker_.coherence().only(); }

  /// A lock that is being acquired, from one attempt to the next.
  struct Request {
    Address ptr;
    std::uint64_t size;
    LockOptions options;
    Pieces* pieces;                  // null: only if the vendor need not lock anything
    Coherence coherence = Coherence::unknown;  // what the locker gives for these options
    std::uint64_t confirmed = no_serial;  // serial of the external region that the vendor has reported as still pinned
    std::exception_ptr already_pinned{}, undo_refused{};  // what the vendor threw
  };

  /// A region that has been entered, while the vendor locks it.
  struct Attempt {
    Id id;
    Address start;
    std::uint64_t size;
    std::exception_ptr& refused;  // what the vendor threw, if it refused to undo its locks
    AllRegistered::node_type ends{};  // of the pieces that the vendor has locked; none before the first
    bool ours = true;  // false: others have locks in it, and may remove it at any time
    bool told = false;  // when it was to undo its locks, the vendor was told that memory is gone
    std::uint64_t reserved = 0;  // bytes of the budget
  };

  static bool suits(Coherence coherence, Coherence wanted) noexcept {
    return wanted != Coherence::fine || coherence == Coherence::fine;
  }


  std::uint64_t oldest_idle() const noexcept override { return oldest_idle_; }

  Hold hold_of(Id id, Address start, Address ptr) noexcept {
    Record const& record = table_.value(id);
    return {ptr, record.device_ptr.load(std::memory_order_relaxed) + (ptr - start),
            record.serial.load(std::memory_order_relaxed)};
  }

  std::uint64_t serial_of(pagetable::Region const& region) noexcept {
    return table_.value(region.id).serial.load(std::memory_order_relaxed);
  }
  bool is(pagetable::Region const& region, std::uint64_t serial) noexcept {
    return serial == any_serial || serial == serial_of(region);
  }
  /// Whether it was entered with what the vendor reports now.
  bool is(pagetable::Region const& region, Pinned const& pinned) noexcept {
    Record const& record = table_.value(region.id);
    return record.of_others() &&
           pinned == Pinned{region.start, region.size, record.device_ptr.load(std::memory_order_relaxed)};
  }

  std::optional<pagetable::Region> first_overlapping(Address ptr, std::uint64_t size) const {
    auto const overlap = table_.overlapping(ptr, size, 1);
    return overlap.empty() ? std::nullopt : std::optional(overlap.front());
  }

  /// What lookups report of a region.
  struct Facts {
    Address device_ptr;
    std::uint32_t references = 0;
    std::uint8_t flags = 0;
    Coherence coherence;
  };

  // `guard` holds the mutex; the function may release it meanwhile.

  // ---- map/invalidation.hpp ----

  class Watching;
  void await_invalidations() const noexcept;
  void await_invalidations(Address ptr, std::uint64_t size) const noexcept;
  // With the mutex:
  std::optional<bool> mark_invalidated(Address ptr, std::uint64_t size) noexcept;
  bool drain(std::unique_lock<std::mutex>& guard, pagetable::Region const& region);
  bool drain_beside(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size);
  static std::optional<Span> invalidated_part(Address start, Record const& record) noexcept;
  [[noreturn]] static void refuse_invalidated(Address ptr, std::uint64_t size);

  // ---- map/refusals.hpp, with the mutex ----

  static StillLocked not_fine(Address start, std::uint64_t size, Coherence coherence);
  void refuse_inside(pagetable::Region const& region);
  [[noreturn]] void refuse(Address ptr, std::uint64_t size, pagetable::Region const& region);

  // ---- map/others.hpp ----

  std::optional<Pinned> pinned_by_others(Address ptr, std::uint64_t size);
  // With the mutex:
  bool confirm(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, std::uint64_t& confirmed);
  bool drop(std::unique_lock<std::mutex>& guard, Address start, std::uint64_t serial) noexcept;

  // ---- map/idle.hpp ----

  std::optional<Claim> claim_idle(std::uint64_t number, Budget::Unlocking& unlocking) noexcept override;
  std::uint64_t give_back(Claim claim) override;
  // With the mutex:
  bool make_idle(pagetable::Region const& region, Record& record) noexcept;
  bool remember_idle(Address start, Record& record, std::uint64_t bytes) noexcept;
  void forget_idle(Record const& record) noexcept;
  bool evict(std::unique_lock<std::mutex>& guard, pagetable::Region const& region);

  // ---- map/registrars.hpp ----

  class RegistrarPins;
  void register_with_all(Address start, Registered& registered);
  // With the mutex:
  void register_existing(std::unique_lock<std::mutex>& guard, pagetable::Region const& range, Registrar& registrar);
  Registrar* registrar_of(void const* self) const noexcept;
  bool has(Registrar const& registrar) const noexcept;
  std::unique_ptr<Registrar> take_out(Registrar& registrar) noexcept;
  void take_back_all(std::unique_lock<std::mutex>& guard, Registrar& registrar, bool wait = true);

  // ---- map/locking.hpp ----

  std::optional<Hold> acquire(Address ptr, std::uint64_t size, LockOptions options, Pieces* pieces);
  std::optional<Hold> lock_watched(Attempt& attempt, Request& request);
  Hold lock_pieces(Attempt& attempt, Request const& request);
  std::optional<Hold> grow(Attempt& attempt, Facts const& facts, std::uint64_t held);
  bool take_back(Attempt& attempt) noexcept;
  void release_all_but(std::uint64_t bytes, Attempt& attempt) noexcept;
  // With the mutex:
  std::optional<Hold> count_existing(Address ptr, std::uint64_t size, Coherence wanted,
                                     std::uint64_t confirmed) noexcept;
  bool make_way(std::unique_lock<std::mutex>& guard, Request& request);
  void make_way_around(std::unique_lock<std::mutex>& guard, Request& request, Address start, std::uint64_t size,
                       pagetable::Region const& first);
  std::optional<Hold> adopt_external(std::unique_lock<std::mutex>& guard, Request& request, Pinned const& pinned);
  Id enter(Address ptr, std::uint64_t size, std::uint64_t piece);
  void publish(Id id, Facts const& facts, std::uint64_t held, State state = State::locked) noexcept;
  void abandon(std::unique_lock<std::mutex>& guard, Attempt& attempt) noexcept;
  // Called without the mutex, hold it at the end unless they return a lock:
  std::optional<Hold> lock_entered(std::unique_lock<std::mutex>& guard, Request& request, Id id,
                                   std::optional<Pinned>& pinned);
  void roll_back(std::unique_lock<std::mutex>& guard, Attempt& attempt);

  // ---- map/unlocking.hpp ----

  bool count_down(Address ptr, std::uint64_t serial, bool keep);
  bool try_count_down(Address ptr, std::uint64_t serial, bool keep);
  // With the mutex:
  void unlock_last(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Record& record);
  std::uint64_t unlock_claimed(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Record& record,
                               State before, bool idle);
  bool await_outcomes(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size);
  void set_state(Record& record, State state) noexcept;
  static State refused_state(Record const& record, bool told) noexcept;
  void leave(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) noexcept;
  void end_growth(Address start) noexcept;

  // ---- data ----

  struct Idle {
    Address start;
    std::uint64_t bytes;
  };

  Locker& locker_;
  Watcher* const watcher_;
  std::unique_ptr<Budget> const own_;
  Budget& budget_;
  unsigned const made_in_;
  pagetable::PageTable<Record> table_;
  RegionStarts starts_;
  mutable std::mutex mutex_;
  std::condition_variable state_changed_;
  AllRegistered ends_;  // of regions of several pieces, of other lockers or known to registrars: for the last unlock
  std::vector<std::unique_ptr<Registrar>> registrars_;
  std::atomic<bool> any_registrars_ = false;
  std::atomic<std::uint64_t> most_by_one_call_ = ~std::uint64_t{0};  // that the vendor was seen to take
  std::map<std::uint64_t, Idle> idle_;  // regions by serial: the longest idle first
  std::atomic<std::uint64_t> oldest_idle_ = Budget::unlimited;  // its first serial
  std::atomic<std::size_t> size_ = 0;
  std::atomic<std::uint64_t> changes_ = 0;
  std::atomic<std::size_t> invalidated_count_ = 0;  // regions in the table
};

}  // namespace pinning

#include "map/invalidation.hpp"
#include "map/refusals.hpp"
#include "map/others.hpp"
#include "map/idle.hpp"
#include "map/registrars.hpp"
#include "map/locking.hpp"
#include "map/unlocking.hpp"
