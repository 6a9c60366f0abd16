// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <pagetable/page_table.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "budget.hpp"
#include "errors.hpp"
#include "locker.hpp"
#include "pieces.hpp"
#include "region.hpp"
#include "region_starts.hpp"
#include "siblings.hpp"
#include "watcher.hpp"

namespace pinning {

/// The locked host memory of one device, counted.
///
/// Locks: `mutex_` guards every change; `find` takes no lock. No vendor call is made under it. A region whose vendor
/// call is under way is in the table, so that the overlap rules see it, but `find` does not show it; whoever needs its
/// outcome waits on `settled_`. The page table's own mutex nests inside `mutex_`, and `mutex_` inside the budget's.
///
/// A region of several pieces grows: as soon as the first is locked, `find` shows what is locked so far, and locks in
/// that are counted at once. One beyond it waits for that much.
///
/// A region given up by all may stay registered, *idle*: the next lock inside it makes no vendor call. `find` and the like
/// do not show it, and it gives way: to a lock that overlaps it otherwise, and to the budget.
///
/// Registrars are told of each region once all of it is locked, and forget it before the vendor unlocks any of it.
///
/// What a sibling has registered is entered as it is there, and *shared*: the last map that has it calls the vendor, by the
/// locker that has locked it. An idle region of a sibling's moves over. The siblings' mutex is taken before `mutex_`.
class PinnedMap final : private Tenant, private Budget::Keeper {
 public:
  /// `locker`, `watcher` and `budget` must outlive the map. Without a watcher memory that leaves is noticed only where
  /// somebody calls `left`. `undone_by_watcher`: it calls `undo_left` from a thread of its own. Without a budget it has one
  /// of its own, without a limit, that keeps nothing idle, and no siblings.
  explicit PinnedMap(Locker& locker, Watcher* watcher = nullptr, bool undone_by_watcher = false, Budget* budget = nullptr)
      : locker_(locker),
        watcher_(watcher),
        own_(budget == nullptr ? std::make_unique<Budget>() : nullptr),
        budget_(budget == nullptr ? *own_ : *budget),
        siblings_(budget == nullptr ? nullptr : locker.siblings()) {
    if (siblings_ != nullptr) siblings_->join(*this);
    if (watcher_ != nullptr) watcher_->add(*this, undone_by_watcher);
    budget_.join(*this);
  }
  PinnedMap(Locker& locker, Budget& budget) : PinnedMap(locker, nullptr, false, &budget) {}

  /// Unlocks what is left; the vendor's errors have nobody left to hear them.
  ~PinnedMap() override {
    budget_.leave(*this);
    try {
      clear();
    } catch (...) {
    }
    if (siblings_ != nullptr) siblings_->leave(*this);
    if (watcher_ != nullptr) watcher_->remove(*this);
  }

  /// Throws InvalidRange for what cannot be locked, whatever the map holds.
  static void check(Address ptr, std::uint64_t size) {
    if (ptr == 0) throw InvalidRange("the null pointer cannot be locked");
    if (size == 0) throw InvalidRange("the range at 0x" + hex(ptr) + " has 0 bytes; a lock needs at least one");
    if (ptr + (size - 1) < ptr) {
      throw InvalidRange("the range of " + std::to_string(size) + " bytes at 0x" + hex(ptr) +
                         " runs past the top of the address space");
    }
  }

  /// In a fork's child, for a map of the parent's, which is not used afterwards and never destroyed: its mutex may be
  /// held by a thread that is not here.
  void abandon() noexcept { table_.abandon(); }

  /// Counts one more lock of [ptr, ptr + size), locking it first where no region holds it.
  ///
  /// `pieces` says what each vendor call takes. Throws InvalidRange, NotCoherent, PartialOverlap, StillLocked (half
  /// unlocked by a failed `unlock`, cut short, ended by `clear`, or not known to be as fine-grained as wished), or what
  /// the locker or `pieces` throw; then nothing has changed. But what others have locked of a region meanwhile stays:
  /// it is cut short, until the last of them unlocks it. And where the vendor refuses a piece, and then to undo the
  /// pieces before it, these are a half unlocked region, for `unlock` to try again.
  Hold lock(Address ptr, std::uint64_t size, Wish wish, Pieces& pieces) {
    return *acquire(ptr, size, wish, &pieces);
  }

  /// `piece`: bytes that one vendor call may take, 0 for all.
  Hold lock(Address ptr, std::uint64_t size, Wish wish = {}, std::uint64_t piece = 0) {
    EqualPieces pieces(piece);
    return lock(ptr, size, wish, pieces);
  }

  /// `lock` where a region holds the range already, or someone else has pinned it; nothing where it would take a lock
  /// of the vendor's.
  std::optional<Hold> track(Address ptr, std::uint64_t size, Wish wish = {}) {
    return acquire(ptr, size, wish, nullptr);
  }

  /// Counts one lock less of the region around `ptr`; the last one unlocks it, or makes it idle if it is kept. Throws
  /// NotLocked, also where the memory has left, or what the locker throws: then the region stays, counted as before.
  void unlock(Address ptr) {
    if (count_down(ptr, any, false)) return;
    throw NotLocked("no locked region holds 0x" + hex(ptr) +
                    "; a lock whose memory was unmapped, moved, discarded or replaced ended with it: lock it again");
  }

  /// The same for one lock; false when its region is no longer there. Throws what the locker throws.
  ///
  /// `keep`: from now on the caller holds the region's memory in place until the region is gone, so that it is kept idle
  /// by the last unlock, whoever's that is, where the budget has room for that. (Not what others have pinned.)
  bool unlock(Hold const& hold, bool keep = false) { return count_down(hold.ptr, hold.serial, keep); }

  /// Unlocks the region that starts at `start` if it is idle; false where there is none. Throws what the locker throws.
  bool give_back_idle(Address start) {
    Unwatching const afterwards(*this);
    std::unique_lock guard(mutex_);
    auto const region = table_.find(start, [](Record const&) {});
    if (!region || region->start != start || !table_.value(region->id).is_idle()) return false;
    unlock_last(guard, *region, table_.value(region->id));
    return true;
  }

