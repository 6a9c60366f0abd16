// SPDX-License-Identifier: Apache-2.0
// How much memory the maps of a process have locked, and how much they may lock.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "errors.hpp"

namespace pinning {

/// The account of all maps that share it: bytes are reserved before the vendor locks them, and returned once it has
/// unlocked them. Idle regions (registered, without a lock) count, and are given back if there is no room for a lock.
///
/// Locks: `mutex_` guards the list of maps; a map's mutex nests inside it. `unlocks_mutex_` guards the unlocks in
/// progress; it nests inside a map's. No vendor call is made under either.
class Budget {
 public:
  static constexpr std::uint64_t unlimited = ~std::uint64_t{0};

  /// An unlock in progress. A lock that finds no room waits for it.
  class Unlocking {
   public:
    explicit Unlocking(Budget& budget) noexcept : budget_(budget) {}
    /// Call it before the region ceases to be locked or idle: a lock that then finds nothing idle must find the unlock.
    void begin() noexcept {
      std::lock_guard const guard(budget_.unlocks_mutex_);
      next_ = std::exchange(budget_.unlocking_, this);
      begun_ = true;
    }
    /// Its bytes are returned by then, or the region is idle or locked again.
    ~Unlocking() {
      if (!begun_) return;
      std::lock_guard const guard(budget_.unlocks_mutex_);
      Unlocking** at = &budget_.unlocking_;
      while (*at != this) at = &(*at)->next_;
      *at = next_;
      ++budget_.ended_;
      budget_.one_ended_.notify_all();
    }
    Unlocking(Unlocking const&) = delete;

   private:
    friend Budget;
    Budget& budget_;
    Unlocking* next_ = nullptr;
    bool begun_ = false;
    std::thread::id const thread_ = std::this_thread::get_id();
  };

  /// A map as its budget sees it. It keeps idle regions, each with the number that `next` gave when it became idle.
  class Keeper {
   public:
    /// The number of its longest idle region; `unlimited` if it has none. Takes no lock.
    virtual std::uint64_t oldest_idle() const noexcept = 0;
    struct Claim {
      Address start;
      bool half;  // half unlocked: an earlier attempt has failed in part
    };
    /// Claim the region with this number for the caller, whose unlock begins; the map is not destroyed before the
    /// region is given back. Nullopt if the region is no longer idle.
    virtual std::optional<Claim> claim_idle(std::uint64_t number, Unlocking& unlocking) noexcept = 0;
    /// Have the vendor unlock a claimed region; returns the bytes given back. Throws what the vendor throws; the region
    /// is then idle again, with a new number.
    virtual std::uint64_t give_back(Claim claim) = 0;

   protected:
    Keeper() = default;
    ~Keeper() = default;

   private:
    friend Budget;
    Keeper* next_ = nullptr;
  };

  struct Figures {
    std::uint64_t limit;       // bytes; `unlimited` if there is none
    std::uint64_t locked;      // by the maps, or reserved; includes `idle`
    std::uint64_t idle;
    std::uint64_t external;    // in the maps, but pinned by others
    std::uint64_t idle_limit;  // 0: nothing is kept idle
  };

  /// The figures that other processes read while they change; each may be a moment old.
  struct Shown {
    std::atomic<std::uint64_t> limit, locked, idle, external, idle_limit;
  };

  /// `shown`, which must outlive the budget, is kept up to date with the figures.
  explicit Budget(Shown* shown = nullptr) noexcept : shown_(shown) {}
  Budget(Budget const&) = delete;

  Figures figures() const noexcept { return {limit_, locked_, idle_, external_, idle_limit_}; }

  /// Set the limits of locked and of idle bytes; nullopt leaves one as it is, since another thread may be setting it. Idle
  /// regions beyond either are given back. What is locked beyond the limit stays. If the vendor refuses to unlock, the
  /// next lock tries again.
  void set(std::optional<std::uint64_t> limit, std::optional<std::uint64_t> idle_limit) {
    if (limit) limit_ = *limit;
    if (idle_limit) idle_limit_ = *idle_limit;
    show();
    give_back_excess();
  }
  /// Set the limit of locked bytes if it is still `before`; returns whether it was.
  bool replace_limit(std::uint64_t before, std::uint64_t limit) {
    if (!limit_.compare_exchange_strong(before, limit)) return false;
    set(std::nullopt, std::nullopt);
    return true;
  }

