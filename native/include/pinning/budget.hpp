// SPDX-License-Identifier: Apache-2.0
// How much the maps of a process keep locked, and how much they may.
#pragma once

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

/// The account of all maps that share it: bytes are reserved before a vendor is asked to lock them, and returned once it
/// has unlocked them. Idle regions, which are registered and not locked, count, and give way.
///
/// Locks: `mutex_` guards the lists of maps and of unlocks under way. A map's mutex nests inside it. No vendor call is made
/// under it.
class Budget {
 public:
  static constexpr std::uint64_t unlimited = ~std::uint64_t{0};

  /// A map, as its budget knows it: it keeps idle regions, each with the number that `next` gave as it became idle.
  class Keeper {
   public:
    /// The number of its longest idle region; `unlimited` where it has none. Takes no lock.
    virtual std::uint64_t oldest_idle() const noexcept = 0;
    struct Claim {
      Address start;
      bool half;  // the vendor has refused before, when some of it was unlocked
    };
    /// Reserves the region of this number for the caller; the map does not end before it is given back. Nothing if the
    /// region is idle no more.
    virtual std::optional<Claim> claim_idle(std::uint64_t number) noexcept = 0;
    /// The vendor unlocks what was claimed; the bytes that gives back. Throws what the vendor throws: then it is idle
    /// again, as the youngest.
    virtual std::uint64_t give_back(Claim claim) = 0;

   protected:
    Keeper() = default;
    ~Keeper() = default;

   private:
    friend Budget;
    Keeper* next_ = nullptr;
  };

  /// An unlock that a vendor is asked for, from before the call until its bytes are returned. A lock that finds no room
  /// waits for it.
  class Unlocking {
   public:
    explicit Unlocking(Budget& budget) : budget_(budget) {
      std::lock_guard const guard(budget_.mutex_);
      next_ = std::exchange(budget_.unlocking_, this);
    }
    ~Unlocking() {
      std::lock_guard const guard(budget_.mutex_);
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
    Unlocking* next_;
    std::thread::id const thread_ = std::this_thread::get_id();
  };

  struct Figures {
    std::uint64_t limit;       // bytes; `unlimited` where there is none
    std::uint64_t locked;      // by the maps, or reserved for it; with what is idle
    std::uint64_t idle;
    std::uint64_t external;    // in the maps, but pinned by others
    std::uint64_t idle_limit;  // 0 where nothing is kept idle
  };

  /// Where other processes read the figures while they change: each is as it was a moment ago.
  struct Shown {
    std::atomic<std::uint64_t> limit, locked, idle, external, idle_limit;
  };

  /// `shown`, which must outlive the budget, is kept up to date.
  explicit Budget(Shown* shown = nullptr) noexcept : shown_(shown) {}
  Budget(Budget const&) = delete;

  Figures figures() const noexcept { return {limit_, locked_, idle_, external_, idle_limit_}; }

  /// Sets the most bytes that may be locked, and how many of them may be idle; what is idle beyond either is given back.
  /// What is locked beyond the limit stays. A vendor that refuses to unlock is tried again with the next lock.
  void set(std::uint64_t limit, std::uint64_t idle_limit) {
    limit_ = limit;
    idle_limit_ = idle_limit;
    show();
    give_back_excess();
  }

  /// Takes `size` bytes for a lock, before the vendor is asked; where there is no room, idle regions are given back first,
  /// the longest idle first. Throws LockLimit.
  void reserve(std::uint64_t size) {
    std::uint64_t const begun = next();
    std::uint64_t before = unlimited;
    auto const give_way = [&] {
      auto const given = fits_without_idle(size) ? give_back_oldest(before) : std::nullopt;
      if (given && *given == 0) before = begun;  // what the vendor has refused is younger now, and not asked for again
      return given.has_value();
    };
    wait_for_room(size, [&] { return try_reserve(size); }, give_way);
  }
  /// Throws what `reserve` would, and takes nothing: for work that precedes a lock.
  void check(std::uint64_t size) {
    wait_for_room(size, [&] { return fits_without_idle(size); }, [] { return false; });
  }
  /// Returns bytes that were reserved and are not locked (any more).
  void give_up(std::uint64_t size) noexcept { change(locked_, &Shown::locked, 0 - size); }

  void enter_external(std::uint64_t size) noexcept { change(external_, &Shown::external, size); }
  void leave_external(std::uint64_t size) noexcept { change(external_, &Shown::external, 0 - size); }

  /// Whether a region of this size may be kept idle; `give_back_excess` then makes up for it.
  bool keeps(std::uint64_t size) const noexcept { return size <= idle_limit_; }
  /// Whether it may without that.
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