  /// Whether the region of this lock is still there, and its memory. Takes no lock and writes nothing.
  bool holds(Hold const& hold) const noexcept {
    hear_of_what_left();
    std::uint64_t serial = any;
    bool left = false;
    auto const look = [&](Record const& record) {
      left = (record.flags.load(std::memory_order_acquire) & Record::memory_left) != 0;
      serial = record.serial.load(std::memory_order_acquire);
    };
    return table_.find(hold.ptr, look).has_value() && serial == hold.serial && !left;
  }

  /// What the region around `ptr` is known by in a `Hold`, also while it is half unlocked; 0 where there is none.
  std::uint64_t serial_at(Address ptr) const noexcept {
    std::uint64_t serial = none;
    auto const look = [&](Record const& record) { serial = record.serial.load(std::memory_order_acquire); };
    return table_.find(ptr, look).has_value() ? serial : none;
  }

  /// Enters memory that its owner has pinned: found like any other, never unlocked by this map. Not a lock, so no
  /// `unlock` takes it away. Throws InvalidRange, or PartialOverlap when any of it is in the map.
  void register_pinned(Address ptr, std::uint64_t size, Address device_ptr) {
    check(ptr, size);
    hear_of_all_that_left();
    Unwatching const afterwards(*this);
    Watching watching(*this, ptr, size);
    std::unique_lock guard(mutex_);
    for (;;) {
      if (!settle(guard, ptr, size)) continue;
      auto const first = first_overlapping(ptr, size);
      if (!first) break;
      if (!evict(guard, *first)) refuse(ptr, size, *first);
    }
    Id const id = enter(ptr, size, 0);
    watching.becomes(id);
    publish(id, {.device_ptr = device_ptr, .flags = external | registered, .grain = others_grain()}, size);
  }

  /// Takes back `register_pinned` of the region around `ptr`. Throws NotLocked, or StillLocked while locks are held.
  void unregister(Address ptr) {
    hear_of_what_left();
    Unwatching const afterwards(*this);
    std::lock_guard const guard(mutex_);
    auto region = table_.find(ptr, [](Record const&) {});
    std::uint8_t const flags = region ? table_.value(region->id).flags.load(std::memory_order_relaxed) : std::uint8_t{0};
    if ((flags & registered) == 0 || (flags & Record::memory_left) != 0) {
      throw NotLocked("no registered region holds 0x" + hex(ptr));
    }
    Record const& record = table_.value(region->id);
    std::uint32_t const held = record.references.load(std::memory_order_relaxed);
    if (held != 0) {
      throw StillLocked("the registered region " + describe(region->start, region->size) + " is still locked " +
                        std::to_string(held) + " time(s); unlock it first");
    }
    leave(region->start);
  }

  /// From now on `registrar` knows of every region that this map locks, also of those that it has locked: from before the
  /// call that locks it ends, until after the last unlock has begun. (Not of what others have pinned.) Throws what the
  /// registrar throws: then it was told of nothing.
  void add_registrar(std::unique_ptr<Registrar> registrar) {
    Registrar& added = *registrar;
    {
      std::lock_guard const guard(mutex_);
      registrars_.push_back(std::move(registrar));
      any_registrars_ = true;
    }
    try {
      Unwatching const afterwards(*this);
      std::unique_lock guard(mutex_);
      for (auto const& range : table_.regions()) tell_of(guard, range, added);
    } catch (...) {
      try {
        remove_registrar(added);
      } catch (std::exception const&) {  // its first error says more
      }
      throw;
    }
  }

  /// Takes back all that it was told, and destroys it. Throws its first error when all is done: it is gone all the same.
  void remove_registrar(Registrar& registrar) {
    std::unique_ptr<Registrar> removed;
    std::exception_ptr first_error;
    std::unique_lock guard(mutex_);
    auto const found = std::find_if(registrars_.begin(), registrars_.end(),
                                    [&](auto const& each) { return each.get() == &registrar; });
    if (found == registrars_.end()) return;
    removed = std::move(*found);
    registrars_.erase(found);
    any_registrars_ = !registrars_.empty();
    for (;;) {
      std::vector<Registration> known;
      for (auto& [id, registered] : ends_) {
        auto& all = registered.registrations;
        auto const theirs =
            std::stable_partition(all.begin(), all.end(), [&](auto const& each) { return each.with != &registrar; });
        known.insert(known.end(), theirs, all.end());
        all.erase(theirs, all.end());
      }
      if (known.empty() && registrar.uses == 0) break;
      if (known.empty()) {  // by who locks or unlocks just now
        settled_.wait(guard);
        continue;
      }
      guard.unlock();
      for (; !known.empty(); known.pop_back()) {
        try {
          registrar.remove(known.back().known_as);
        } catch (...) {
          if (!first_error) first_error = std::current_exception();
        }
        --registrar.uses;
      }
      guard.lock();
    }
    guard.unlock();
    if (first_error) std::rethrow_exception(first_error);
  }

  /// The first registrar for which `matches` is true; null where there is none.
  template <class Matches>
  Registrar* find_registrar(Matches&& matches) {
    std::lock_guard const guard(mutex_);
    for (auto const& each : registrars_) {
      if (matches(*each)) return each.get();
    }
    return nullptr;
  }

  /// The region that holds every byte of [ptr, ptr + size). Takes no lock and writes nothing. After a call that has made
  /// watched memory leave it waits until the map knows.
  std::optional<Region> find(Address ptr, std::uint64_t size = 1) const noexcept { return look(ptr, size, false); }

  /// The same, also where it is idle.
  std::optional<Region> find_registered(Address ptr, std::uint64_t size = 1) const noexcept {
    return look(ptr, size, true);
  }