  /// Reserve `size` bytes for a lock, before the vendor call; if there is no room, idle regions are given back, longest
  /// idle first. Throws LockLimit.
  void reserve(std::uint64_t size) {
    std::uint64_t const begun = next();
    std::uint64_t before = unlimited;
    auto const give_way = [&] {
      Given given;
      if (!fits_without_idle(size) || !give_back_oldest(before, given)) return false;
      if (given.refused != 0) before = begun;  // a refused region has a newer number now, and is not tried again
      return true;
    };
    wait_for_room(size, [&] { return try_reserve(size); }, give_way);
  }
  /// Throw what `reserve` would, but reserve nothing: for work that precedes a lock.
  void check(std::uint64_t size) {
    wait_for_room(size, [&] { return fits_without_idle(size); }, [] { return false; });
  }
  /// Return bytes that were reserved and are not, or no longer, locked.
  void release(std::uint64_t size) noexcept { change(locked_, &Shown::locked, 0 - size); }

  void enter_external(std::uint64_t size) noexcept { change(external_, &Shown::external, size); }
  void leave_external(std::uint64_t size) noexcept { change(external_, &Shown::external, 0 - size); }

  /// Whether a region of this size may be kept idle if `give_back_excess` follows.
  bool keeps(std::uint64_t size) const noexcept { return size <= idle_limit_; }
  /// Whether it may be kept idle without that.
  bool has_room_to_keep(std::uint64_t size) const noexcept {
    std::uint64_t const idle = idle_, most = idle_limit_;
    return size <= most && idle <= most - size && fits(locked_, 0);
  }
  void enter_idle(std::uint64_t size) noexcept { change(idle_, &Shown::idle, size); }
  void leave_idle(std::uint64_t size) noexcept { change(idle_, &Shown::idle, 0 - size); }
  bool has_excess() const noexcept {
    std::uint64_t const idle = idle_;
    return idle != 0 && (idle > idle_limit_ || !fits(locked_, 0));
  }

  /// What was given back, and what the vendors have refused to unlock.
  struct Given {
    std::uint64_t bytes = 0;
    Address lowest = ~Address{0}, highest = 0;  // start of the regions that are given back
    std::uint64_t refused = 0;                  // regions
    std::exception_ptr error;                   // the first one
  };
  /// Unlock idle regions, those of `first` first, otherwise longest idle first, until `bytes` are given back or none is
  /// left that was idle when the call began.
  Given give_back(std::uint64_t bytes, Keeper const* first = nullptr) {
    std::uint64_t const begun = next();
    Given given;
    for (Keeper const* const of : {first, static_cast<Keeper const*>(nullptr)}) {
      while (given.bytes < bytes && give_back_oldest(begun, given, of)) {
      }
    }
    return given;
  }
  /// The same, but throw the first error at the end. Returns the bytes.
  std::uint64_t trim(std::uint64_t bytes) {
    Given const given = give_back(bytes);
    if (given.error) std::rethrow_exception(given.error);
    return given.bytes;
  }
  /// Make a call that a vendor may refuse for lack of room, and repeat it once idle regions of as many bytes are given
  /// back, those of `first` first: its device may have a limit of its own. Threads that need the same room take turns:
  /// if memory is short or a limit is reached, the call is repeated when another thread's unlock has ended or has left a
  /// region idle (64 times at most). A vendor that looks for the reason of a refusal when another thread has made room
  /// meanwhile gives another one: then, too, the call is repeated (3 times at most).
  template <class Call>
  auto with_room(std::uint64_t bytes, Call&& call, Keeper const* first = nullptr) {
    int late = 3;
    for (int tries = 64; tries > 0; --tries) {
      std::uint64_t const before = ended();
      try {
        return call();
      } catch (AlreadyPinned const&) {
        throw;
      } catch (InvalidRange const&) {
        throw;
      } catch (std::exception const& error) {
        auto const* const refused = dynamic_cast<VendorError const*>(&error);
        bool const no_room = refused != nullptr ? refused->call.no_memory : dynamic_cast<LockLimit const*>(&error) != nullptr;
        if (!no_room && refused != nullptr && late > 0 && others_unlock(before)) {
          --late;
          continue;
        }
        Given const given = give_back(bytes, first);
        if (given.bytes == 0) {
          bool const became_idle = given.refused == 0 && idle_ != 0;  // after that had begun
          // The refused unlocks of this thread have ended too, and made no room.
          if (!no_room || !(became_idle || wait_for_an_end(before + given.refused))) throw;
        }
        if (!no_room) break;
      }
    }
    return call();
  }
  /// Unlock idle regions beyond the limits.
  void give_back_excess() {
    std::uint64_t const begun = next();
    Given given;
    while (has_excess() && give_back_oldest(begun, given)) {
    }
  }