  /// Unlocks idle regions, the longest idle first, until `bytes` are given back or none is left that was idle when this
  /// began. How many bytes that gave. Of those that the vendor refuses to unlock, `refused` gets the first error.
  std::uint64_t give_back(std::uint64_t bytes, std::exception_ptr* refused = nullptr) {
    std::uint64_t const begun = next();
    std::uint64_t given = 0;
    while (given < bytes) {
      auto const one = give_back_oldest(begun, refused);
      if (!one) break;
      given += *one;
    }
    return given;
  }
  /// The same; throws the first error when all is done.
  std::uint64_t trim(std::uint64_t bytes) {
    std::exception_ptr refused;
    std::uint64_t const given = give_back(bytes, &refused);
    if (refused) std::rethrow_exception(refused);
    return given;
  }
  /// Calls what a vendor may refuse for want of room, and once more when as many bytes of what is idle were given back.
  /// A vendor that lacks memory, or whose limit is reached, is asked again also when another thread's unlock has ended:
  /// threads that want the same room may take turns.
  template <class Call>
  auto with_room(std::uint64_t bytes, Call&& call) {
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
        if (give_back(bytes) == 0 && !(no_room && wait_for_an_end(before))) throw;
        if (!no_room) break;
      }
    }
    return call();
  }
  /// Unlocks what is idle beyond what may be.
  void give_back_excess() {
    std::uint64_t const begun = next();
    while (has_excess() && give_back_oldest(begun)) {
    }
  }

  /// How many unlocks have ended.
  std::uint64_t ended() const noexcept { return ended_; }
  /// Whether one has ended since `ended` was read, waiting where another thread is at one.
  bool wait_for_an_end(std::uint64_t ended) {
    std::unique_lock guard(mutex_);
    while (ended_ == ended) {
      bool others = false;
      for (Unlocking* each = unlocking_; each != nullptr; each = each->next_) {
        others |= each->thread_ != std::this_thread::get_id();
      }
      if (!others) return false;
      one_ended_.wait(guard);
    }
    return true;
  }

  /// A number larger than all before: what a region is known by, and how long it has been idle.
  std::uint64_t next() noexcept { return ++last_; }

  void join(Keeper& keeper) {
    std::lock_guard const guard(mutex_);
    keeper.next_ = std::exchange(keepers_, &keeper);
  }
  /// A map of a parent process is not there.
  void leave(Keeper& keeper) noexcept {
    std::lock_guard const guard(mutex_);
    Keeper** at = &keepers_;
    while (*at != nullptr && *at != &keeper) at = &(*at)->next_;
    if (*at != nullptr) *at = keeper.next_;
  }

  /// In a child of fork, where nothing is locked and no map is there yet; the mutex may be held by a thread that is not.
  void begin_anew(unsigned generation) noexcept {
    std::uint64_t const limit = limit_, idle_limit = idle_limit_;
    new (this) Budget(shown_);
    generation_ = generation;
    limit_ = limit;
    idle_limit_ = idle_limit;
    show();
  }

  /// The process in which it counts: what was reserved in another generation must not be given back.
  unsigned generation() const noexcept { return generation_; }

  /// Brings what is shown up to date. Of several threads each looks again after its store: the last one has the last word.
  void show() noexcept {
    show(&Shown::limit, limit_);
    show(&Shown::locked, locked_);
    show(&Shown::idle, idle_);
    show(&Shown::external, external_);
    show(&Shown::idle_limit, idle_limit_);
  }

 private:
  using Figure = std::atomic<std::uint64_t>;

  void show(Figure Shown::*where, Figure const& figure) noexcept {
    if (shown_ == nullptr) return;
    for (std::uint64_t now = figure; shown_->*where != now; now = figure) shown_->*where = now;
  }

  /// `by` is modulo 2^64, so that it may be less than nothing.
  void change(Figure& figure, Figure Shown::*where, std::uint64_t by) noexcept {
    figure += by;
    show(where, figure);
  }

  /// Attempts until one succeeds, after each that `give_way` or the end of another thread's unlock may have made room for.
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
  /// Whether it would fit if all that is idle went.
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

  /// Unlocks the region that has been idle longest, of those whose number is less than `before`. The bytes that gives back,
  /// 0 for one that the vendor refuses; nothing where none is left.
  std::optional<std::uint64_t> give_back_oldest(std::uint64_t before, std::exception_ptr* refused = nullptr) {
    Keeper* keeper = nullptr;
    std::optional<Keeper::Claim> claimed;
    {
      std::lock_guard const guard(mutex_);
      while (!claimed) {
        std::uint64_t oldest = before;
        keeper = nullptr;
        for (Keeper* each = keepers_; each != nullptr; each = each->next_) {
          if (std::uint64_t const number = each->oldest_idle(); number < oldest) oldest = number, keeper = each;
        }
        if (keeper == nullptr) return std::nullopt;
        claimed = keeper->claim_idle(oldest);
      }
    }
    try {
      return keeper->give_back(*claimed);
    } catch (std::exception const&) {
      if (refused != nullptr && !*refused) *refused = std::current_exception();
      return 0;
    }
  }

  [[noreturn]] void refuse(std::uint64_t size) const {
    Figures const now = figures();
    std::string const idle = now.idle == 0 ? "" : " (" + bytes(now.idle) + " of it idle)";
    std::string const external = now.external == 0 ? "" : ", and others have pinned " + bytes(now.external);
    throw LockLimit("locking " + bytes(size) + " is more than the budget of this process allows: " + bytes(now.limit) +
                    ", of which " + bytes(now.locked) + " are locked" + idle + external +
                    "; unlock some, or raise it: pinning.budget(BYTES), in C pinning_set_budget");
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
  unsigned generation_ = 0;  // changes where there is one thread
  std::atomic<std::uint64_t> limit_ = unlimited, idle_limit_ = 0;
  std::atomic<std::uint64_t> locked_ = 0, idle_ = 0, external_ = 0;
  std::atomic<std::uint64_t> last_ = 0;
  std::atomic<std::uint64_t> ended_ = 0;  // unlocks
  std::mutex mutex_;
  std::condition_variable one_ended_;
  Keeper* keepers_ = nullptr;
  Unlocking* unlocking_ = nullptr;
};

/// The one of this process, which its maps share.
PINNING_API Budget& process_budget();

}  // namespace pinning