  /// `lock` where a region that can be relied on holds the range already, and nobody is changing the map: no vendor
  /// call, no waiting.
  std::optional<Hold> try_lock(Address ptr, std::uint64_t size, Grain wish = Grain::unknown) {
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

  /// `unlock` where the vendor need not be called, and nobody is changing the map: no vendor call, no waiting.
  bool try_unlock(Address ptr) { return try_count_down(ptr, any, false); }
  /// Also where it is the last and makes the region idle. `keep` as for `unlock`.
  bool try_unlock(Hold const& hold, bool keep = false) { return try_count_down(hold.ptr, hold.serial, keep); }

  /// Asks the vendor for every external region that was not registered, and takes out those that are no longer pinned
  /// as they were entered, however many locks they have; returns them. When the locker throws, nothing has changed.
  std::vector<Region> refresh() {
    std::vector<Region> gone = regions();
    std::erase_if(gone, [&](Region const& region) {
      if (!region.external || region.registered) return true;
      return locker_.is_pinned(region.start) == Pinned{region.start, region.size, region.device_ptr};
    });
    std::lock_guard const guard(mutex_);
    std::erase_if(gone, [&](Region const& region) { return !drop(region.start, region.serial); });
    return gone;
  }

  /// The memory in [ptr, ptr + size) has been unmapped, discarded or replaced: every region that has some of it is found
  /// no more from now on, and no lock in it is held, however many there are. Calls no vendor, and neither allocates nor
  /// frees memory: the vendor is told by `undo_left`, or by whoever next locks there or gives up a lock of it. Whether it
  /// has anything to be told.
  bool left(Address ptr, std::uint64_t size) noexcept {
    for (;;) {
      if (auto const done = try_left(ptr, size)) return *done;
      std::this_thread::yield();
    }
  }

  /// The same where nobody is changing the map; nothing where somebody is. Waits for nobody.
  std::optional<bool> try_left(Address ptr, std::uint64_t size) noexcept override {
    std::unique_lock const guard(mutex_, std::try_to_lock);
    if (!guard) return std::nullopt;
    return mark_left(ptr, size);
  }

  bool may_have(Address ptr, std::uint64_t size) const noexcept override {
    return table_.contains(ptr) || table_.contains(ptr + (size - 1)) || starts_.any(ptr, size);
  }

  /// Whether `undo_left` has anything to do.
  bool any_left() const noexcept {
    hear_of_what_left();
    return gone_.load(std::memory_order_acquire) != 0;
  }

  /// Tells the vendor of the regions whose memory has left, or waits until others have. One that the vendor refuses is
  /// half unlocked from then on. Who is about to hand memory to the vendor as pageable calls it first: where the vendor
  /// takes it for locked, it copies what was there before.
  void undo_left() override {
    if (!any_left()) return;
    Unwatching const afterwards(*this);
    std::unique_lock guard(mutex_);
    for (auto const& range : table_.regions()) {
      for (;;) {
        auto const region = table_.find(range.start, [](Record const&) {});
        if (!region || *region != range || !table_.value(region->id).has_left()) break;
        if (table_.value(region->id).in_transit()) {
          settled_.wait(guard);
        } else if (!undo(guard, *region)) {
          break;
        }
      }
    }
  }

  /// Whether some region is idle.
  bool has_idle() const noexcept { return oldest_idle_ != Budget::unlimited; }

  /// How many regions `find` shows.
  std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

  /// All regions, as `overlapping` tells of them.
  std::vector<Region> regions(bool idle_too = false) const { return overlapping(1, ~Address{0}, idle_too); }

  /// The regions that share bytes with [ptr, ptr + size), or will once they have grown, ascending and disjoint. Nobody
  /// waits while many are told of: each is as of an instant of its own, one that is there all the while is told, and one
  /// that comes or goes perhaps.
  std::vector<Region> overlapping(Address ptr, std::uint64_t size, bool idle_too = false) const {
    std::vector<Region> found;
    for (Address from = ptr, end = ptr + size;;) {  // `end` may be 0, the top of the address space
      auto const slice = table_.overlapping(from, end - from, slice_of_regions);
      for (auto const& range : slice) {
        if (range.start < from && from != ptr) continue;  // it came where one stood that has been told of
        auto const region = look(range.start, 1, idle_too);
        if (region && region->start == range.start && region->whole == range.size) found.push_back(*region);
      }
      if (slice.size() < slice_of_regions || slice.back().last() >= end - 1) return found;
      from = slice.back().last() + 1;
    }
  }

  /// Unlocks every region, however many locks it has. When the vendor refuses one, the others are still unlocked and
  /// the first error is thrown at the end. Regions in the middle of a vendor call are waited for if `wait`, else left;
  /// one that grows ends with the piece that is being locked.
  void clear(bool wait = true) {
    std::exception_ptr first_error;
    Unwatching const afterwards(*this);
    std::unique_lock guard(mutex_);
    for (auto const& range : table_.regions()) {
      if (wait) {
        do {
          end_growth(range.start);
        } while (!settle(guard, range.start, range.size));
      }
      auto region = table_.find(range.start, [](Record const&) {});
      if (!region || *region != range) continue;
      Record& record = table_.value(region->id);
      if (record.in_transit()) continue;
      try {
        unlock_last(guard, *region, record);
      } catch (...) {
        if (!first_error) first_error = std::current_exception();
        guard.unlock();  // before this error is destroyed, see `lock`
        guard.lock();
      }
    }
    if (first_error) std::rethrow_exception(first_error);
  }

 private:
  using Id = pagetable::Id;
  using AllRegistered = std::map<Id, Registered>;

  using State = Record::State;
  static constexpr std::uint8_t external = Record::external, registered = Record::registered, ending = Record::ending;
  static constexpr std::uint32_t most_references = ~std::uint32_t{0};
  static constexpr std::size_t slice_of_regions = 256;
  static constexpr std::uint64_t none = 0, any = ~std::uint64_t{0};  // no region's serial

  static std::string hex(Address ptr) {
    char text[20];
    std::snprintf(text, sizeof text, "%llx", static_cast<unsigned long long>(ptr));
    return text;
  }
  static bool contains(Pinned const& pinned, Address ptr, std::uint64_t size) noexcept {
    return pagetable::Region{pinned.base, pinned.size, 0}.contains(ptr, size);
  }

  std::optional<Region> look(Address ptr, std::uint64_t size, bool idle_too) const noexcept {
    hear_of_what_left();
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

  Grain others_grain() const noexcept { return locker_.grains().only(); }

  /// A region that was entered, while its vendor is called.
  struct Attempt {
    Id id;
    Address start;
    std::uint64_t size;
    std::exception_ptr& refused;  // what the vendor said where it would not unlock what it has locked
    AllRegistered::node_type ends{};  // of the pieces that the vendor has locked; none before the first
    bool ours = true;           // else others have locks in it, and may take it away any time
    std::uint64_t reserved = 0;  // bytes of the budget
  };

  // ---- watching: without the mutex ----

  /// Watches a range until it is a region's.
  class Watching {
   public:
    Watching(PinnedMap& map, Address ptr, std::uint64_t size) noexcept
        : map_(map), ptr_(ptr), size_(size), on_(map.watcher_ != nullptr && map.watcher_->watch(ptr, size)) {}
    ~Watching() {
      if (on_) map_.watcher_->unwatch(ptr_, size_);
    }
    Watching(Watching const&) = delete;

    /// With the mutex.
    void becomes(Id id) noexcept {
      if (!std::exchange(on_, false)) return;
      Record& record = map_.table_.value(id);
      record.flags.store(record.flags.load(std::memory_order_relaxed) | Record::watched, std::memory_order_release);
    }

   private:
    PinnedMap& map_;
    Address const ptr_;
    std::uint64_t const size_;
    bool on_;
  };

  /// When it ends, the regions that have gone meanwhile are watched no more.
  class Unwatching {
   public:
    explicit Unwatching(PinnedMap& map) noexcept : map_(map) {}
    ~Unwatching() {
      if (!map_.any_unwatched_.load(std::memory_order_acquire)) return;
      std::vector<Unwatched> all;
      {
        std::lock_guard const guard(map_.mutex_);
        all.swap(map_.unwatched_);
        map_.any_unwatched_.store(false, std::memory_order_release);
      }
      for (Unwatched const& each : all) map_.watcher_->unwatch(each.start, each.size);
    }
    Unwatching(Unwatching const&) = delete;

   private:
    PinnedMap& map_;
  };

  /// Waits until the map knows of what left by a call that is over. That may take the mutex.
  void hear_of_what_left() const noexcept {
    while (watcher_ != nullptr && watcher_->unheard()) std::this_thread::yield();
  }

  /// The same of what has left by now, whoever's call it was.
  void hear_of_all_that_left() const noexcept {
    if (watcher_ == nullptr) return;
    for (int tries = 0; !watcher_->settled(); ++tries) {
      if (tries < 64) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
  }

  /// `lock`; without `pieces`, `track`.
  std::optional<Hold> acquire(Address ptr, std::uint64_t size, Wish wish, Pieces* pieces) {
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

  static bool suits(Grain grain, Grain wish) noexcept { return wish != Grain::fine || grain == Grain::fine; }

  static StillLocked not_fine(Address start, std::uint64_t size, Grain grain) {
    return StillLocked("the region " + describe(start, size) +
                       (grain == Grain::coarse
                            ? " is locked coarse-grained, so that a lock inside it cannot be coherent; unlock it "
                              "first, or lock with coherent=None"
                            : " is pinned by someone else, and nobody knows whether it is coherent; lock with "
                              "coherent=None, or have its owner unpin it first"));
  }

  // ---- under the mutex ----

  /// A region of others counts only if it is the `confirmed` one.
  std::optional<Hold> count_one_more(Address ptr, std::uint64_t size, Grain wish, std::uint64_t confirmed) noexcept {
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

  /// False when no lock of a region with this serial is held there.
  bool count_down(Address ptr, std::uint64_t serial, bool keep) {
    hear_of_what_left();  // else the vendor might unlock what has come in its place
    Unwatching const afterwards(*this);
    std::unique_lock guard(mutex_);
    for (;;) {
      auto region = table_.find(ptr, [](Record const&) {});
      if (!region || !is(*region, serial)) return false;
      Record& record = table_.value(region->id);
      std::uint32_t const references = record.references.load(std::memory_order_relaxed);
      if (record.in_transit() && !(record.is_growing() && references > 1)) {
        settled_.wait(guard);
        continue;
      }
      if (record.has_left()) {
        if (record.state.load(std::memory_order_relaxed) == State::left) {
          undo(guard, *region);
        } else if (serial == any) {  // the vendor has refused before: asked for by its address, its error is told
          unlock_last(guard, *region, record);
          return true;
        }
        return false;
      }
      if (references == 0 || record.is_idle()) return false;
      if (keep) mark_kept(record);
      std::uint8_t const flags = record.flags.load(std::memory_order_relaxed);
      if (references > 1 || (flags & registered) != 0) {
        record.references.store(references - 1, std::memory_order_release);
      } else if ((flags & external) != 0) {
        leave(region->start);
      } else if ((flags & Record::shared) != 0) {
        settle_as(record, State::leaving);
        if (siblings_have(guard, *region, record)) {
          unlock_claimed(guard, *region, record, State::locked, false);
          return true;
        }
        settle_as(record, record.has_left() ? State::left : State::locked);
        continue;  // nobody else has it
      } else if (make_idle(*region, record)) {
        guard.unlock();
        if (budget_.has_excess()) budget_.give_back_excess();
      } else {
        unlock_last(guard, *region, record);
      }
      return true;
    }
  }

  bool try_count_down(Address ptr, std::uint64_t serial, bool keep) {
    std::unique_lock const guard(mutex_, std::try_to_lock);
    if (!guard) return false;
    auto region = table_.find(ptr, [](Record const&) {});
    if (!region || !is(*region, serial)) return false;
    Record& record = table_.value(region->id);
    std::uint32_t const references = record.references.load(std::memory_order_relaxed);
    if (references == 0 || record.has_left() || record.is_idle()) return false;
    if (record.in_transit() && !(record.is_growing() && references > 1)) return false;
    if (keep) mark_kept(record);
    if (references > 1) {
      record.references.store(references - 1, std::memory_order_release);
      return true;
    }
    if ((record.flags.load(std::memory_order_relaxed) & Record::shared) != 0) return false;
    return budget_.has_room_to_keep(region->size) && make_idle(*region, record);
  }

  static bool is_external(Record const& record) noexcept {
    return (record.flags.load(std::memory_order_relaxed) & external) != 0;
  }
  static void mark_kept(Record& record) noexcept {
    std::uint8_t const flags = record.flags.load(std::memory_order_relaxed);
    if ((flags & external) == 0) record.flags.store(flags | Record::kept, std::memory_order_release);
  }

  // ---- idle regions ----

  /// Instead of the last unlock; false where it is not to be kept.
  bool make_idle(pagetable::Region const& region, Record& record) noexcept {
    if ((record.flags.load(std::memory_order_relaxed) & Record::kept) == 0 || !budget_.keeps(region.size)) return false;
    if (record.state.load(std::memory_order_relaxed) != State::locked) return false;
    if (record.held.load(std::memory_order_relaxed) != region.size) return false;  // it was cut short
    if (!remember_idle(region.start, record, region.size)) return false;
    settle_as(record, State::idle);
    return true;
  }

  /// A new serial, so that the holds of before are no holds of who locks it next. False where there is no memory.
  bool remember_idle(Address start, Record& record, std::uint64_t bytes) noexcept {
    std::uint64_t const serial = budget_.next();
    try {
      idle_.emplace(serial, Idle{start, bytes});
    } catch (std::bad_alloc const&) {
      return false;
    }
    record.serial.store(serial, std::memory_order_release);
    budget_.enter_idle(bytes);
    oldest_idle_ = idle_.begin()->first;
    return true;
  }

  void forget_idle(Record const& record) noexcept {
    auto const found = idle_.find(record.serial.load(std::memory_order_relaxed));
    if (found == idle_.end()) return;
    budget_.leave_idle(found->second.bytes);
    idle_.erase(found);
    oldest_idle_ = idle_.empty() ? Budget::unlimited : idle_.begin()->first;
  }

  /// Has the vendor unlock the region if it is idle, the mutex released meanwhile; false where it is not.
  bool evict(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) {
    if (!table_.value(region.id).is_idle()) return false;
    unlock_last(guard, region, table_.value(region.id));
    return true;
  }

  std::uint64_t oldest_idle() const noexcept override { return oldest_idle_; }

  /// Also where its memory has left meanwhile: then the vendor is still to be told.
  std::optional<Claim> claim_idle(std::uint64_t number) noexcept override {
    std::lock_guard const guard(mutex_);
    auto const found = idle_.find(number);
    if (found == idle_.end()) return std::nullopt;
    Address const start = found->second.start;
    Record& record = table_.value(table_.find(start)->id);
    forget_idle(record);
    bool const half = record.state.load(std::memory_order_relaxed) == State::half_unlocked;
    settle_as(record, State::leaving);
    return Claim{start, half};
  }

  std::uint64_t give_back(Claim claim) override {
    Watcher* const watcher = watcher_;
    std::vector<Unwatched> unwatched;
    std::uint64_t bytes = 0;
    {
      std::unique_lock guard(mutex_);
      auto const region = table_.find(claim.start);
      State const before = claim.half ? State::half_unlocked : State::idle;
      bytes = unlock_claimed(guard, *region, table_.value(region->id), before, true);
      unwatched.swap(unwatched_);
      any_unwatched_.store(false, std::memory_order_release);
    }
    for (Unwatched const& each : unwatched) watcher->unwatch(each.start, each.size);  // the map may be gone by now
    return bytes;
  }

  Hold hold_of(Id id, Address start, Address ptr) noexcept {
    Record const& record = table_.value(id);
    return {ptr, record.device_ptr.load(std::memory_order_relaxed) + (ptr - start),
            record.serial.load(std::memory_order_relaxed)};
  }

  std::uint64_t serial_of(pagetable::Region const& region) noexcept {
    return table_.value(region.id).serial.load(std::memory_order_relaxed);
  }
  bool is(pagetable::Region const& region, std::uint64_t serial) noexcept {
    return serial == any || serial == serial_of(region);
  }
  /// Whether it was entered with what the vendor says of it now.
  bool is(pagetable::Region const& region, Pinned const& pinned) noexcept {
    Record const& record = table_.value(region.id);
    return record.of_others() &&
           pinned == Pinned{region.start, region.size, record.device_ptr.load(std::memory_order_relaxed)};
  }

  /// Whether no vendor call is under way in the range, or to be made because memory has left; else sees to that and must
  /// be asked again. A region that grows is one piece nearer to it then; a range that overlaps it otherwise than inside is
  /// refused anyway.
  bool settle(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size) {
    for (auto const& region : table_.overlapping(ptr, size)) {
      Record const& record = table_.value(region.id);
      if (record.is_growing() && !region.contains(ptr, size)) continue;
      if (record.in_transit()) {
        settled_.wait(guard);
      } else if (!undo(guard, region)) {
        continue;
      }
      return false;
    }
    return true;
  }

  std::optional<bool> mark_left(Address ptr, std::uint64_t size) noexcept {
    bool vendor_is_to_be_told = false;
    bool const done = table_.try_visit(ptr, size, [&](pagetable::Region const& region) {
      Record& record = table_.value(region.id);
      Pages part = Pages::of(region.start, region.size, ptr, ptr + size);
      if (record.has_left()) {
        part = part.with(Pages::unpack(record.held.load(std::memory_order_relaxed)));
      } else {
        gone_.store(gone_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
      }
      // In this order: a lookup that sees what `held` says now sees a state in which nothing is found.
      bool const in_transit = record.in_transit();
      settle_as(record, !in_transit ? State::left : record.is_growing() ? State::entering : record.state.load());
      record.held.store(part.pack(), std::memory_order_release);
      record.flags.store(record.flags.load(std::memory_order_relaxed) | Record::memory_left, std::memory_order_release);
      if (in_transit) return;  // whoever is at it sees that it has left
      vendor_is_to_be_told = true;
    });
    return done ? std::optional(vendor_is_to_be_told) : std::nullopt;
  }

  /// Tells the vendor of a region whose memory has left; false where it has not, or has been undone. A refusal is nobody's
  /// to hear: it is half unlocked then.
  bool undo(std::unique_lock<std::mutex>& guard, pagetable::Region const& region) {
    Record& record = table_.value(region.id);
    if (record.state.load(std::memory_order_relaxed) != State::left) return false;
    try {
      unlock_last(guard, region, record);
    } catch (...) {
      guard.unlock();  // before this error is destroyed, see `acquire`
    }
    if (!guard.owns_lock()) guard.lock();
    return true;
  }

  /// What has left of a region that starts there.
  static std::optional<Span> gone_of(Address start, Record const& record) noexcept {
    if (!record.has_left()) return std::nullopt;
    return Pages::unpack(record.held.load(std::memory_order_relaxed)).of_region(start);
  }

  [[noreturn]] static void refuse_left(Address ptr, std::uint64_t size) {
    throw InvalidRange("the memory of " + describe(ptr, size) +
                       " has been unmapped, discarded or replaced while it was being locked; lock what is there now");
  }

  std::optional<pagetable::Region> first_overlapping(Address ptr, std::uint64_t size) const {
    auto const found = table_.overlapping(ptr, size, 1);
    return found.empty() ? std::nullopt : std::optional(found.front());
  }

  /// Where a region of others is in the way that is not the `confirmed` one, asks the vendor for it, the mutex released
  /// meanwhile: it goes, or it is the confirmed one now. False where there was nothing to ask.
  bool confirm(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, std::uint64_t& confirmed) {
    Record const& record = table_.value(region.id);
    std::uint64_t const serial = serial_of(region);
    if (!record.of_others() || serial == confirmed) return false;
    Pinned const entered{region.start, region.size, record.device_ptr.load(std::memory_order_relaxed)};
    guard.unlock();
    bool const still = locker_.is_pinned(region.start) == entered;
    guard.lock();
    if (!still) drop(region.start, serial);
    confirmed = serial;
    return true;
  }

  /// Takes out a region of others, whatever its count; false when it is not there any more.
  bool drop(Address start, std::uint64_t serial) noexcept {
    auto const region = table_.find(start, [](Record const&) {});
    if (!region || serial_of(*region) != serial) return false;
    leave(start);
    return true;
  }

  /// For a region around a lock that `count_one_more` would not count.
  void refuse_inside(pagetable::Region const& region) {
    Record const& record = table_.value(region.id);
    if (record.state.load(std::memory_order_relaxed) != State::locked) return;
    if (std::uint64_t const held = record.held.load(std::memory_order_relaxed); held < region.size) {
      throw StillLocked("the region " + describe(region.start, region.size) + " was cut short, for others hold locks in " +
                        "the first " + std::to_string(held) + " bytes of it; unlock these first");
    }
    if (record.references.load(std::memory_order_relaxed) == most_references) {
      throw LockLimit("the region " + describe(region.start, region.size) + " has " + std::to_string(most_references) +
                      " locks, and no more are counted; unlock some that nobody needs");
    }
    throw not_fine(region.start, region.size, record.grain.load(std::memory_order_relaxed));
  }

  /// Says why the region, which nobody is changing, forbids a lock or a registration of the range.
  [[noreturn]] void refuse(Address ptr, std::uint64_t size, pagetable::Region const& region) {
    Record const& record = table_.value(region.id);
    if (record.state.load(std::memory_order_relaxed) == State::half_unlocked) {
      throw StillLocked("the region " + describe(region.start, region.size) +
                        " is half unlocked, because the vendor refused; unlock it again first");
    }
    throw PartialOverlap(ptr, size, region.start, region.size, record.of_others() ? By::others : By::us);
  }

  Id enter(Address ptr, std::uint64_t size, std::uint64_t piece) {
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

  struct Facts {
    Address device_ptr;
    std::uint32_t references = 0;
    std::uint8_t flags = 0;
    Grain grain;
  };
  /// From now on its first `held` bytes are found.
  void publish(Id id, Facts const& facts, std::uint64_t held, State state = State::locked) noexcept {
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

  void leave(Address start) noexcept {
    auto const region = table_.remove(start);
    starts_.remove(start);
    Record& record = table_.value(region->id);
    if ((record.flags.load(std::memory_order_relaxed) & Record::watched) != 0) {
      try {
        unwatched_.push_back({start, region->size});
        any_unwatched_.store(true, std::memory_order_release);
      } catch (std::bad_alloc const&) {  // it stays watched, for nobody
      }
    }
    if (record.has_left()) gone_.store(gone_.load(std::memory_order_relaxed) - 1, std::memory_order_release);
    if (is_external(record)) budget_.leave_external(region->size);
    settle_as(record, State::leaving);
  }

  /// After `take_back` the entry goes, unless the vendor has refused to unlock some of it; then an `unlock` can try again.
  void abandon(Attempt& attempt) noexcept {
    if (!attempt.ours) return;
    if (!attempt.ends || attempt.ends.mapped().ends.empty()) return leave(attempt.start);
    Record& record = table_.value(attempt.id);
    record.references.store(1, std::memory_order_release);
    ends_.insert(std::move(attempt.ends));
    settle_as(record, State::half_unlocked);
  }

  void end_growth(Address start) noexcept {
    auto const region = table_.find(start, [](Record const&) {});
    if (!region || !table_.value(region->id).is_growing()) return;
    auto& flags = table_.value(region->id).flags;
    flags.store(flags.load(std::memory_order_relaxed) | ending, std::memory_order_release);
  }

  void settle_as(Record& record, State state) noexcept {
    State const before = record.state.load(std::memory_order_relaxed);
    record.state.store(state, std::memory_order_release);
    size_.store(size_.load(std::memory_order_relaxed) + Record::is_shown(state) - Record::is_shown(before),
                std::memory_order_relaxed);
    settled_.notify_all();
  }

  // ---- vendor calls: without the mutex ----

  /// Has the vendor lock a region, one piece after another.
  Hold lock_pieces(Attempt& attempt, Wish wish, Pieces& pieces) {
    {
      AllRegistered one;  // made first: once something is locked nothing may fail
      one.try_emplace(attempt.id).first->second.by = &locker_;
      attempt.ends = one.extract(attempt.id);
    }
    PieceEnds& ends = attempt.ends.mapped().ends;
    budget_.reserve(attempt.size);
    attempt.reserved = attempt.size;
    Address device_ptr = 0;
    for (std::uint64_t held = 0;;) {
      std::uint64_t const bytes = pieces.next(held, attempt.size);
      ends.reserve(ends.size() + 1);
      Address const piece_ptr = lock_piece(attempt.start + held, bytes, wish);
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

  /// Refused by the vendor a piece is tried once more, when as much that was idle has been given back.
  Address lock_piece(Address ptr, std::uint64_t size, Wish wish) {
    try {
      return locker_.lock(ptr, size, wish);
    } catch (AlreadyPinned const&) {
      throw;
    } catch (InvalidRange const&) {
      throw;
    } catch (std::exception const&) {
      if (budget_.give_back(size) == 0) throw;
    }
    return locker_.lock(ptr, size, wish);
  }

  /// So much of a region is locked now; the lock, when that is all.
  std::optional<Hold> grow(Attempt& attempt, Facts const& facts, std::uint64_t held) {
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
  bool take_back(Attempt& attempt) noexcept {
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

  void give_up_all_but(std::uint64_t bytes, Attempt& attempt) noexcept {
    if (attempt.reserved > bytes) budget_.give_up(std::exchange(attempt.reserved, bytes) - bytes);
  }

  /// The vendor unlocks the region, the mutex released meanwhile.
  void unlock_last(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Record& record) {
    if (is_external(record)) {
      leave(region.start);
      return;
    }
    State const before = record.state.load(std::memory_order_relaxed);
    bool const idle = record.is_idle();
    forget_idle(record);
    settle_as(record, State::leaving);
    unlock_claimed(guard, region, record, before, idle);
  }

  /// The same for one that is leaving already; the bytes that are locked no more.
  std::uint64_t unlock_claimed(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Record& record,
                               State before, bool idle) {
    AllRegistered::node_type kept = ends_.extract(region.id);
    std::uint64_t const bytes = kept ? kept.mapped().bytes() : region.size;
    std::size_t const registrations = kept ? kept.mapped().registrations.size() : 0;
    auto const gone = gone_of(region.start, record);
    bool const shared = (record.flags.load(std::memory_order_relaxed) & Record::shared) != 0;
    guard.unlock();
    try {
      if (kept) untell(kept.mapped().registrations);
      if (shared && leave_to_siblings(guard, region, record)) return 0;
      Budget::Unlocking const unlocking(budget_);
      try {
        if (kept) {
          unlock_pieces(region.start, kept.mapped(), gone);
        } else {
          unlock_piece(locker_, region.start, gone);
        }
      } catch (...) {
        if (kept) budget_.give_up(bytes - kept.mapped().bytes());
        throw;
      }
      budget_.give_up(bytes);
    } catch (...) {
      guard.lock();
      std::uint64_t const left = kept ? kept.mapped().bytes() : region.size;
      bool const as_before = left == bytes && !record.has_left() &&
                             (registrations == 0 || kept.mapped().registrations.size() == registrations);
      ends_.insert(std::move(kept));
      if (idle) {
        if (!as_before) record.references.store(0, std::memory_order_release);
        remember_idle(region.start, record, left);
      }
      settle_as(record, as_before ? before : State::half_unlocked);
      throw;
    }
    guard.lock();
    leave(region.start);
    return bytes;
  }

  /// The pinned range of someone else around the start or the end of this one.
  std::optional<Pinned> pinned_by_others(Address ptr, std::uint64_t size) {
    auto const pinned = locker_.is_pinned(ptr);
    return pinned ? pinned : locker_.is_pinned(ptr + (size - 1));
  }

  // ---- siblings: without the mutex, but where it is given ----

  /// What a sibling has of a range that is to be entered here.
  struct Found {
    enum class What : std::uint8_t { nothing, changing, idle_in_the_way, registered } what = What::nothing;
    Address start = 0;
    std::uint64_t size = 0, piece = 0;
    Grain grain = Grain::unknown;
    bool idle = false;
    AllRegistered::node_type registered{};
  };

  /// For a sibling that is about to enter the range, and has claimed that. What it is to share is marked so. Throws what a
  /// lock of the range here would, where the region is in its way.
  Found tell(Address ptr, std::uint64_t size) {
    using What = Found::What;
    std::lock_guard const guard(mutex_);
    for (auto const& region : table_.overlapping(ptr, size)) {
      Record& record = table_.value(region.id);
      State const state = record.state.load(std::memory_order_relaxed);
      bool const grows_elsewhere = state == State::growing && !region.contains(ptr, size);
      if ((record.in_transit() && !grows_elsewhere) || state == State::left) return {.what = What::changing};
      if (is_external(record)) continue;
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
      record.flags.store(record.flags.load(std::memory_order_relaxed) | Record::shared, std::memory_order_release);
      return {.what = What::registered,
              .start = region.start,
              .size = held,
              .piece = record.piece.load(std::memory_order_relaxed),
              .grain = record.grain.load(std::memory_order_relaxed),
              .idle = state == State::idle,
              .registered = one.extract(one.begin())};
    }
    return {};
  }

  /// Whether it shares what is registered from there on.
  bool shares(Address start) {
    std::lock_guard const guard(mutex_);
    auto const region = table_.find(start, [](Record const&) {});
    return region && region->start == start &&
           (table_.value(region->id).flags.load(std::memory_order_relaxed) & Record::shared) != 0;
  }

  /// Waits for what is changing in the range.
  void wait_for_change(Address ptr, std::uint64_t size) {
    Unwatching const afterwards(*this);
    std::unique_lock guard(mutex_);
    settle(guard, ptr, size);
  }

  /// A region that was entered; with what a sibling has registered there, its bounds are those.
  struct Entered {
    Id id;
    Address start;
    Grain grain = Grain::unknown;
    AllRegistered::node_type registered{};
  };

  /// `enter` where siblings are; nothing where the caller must begin anew.
  std::optional<Entered> enter_among_siblings(Address ptr, std::uint64_t size, std::uint64_t unit, Grain wish,
                                              std::uint64_t& confirmed) {
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
      if (!suits(found.grain, wish)) {
        if (!found.idle) throw not_fine(found.start, found.size, found.grain);
        Siblings::Visit const visit(claim, *each);
        each->give_back_idle(found.start);
        return std::nullopt;
      }
      std::unique_lock guard(mutex_);
      if (first_overlapping(found.start, found.size)) {
        claim.end();
        make_way(guard, ptr, size, found, confirmed);
        return std::nullopt;
      }
      Entered entered{enter(found.start, found.size, found.piece), found.start, found.grain, std::move(found.registered)};
      table_.value(entered.id).flags.store(Record::shared, std::memory_order_release);
      guard.unlock();
      entered.registered.key() = entered.id;
      if (found.idle) move_over(claim, *each, found.start);
      return entered;
    }
    std::lock_guard const guard(mutex_);
    if (first_overlapping(ptr, size)) return std::nullopt;
    return Entered{enter(ptr, size, unit), ptr};
  }

  /// What a sibling has idle is this map's now.
  static void move_over(Siblings::Claim& claim, PinnedMap& sibling, Address start) noexcept {
    try {
      Siblings::Visit const visit(claim, sibling);
      sibling.give_back_idle(start);  // which calls no vendor now
    } catch (std::bad_alloc const&) {  // it is idle there all the same
    }
  }

  /// For what a sibling has around the range, where something here is in its way.
  void make_way(std::unique_lock<std::mutex>& guard, Address ptr, std::uint64_t size, Found const& found,
                std::uint64_t& confirmed) {
    if (!settle(guard, found.start, found.size)) return;
    auto const first = first_overlapping(found.start, found.size);
    if (!first || first->contains(ptr, size) || evict(guard, *first) || confirm(guard, *first, confirmed)) return;
    refuse(found.start, found.size, *first);
  }

  /// The lock of a range in what was entered with a sibling's registration.
  Hold share(Entered& entered, Address ptr) {
    Address const start = entered.start;
    Registered& registered = entered.registered.mapped();
    std::uint64_t const size = registered.bytes();
    try {
      Watching watching(*this, start, size);
      Address const device_ptr = device_ptr_of(start, registered);
      tell_all(start, registered);
      std::lock_guard const guard(mutex_);
      watching.becomes(entered.id);
      if (table_.value(entered.id).has_left()) refuse_left(start, size);
      ends_.insert(std::move(entered.registered));
      publish(entered.id, {device_ptr, 1, Record::shared, entered.grain}, size);
      return hold_of(entered.id, start, ptr);
    } catch (...) {
      std::unique_lock guard(mutex_);
      auto const region = table_.find(start, [](Record const&) {});
      Record& record = table_.value(entered.id);
      record.references.store(1, std::memory_order_release);
      ends_.insert(std::move(entered.registered));
      settle_as(record, State::leaving);
      try {
        unlock_claimed(guard, *region, record, State::half_unlocked, false);
      } catch (...) {  // it is half unlocked
        guard.unlock();
      }
      throw;
    }
  }

  /// Of what a sibling has registered, as this map's vendor says.
  Address device_ptr_of(Address start, Registered const& registered) {
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

  bool siblings_have(Siblings::Claim& claim, Address start) {
    auto const& maps = claim.maps();
    return std::any_of(maps.begin(), maps.end(), [&](PinnedMap* each) { return each != this && each->shares(start); });
  }
  void shares_no_more(Record& record) noexcept {
    std::uint8_t const flags = record.flags.load(std::memory_order_relaxed);
    record.flags.store(flags & ~Record::shared, std::memory_order_release);
  }

  /// Whether siblings have a region too that is leaving; else it is shared no more. The mutex is released meanwhile.
  bool siblings_have(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Record& record) {
    guard.unlock();
    Siblings::Claim claim(*siblings_);
    bool const theirs = siblings_have(claim, region.start);
    guard.lock();
    if (!theirs) shares_no_more(record);
    return theirs;
  }

  /// Where siblings have a region too that is leaving it goes, with the mutex taken: the vendor call is theirs to make.
  bool leave_to_siblings(std::unique_lock<std::mutex>& guard, pagetable::Region const& region, Record& record) {
    Siblings::Claim claim(*siblings_);
    bool const theirs = siblings_have(claim, region.start);
    guard.lock();
    if (theirs) {
      leave(region.start);
    } else {
      shares_no_more(record);
      guard.unlock();
    }
    return theirs;
  }

  // ---- registrars: without the mutex, but where it is given ----

  /// Those that are there, and stay meanwhile.
  class Told {
   public:
    explicit Told(PinnedMap& map) {
      std::lock_guard const guard(map.mutex_);
      all.reserve(map.registrars_.size());
      for (auto const& each : map.registrars_) {
        ++each->uses;
        all.push_back(each.get());
      }
    }
    ~Told() {
      for (Registrar* const each : all) --each->uses;
    }
    Told(Told const&) = delete;

    std::vector<Registrar*> all;
  };

  /// Tells all registrars of a region that is in transit; `registered` has those that know, also when one of them throws.
  void tell_all(Address start, Registered& registered) {
    if (!any_registrars_) return;
    Told const told(*this);
    for (Registrar* const each : told.all) tell_registrar(*each, start, registered);
  }

  /// Tells one of a region of before, if it does not know. The mutex is released meanwhile, and a lock of the region held.
  void tell_of(std::unique_lock<std::mutex>& guard, pagetable::Region const& range, Registrar& registrar) {
    while (!settle(guard, range.start, range.size)) {
    }
    auto const region = table_.find(range.start, [](Record const&) {});
    if (!region || *region != range) return;
    Record& record = table_.value(region->id);
    if (is_external(record)) return;
    auto known = ends_.find(region->id);
    if (known != ends_.end() && known->second.has(registrar)) return;
    bool const was_idle = record.state.load(std::memory_order_relaxed) == State::idle;
    auto const hold = count_one_more(region->start, 1, Grain::unknown, none);
    if (!hold) return;
    Registered told{{record.held.load(std::memory_order_relaxed)}, &locker_};
    guard.unlock();
    std::exception_ptr refused;
    try {
      tell_registrar(registrar, region->start, told);
    } catch (...) {
      refused = std::current_exception();
    }
    guard.lock();
    auto const now = table_.find(region->start, [](Record const&) {});
    if (now && serial_of(*now) == hold->serial && Record::is_shown(record.state.load(std::memory_order_relaxed))) {
      try {
        known = ends_.try_emplace(region->id, Registered{told.ends, told.by}).first;
        auto& all = known->second.registrations;
        all.insert(all.end(), told.registrations.begin(), told.registrations.end());
        told.registrations.clear();
      } catch (std::bad_alloc const&) {
        refused = std::current_exception();
      }
    }
    guard.unlock();
    untell_for_good(told.registrations);  // where it has gone meanwhile
    unlock(*hold, was_idle);
    guard.lock();
    if (refused) std::rethrow_exception(refused);
  }

  struct Unwatched {
    Address start;
    std::uint64_t size;
  };

  Locker& locker_;
  Watcher* const watcher_;
  std::vector<Unwatched> unwatched_;
  std::atomic<bool> any_unwatched_ = false;
  std::unique_ptr<Budget> const own_;
  Budget& budget_;
  Siblings* const siblings_;
  pagetable::PageTable<Record> table_;
  RegionStarts starts_;
  mutable std::mutex mutex_;
  std::condition_variable settled_;
  AllRegistered ends_;  // of regions of several pieces, shared by siblings or known to registrars: for the last unlock
  std::vector<std::unique_ptr<Registrar>> registrars_;
  std::atomic<bool> any_registrars_ = false;
  struct Idle {
    Address start;
    std::uint64_t bytes;
  };
  std::map<std::uint64_t, Idle> idle_;  // regions by serial: the longest idle first
  std::atomic<std::uint64_t> oldest_idle_ = Budget::unlimited;  // its first serial
  std::atomic<std::size_t> size_ = 0;
  std::atomic<std::size_t> gone_ = 0;  // regions in the table whose memory has left
};

}  // namespace pinning