  /// How many unlocks have ended.
  std::uint64_t ended() const noexcept { return ended_; }
  /// Whether an unlock has ended since `ended` was read; waits while another thread has one in progress.
  bool wait_for_an_end(std::uint64_t ended) {
    std::unique_lock guard(unlocks_mutex_);
    while (ended_ == ended) {
      if (!others_are_unlocking()) return false;
      one_ended_.wait(guard);
    }
    return true;
  }

  /// A number larger than all before: identifies a region, and orders idle regions by age.
  std::uint64_t next() noexcept { return ++last_; }

  void join(Keeper& keeper) {
    std::lock_guard const guard(mutex_);
    keeper.next_ = std::exchange(keepers_, &keeper);
  }
  /// Remove a map, unless it belongs to a parent process and so is not in the list.
  void leave(Keeper& keeper) noexcept {
    std::lock_guard const guard(mutex_);
    Keeper** at = &keepers_;
    while (*at != nullptr && *at != &keeper) at = &(*at)->next_;
    if (*at != nullptr) *at = keeper.next_;
  }

  /// In a forked child, where nothing is locked and no map exists yet; a thread of the parent may have held the mutex.
  void restart() noexcept {
    std::uint64_t const limit = limit_, idle_limit = idle_limit_;
    unsigned const generation = generation_ + 1;
    new (this) Budget(shown_);
    generation_ = generation;
    limit_ = limit;
    idle_limit_ = idle_limit;
    show();
  }

  /// The process for which it counts, as a number of forks: bytes reserved in another generation must not be returned.
  unsigned generation() const noexcept { return generation_; }

  /// Update the shown figures. Each thread reads again after its store, so that the last one leaves the final value.
  void show() noexcept {
    show(&Shown::limit, limit_);
    show(&Shown::locked, locked_);
    show(&Shown::idle, idle_);
    show(&Shown::external, external_);
    show(&Shown::idle_limit, idle_limit_);
  }

 private:
  using Figure = std::atomic<std::uint64_t>;

  /// Whether another thread has an unlock in progress. Not for a thread within an unlock of its own, in a callback of the
  /// vendor: the other one may be waiting for that. `unlocks_mutex_` is held.
  bool others_are_unlocking() const noexcept {
    bool any = false;
    for (Unlocking* each = unlocking_; each != nullptr; each = each->next_) {
      if (each->thread_ == std::this_thread::get_id()) return false;
      any = true;
    }
    return any;
  }
  /// Whether an unlock has ended since `ended` was read, or another thread has one in progress.
  bool others_unlock(std::uint64_t ended) noexcept {
    std::lock_guard const guard(unlocks_mutex_);
    return ended_ != ended || others_are_unlocking();
  }

  void show(Figure Shown::*where, Figure const& figure) noexcept {
    if (shown_ == nullptr) return;
    for (std::uint64_t now = figure; shown_->*where != now; now = figure) shown_->*where = now;
  }

  /// `by` is modulo 2^64, so it may be negative.
  void change(Figure& figure, Figure Shown::*where, std::uint64_t by) noexcept {
    figure += by;
    show(where, figure);
  }

  /// Repeat `attempt` until it succeeds, as long as `give_way` or another thread's unlock may have made room.
  template <class Attempt, class GiveWay>
  void wait_for_room(std::uint64_t size, Attempt&& attempt, GiveWay&& give_way) {
    for (;;) {
      std::uint64_t const ended = ended_;
      if (attempt()) return;
      if (!give_way() && !wait_for_an_end(ended)) refuse(size);
    }
  }

  bool fits(std::uint64_t locked, std::uint64_t size) const noexcept {
    std::uint64_t const limit = limit_, external = external_;
    return limit == unlimited || (external <= limit && locked <= limit - external && size <= limit - external - locked);
  }
  /// Whether it would fit if all idle regions were given back.
  bool fits_without_idle(std::uint64_t size) const noexcept {
    std::uint64_t const idle = idle_, locked = locked_;
    return fits(locked - (idle < locked ? idle : locked), size);
  }
  bool try_reserve(std::uint64_t size) noexcept {
    std::uint64_t locked = locked_;
    while (fits(locked, size)) {
      if (locked_.compare_exchange_weak(locked, locked + size)) {
        show(&Shown::locked, locked_);
        return true;
      }
    }
    return false;
  }

  /// Unlock the longest idle of the regions with a number less than `before`, only of this keeper if there is one; count
  /// it in `given`. Returns whether there was one.
  bool give_back_oldest(std::uint64_t before, Given& given, Keeper const* of = nullptr) {
    Keeper* keeper = nullptr;
    std::optional<Keeper::Claim> claimed;
    Unlocking unlocking(*this);
    {
      std::lock_guard const guard(mutex_);
      while (!claimed) {
        std::uint64_t oldest = before;
        keeper = nullptr;
        for (Keeper* each = keepers_; each != nullptr; each = each->next_) {
          if (of != nullptr && each != of) continue;
          if (std::uint64_t const number = each->oldest_idle(); number < oldest) oldest = number, keeper = each;
        }
        if (keeper == nullptr) return false;
        claimed = keeper->claim_idle(oldest, unlocking);
      }
    }
    try {
      given.bytes += keeper->give_back(*claimed);
      given.lowest = std::min(given.lowest, claimed->start), given.highest = std::max(given.highest, claimed->start);
    } catch (std::exception const&) {
      if (given.refused++ == 0) given.error = std::current_exception();
    }
    return true;
  }

  [[noreturn]] void refuse(std::uint64_t size) const {
    Figures const now = figures();
    std::string const idle = now.idle == 0 ? "" : " (" + bytes(now.idle) + " of it idle)";
    std::string const external = now.external == 0 ? "" : ", and others have pinned " + bytes(now.external);
    throw LockLimit("locking " + bytes(size) + " is more than the budget of this process allows: " + bytes(now.limit) +
                    ", of which " + bytes(now.locked) + " are locked" + idle + external +
                    "; unlock some, wait for copies that still use what was unlocked, or raise it: "
                    "pinning.budget(BYTES), in C pinning_set_budget");
  }
  static std::string bytes(std::uint64_t count) {
    char text[64] = "";
    int const unit = (std::bit_width(count) - 1) / 10;
    double const value = std::ldexp(static_cast<double>(count), -10 * unit);
    int const digits = value == std::floor(value) || value >= 100 ? 0 : 1;
    if (unit > 0) std::snprintf(text, sizeof text, " (%.*f %ciB)", digits, value, "KMGTPE"[unit - 1]);
    return std::to_string(count) + " bytes" + text;
  }

  Shown* shown_;
  unsigned generation_ = 0;  // changes only while there is one thread
  std::atomic<std::uint64_t> limit_ = unlimited, idle_limit_ = 0;
  std::atomic<std::uint64_t> locked_ = 0, idle_ = 0, external_ = 0;
  std::atomic<std::uint64_t> last_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;  // unlocks
  std::mutex mutex_;
  Keeper* keepers_ = nullptr;
  std::mutex unlocks_mutex_;
  std::condition_variable one_ended_;
  Unlocking* unlocking_ = nullptr;
};

/// The budget of this process, which its maps share.
PINNING_API Budget& process_budget();

}  // namespace pinning
