// SPDX-License-Identifier: Apache-2.0
// Threads that lock by any device of a vendor, unlock, map, register, refresh and look up at random, while another library
// pins and unpins, registrars come and go, and the vendor and the registrars refuse at random and check their calls; and
// the cases in which one thread must wait for another, or must not: pinned_map_stress [SECONDS] [SEED]
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <future>
#include <map>
#include <pinning/mapped_locks.hpp>
#include <pinning/paced_pieces.hpp>
#include <random>
#include <thread>

#include "expect.hpp"

// The only access to a private member that the language allows: an explicit instantiation may name it.
template <auto Table, auto Mutex>
struct Reach {
  friend auto& table_of(pinning::PinnedMap& map) { return map.*Table; }
  friend auto& mutex_of(pinning::PinnedMap& map) { return map.*Mutex; }
};
auto& table_of(pinning::PinnedMap& map);
auto& mutex_of(pinning::PinnedMap& map);
template struct Reach<&pinning::PinnedMap::table_, &pinning::PinnedMap::mutex_>;

namespace {

using pinning::Address;
using pinning::Budget;
using pinning::Hold;
using pinning::LockMapped;
using pinning::MappedLocks;
using pinning::PinnedMap;
using pinning::Region;
using pinning::LockOptions;

constexpr Address locked_offset = Address{1} << 44, foreign_offset = Address{2} << 44, registered_offset = Address{3} << 44;

/// Stands for the interpreter lock of a Python device: callers of the map's quick functions hold it, the vendor's calls
/// take it, and so do the destructors of the exceptions that they throw.
std::mutex interpreter;

struct InterpretersReference {
  InterpretersReference() = default;
  InterpretersReference(InterpretersReference const&) = default;
  ~InterpretersReference() { std::lock_guard const guard(interpreter); }
};
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
  InterpretersReference reference;
};
struct Taken : pinning::AlreadyPinned {
  using pinning::AlreadyPinned::AlreadyPinned;
  InterpretersReference reference;
};

struct Range {
  Address start;
  std::uint64_t size;
  Address end() const { return start + size; }
};

struct Locked {
  std::uint64_t size;
  void const* by;
};

/// Whether disjoint ranges, by their starts, have all of these bytes.
bool covers(std::map<Address, Locked> const& ranges, Range range) {
  for (Address at = range.start; at < range.end();) {
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return false;
    --next;
    if (at - next->first >= next->second.size) return false;
    at = next->first + next->second.size;
  }
  return true;
}

/// Records what has been locked, also by its other devices; a wrong call ends the program.
class Vendor : public pinning::Locker {
 public:
  /// Another device, whose locks are for all of them.
  class Device : public pinning::Locker {
   public:
    explicit Device(Vendor& vendor) : vendor_(vendor) {}
    Address lock(Address ptr, std::uint64_t size, LockOptions) override { return vendor_.lock_by(this, ptr, size); }
    void unlock(Address ptr) override { vendor_.unlock_by(this, ptr); }
    std::optional<pinning::Pinned> is_pinned(Address ptr) override { return vendor_.is_pinned(ptr); }

   private:
    Vendor& vendor_;
  };

  explicit Vendor(unsigned refuse_one_in = 0, std::optional<Range> where_others_pin = {})
      : refuse_one_in_(refuse_one_in), where_others_pin_(where_others_pin) {}

  Address lock(Address ptr, std::uint64_t size, LockOptions) override { return lock_by(this, ptr, size); }
  Address lock_by(Locker const* device, Address ptr, std::uint64_t size) {
    attend(ptr);
    std::lock_guard const guard(interpreter);
    if (foreign_ && ptr < foreign_->end() && ptr + size > foreign_->start) throw Taken("taken");
    if (refuse() || (where_others_pin_ && ptr - where_others_pin_->start < where_others_pin_->size && random_() % 8)) {
      throw Refused("lock");
    }
    if (locked_meets({ptr, size})) fail("the vendor was asked to lock what is locked");
    locked_[ptr] = {size, device};
    ++locks;
    return ptr + locked_offset;
  }
  void unlock(Address ptr) override { unlock_by(this, ptr); }
  void unlock_by(Locker const* device, Address ptr) {
    attend(ptr);
    std::lock_guard const guard(interpreter);
    auto const found = locked_.find(ptr);
    if (found == locked_.end()) fail("the vendor was asked to unlock memory that is not locked");
    expect(found->second.by == device, "another device was asked to unlock than has locked");
    if (refuse()) throw Refused("unlock");
    locked_.erase(found);
    ++unlocks;
  }
  void forget(Address ptr, pinning::Span gone) override {
    {
      std::lock_guard const guard(interpreter);
      gone_ = gone;
    }
    unlock(ptr);
  }
  std::optional<pinning::Pinned> is_pinned(Address ptr) override {
    std::lock_guard const guard(interpreter);
    if (refuse()) throw Refused("is_pinned");
    if (!foreign_ || ptr - foreign_->start >= foreign_->size) return std::nullopt;
    return pinning::Pinned{foreign_->start, foreign_->size, foreign_->start + foreign_offset};
  }

  /// Another library pins a range, or unpins its range; false if some of it is locked.
  bool pin(std::optional<Range> range) {
    std::lock_guard const guard(interpreter);
    if (range && locked_meets(*range)) return false;
    foreign_ = range;
    return true;
  }

  std::size_t held() {
    std::lock_guard const guard(interpreter);
    return locked_.size();
  }
  /// Whether all bytes of a range are locked.
  bool has(Address ptr, std::uint64_t size) {
    std::lock_guard const guard(interpreter);
    return covers(locked_, {ptr, size});
  }
  void refuse(unsigned one_in) { refuse_one_in_ = one_in; }
  /// What memory was gone when the vendor last unlocked memory some of which was.
  pinning::Span gone() const { return gone_; }

  // The next call at `ptr` stops until `release`, then fails if `failing`; `wait_for_caller` returns once it has begun.
  void hold(Address ptr) {
    std::lock_guard const guard(gate_);
    held_at_ = ptr;
    arrived_ = false;
  }
  void wait_for_caller() {
    std::unique_lock guard(gate_);
    turn_.wait(guard, [&] { return arrived_; });
  }
  void release(bool failing = false) {
    {
      std::lock_guard const guard(gate_);
      held_at_ = 0;
      failing_ = failing;
    }
    turn_.notify_all();
  }

  std::atomic<int> locks = 0, unlocks = 0;

 private:
  void attend(Address ptr) {
    std::unique_lock guard(gate_);
    if (held_at_ != ptr || arrived_) return;
    arrived_ = true;
    turn_.notify_all();
    turn_.wait(guard, [&] { return held_at_ != ptr; });
    if (std::exchange(failing_, false)) throw Refused("as told");
  }
  bool locked_meets(Range range) {
    auto const above = locked_.lower_bound(range.start);
    return (above != locked_.end() && above->first < range.end()) ||
           (above != locked_.begin() && std::prev(above)->first + std::prev(above)->second.size > range.start);
  }
  bool refuse() { return refuse_one_in_ != 0 && random_() % refuse_one_in_ == 0; }

  std::atomic<unsigned> refuse_one_in_;
  std::optional<Range> const where_others_pin_;  // mostly refused to us, so that others can pin it
  std::optional<Range> foreign_;
  pinning::Span gone_{};
  std::map<Address, Locked> locked_;
  std::minstd_rand random_;
  std::mutex gate_;
  std::condition_variable turn_;
  Address held_at_ = 0;
  bool arrived_ = false, failing_ = false;
};

/// A registrar that accepts ranges that the vendor has locked, and no others.
class Book : public pinning::Registrar {
 public:
  explicit Book(Vendor& vendor, std::uint64_t piece = 0, int refuse_after = -1)
      : vendor_(vendor), piece_(piece), refuse_after_(refuse_after) {}
  ~Book() override { expect(known_.empty(), "a registrar goes when it knows nothing"); }

  std::uint64_t piece() const noexcept override { return piece_; }
  void* add(Address ptr, std::uint64_t size) override {
    expect(vendor_.has(ptr, size), "what it is told of is locked");
    expect(piece_ == 0 || size <= piece_, "it is told in the pieces that it wants");
    std::lock_guard const guard(mutex_);
    if (refuse_after_ >= 0 && refuse_after_-- == 0) throw Refused("add");
    auto const next = known_.lower_bound(ptr);
    expect(next == known_.end() || next->first >= ptr + size, "it is told once");
    known_[ptr] = {size, this};
    return reinterpret_cast<void*>(ptr);
  }
  void remove(void* handle) override {
    auto const ptr = reinterpret_cast<Address>(handle);
    std::lock_guard const guard(mutex_);
    auto const found = known_.find(ptr);
    expect(found != known_.end(), "it forgets what it knows");
    expect(goes || vendor_.has(ptr, found->second.size), "and before the vendor unlocks it");
    known_.erase(found);
  }
  bool knows(Range range) {
    std::lock_guard const guard(mutex_);
    return covers(known_, range);
  }

  std::atomic<bool> goes = false;  // being removed, also by a refusal: that does not wait for threads that unlock

 private:
  Vendor& vendor_;
  std::uint64_t const piece_;
  int refuse_after_;
  std::mutex mutex_;
  std::map<Address, Locked> known_;
};

Book& add(PinnedMap& map, std::unique_ptr<Book> made) {
  Book& book = *made;
  map.add_registrar(std::move(made));
  return book;
}

// ---- several devices, and registrars ----

/// In one call or in pieces, from the start or after it was idle, given back or unlocked at the second attempt.
void the_device_that_has_locked_unlocks() {
  for (bool const by_other : {false, true}) {
    for (std::uint64_t const piece : {0, 40}) {
      Vendor vendor;
      Vendor::Device other(vendor);
      Budget budget;
      budget.set(200, 200);
      PinnedMap map(vendor, budget);
      LockOptions const one{.locker = by_other ? &other : nullptr}, another{.locker = by_other ? nullptr : &other};
      Hold const hold = map.lock(0x1000, 100, one, piece), inside = map.lock(0x1000 + 30, 10, another);
      expect(inside.device_ptr == 0x1000 + 30 + locked_offset, "the address is that of the range");
      map.unlock(hold, true);
      map.unlock(inside, true);
      expect(map.has_idle(), "it is kept");
      map.unlock(map.lock(0x1000, 100, another, piece), true);
      expect(vendor.locks == (piece == 0 ? 1 : 3), "another device needs no other lock");
      map.lock(0x1000 + 50, 100, another, piece);  // the idle region gives way
      expect(vendor.has(0x1000 + 50, 100) && !vendor.has(0x1000, 1), "it has given way");
      vendor.refuse(1);
      expect(throws<Refused>([&] { map.unlock(0x1000 + 50); }), "unlocked though the vendor refuses");
      vendor.refuse(0);
      map.unlock(0x1000 + 50);
      expect(vendor.held() == 0 && map.count() == 0, "it has gone");
    }
  }
}

void memory_of_several_devices_leaves() {
  Vendor vendor;
  Vendor::Device other(vendor);
  Budget budget;
  PinnedMap map(vendor, budget);
  Hold const first = map.lock(0x10000, 0x1000), second = map.lock(0x20000, 0x1000, {.locker = &other});
  map.invalidate(0x10000, 0x11000);
  expect(!map.holds(first) && !map.holds(second), "no lock is held");
  map.lock(0x10000, 0x1000, {.locker = &other});  // what is there now
  map.lock(0x20000, 0x1000);
  expect(vendor.locks == 4 && budget.figures().locked == 0x2000, "the vendor has forgotten what was there");
}

void a_region_goes_while_a_registrar_is_told_of_it() {
  /// Undoes all locks of its map while a region is added to it.
  struct Clearing : pinning::Registrar {
    Clearing(PinnedMap& map, int& known) : map(map), known(known) {}
    void* add(Address, std::uint64_t) override {
      ++known;
      map.clear();
      return nullptr;
    }
    void remove(void*) override { --known; }

    PinnedMap& map;
    int& known;
  };
  Vendor vendor;
  PinnedMap map(vendor);
  int known = 0;
  map.lock(0x1000, 100, {}, 40);
  map.add_registrar(std::make_unique<Clearing>(map, known));
  expect(known == 0 && vendor.held() == 0 && map.count() == 0, "it knows nothing of what has gone");
}

/// A registrar is removed while regions locked earlier are added to it: no more are added, and the first is removed.
void a_registrar_goes_while_it_is_added() {
  static std::atomic<int> known, told;
  static std::atomic<bool> goes_on;
  known = told = 0;
  goes_on = false;
  struct Slow : pinning::Registrar {
    ~Slow() override { expect(known == 0, "a registrar goes when it knows nothing"); }
    void* add(Address, std::uint64_t) override {
      ++told;
      while (!goes_on) std::this_thread::yield();
      ++known;
      return nullptr;
    }
    void remove(void*) override { --known; }
  };
  Vendor vendor;
  PinnedMap map(vendor);
  map.lock(0x1000, 100);
  map.lock(0x2000, 100);
  auto slow = std::make_unique<Slow>();
  void const* const self = slow->self();
  std::jthread const adder([&] { map.add_registrar(std::move(slow)); });
  while (told == 0) std::this_thread::yield();
  std::atomic<bool> removed = false;
  std::jthread const remover([&] {
    expect(map.remove_registrar(self), "it is there");
    removed = true;
  });
  while (map.has_registrar(self)) std::this_thread::yield();
  expect(!removed, "it is not removed while it is told");
  goes_on = true;
  while (!removed) std::this_thread::yield();
  expect(told == 1 && known == 0, "it is told of no more, and knows nothing");
  expect(!map.remove_registrar(self), "it is gone");
}

/// Of two threads that add a registrar of the same library, one is refused.
void a_registrar_is_added_once() {
  static char library;
  struct Same : pinning::Registrar {
    void const* self() const noexcept override { return &library; }
    void* add(Address, std::uint64_t) override { return nullptr; }
    void remove(void*) override {}
  };
  for (int i = 0; i < 200; ++i) {
    Vendor vendor;
    PinnedMap map(vendor);
    std::atomic<int> refused = 0, ready = 0;
    auto const add = [&] {
      for (++ready; ready < 2;) std::this_thread::yield();
      refused += throws<pinning::InvalidArgument>([&] { map.add_registrar(std::make_unique<Same>()); });
    };
    {
      std::jthread const first(add), second(add);
    }
    expect(refused == 1, "one of two is refused");
  }
}

// ---- waiting for other threads ----

/// Time for a thread to reach the point where it waits. Too short a time may hide a fault, but reports no false one.
void let_others_run() { std::this_thread::sleep_for(std::chrono::milliseconds(20)); }

/// A thread that has begun a call of the vendor at `ptr`, which stops until `release`.
std::jthread stopped_at(Address ptr, Vendor& vendor, auto act) {
  vendor.hold(ptr);
  std::jthread thread(std::move(act));
  vendor.wait_for_caller();
  return thread;
}

void one_call_for_two_threads() {
  Vendor vendor;
  PinnedMap map(vendor);
  std::jthread first = stopped_at(0x1000, vendor, [&] { map.lock(0x1000, 0x1000); });
  std::jthread same([&] { map.lock(0x1000, 0x1000); });
  std::jthread part([&] { map.lock(0x1800, 0x10); });
  let_others_run();
  expect(!map.find(0x1000) && map.size() == 0, "a range is found before the vendor has locked it");
  expect(map.lock(0x8000, 1).device_ptr == 0x8000 + locked_offset && map.find(0x8000), "a vendor call delays another range");
  expect(!map.try_lock(0x1000, 1), "counted on a range that is not locked yet");
  vendor.release();
  first.join(), same.join(), part.join();
  expect(vendor.locks == 2 && map.find(0x1000)->references == 3, "more than one vendor call for one range");
  for (int i = 0; i < 3; ++i) map.unlock(0x1fff);
  map.unlock(0x8000);
  expect(vendor.held() == 0 && map.size() == 0, "something stays locked");
}

void as_many_locks_as_can_be_counted() {
  Vendor vendor;
  PinnedMap map(vendor);
  Hold const first = map.lock(0x1000, 0x1000);
  auto& table = table_of(map);
  auto& references = table.value(table.find(0x1000)->id).references;
  references = ~std::uint32_t{0} - 1;
  map.lock(0x1800, 0x10);
  expect(!map.try_lock(0x1000, 1), "a count wraps");
  try {
    map.lock(0x1000, 0x1000);
    fail("a count wraps");
  } catch (pinning::LockLimit const& refused) {
    expect(std::string(refused.what()).find("has 4294967295 locks") != std::string::npos, "a refusal without the number");
  }
  expect(references == ~std::uint32_t{0} && map.holds(first), "a refused lock has changed something");
  map.unlock(0x1000);
  references = 1;
  map.unlock(0x1000);
  expect(vendor.held() == 0, "something stays locked");
}

void the_next_tries_when_the_first_fails() {
  Vendor vendor;
  PinnedMap map(vendor);
  bool refused = false;
  std::jthread first = stopped_at(0x1000, vendor, [&] { refused = throws<Refused>([&] { map.lock(0x1000, 0x1000); }); });
  std::jthread straddling([&] { map.lock(0x1800, 0x1000); });  // fine once the other is refused
  let_others_run();
  vendor.release(true);
  first.join(), straddling.join();
  expect(refused && !map.find(0x1000) && map.find(0x1800)->start == 0x1800, "who waited has not tried itself");
}

void lock_while_the_last_unlock_is_under_way(bool failing) {
  Vendor vendor;
  PinnedMap map(vendor);
  map.lock(0x1000, 0x1000);
  bool refused = false;
  std::jthread last = stopped_at(0x1000, vendor, [&] { refused = throws<Refused>([&] { map.unlock(0x1000); }); });
  expect(!map.find(0x1000), "a range is found while the vendor unlocks it");
  std::jthread next([&] { map.lock(0x1000, 0x1000); });
  let_others_run();
  vendor.release(failing);
  last.join(), next.join();
  expect(refused == failing && map.find(0x1000)->references == (failing ? 2u : 1u), "wrong count after a late lock");
  expect(vendor.locks == (failing ? 1 : 2), "wrong number of vendor calls after a late lock");
}

void clear_waits_or_leaves() {
  for (bool const waits : {true, false}) {
    Vendor vendor;
    PinnedMap map(vendor);
    map.lock(0x9000, 1);
    std::jthread slow = stopped_at(0x1000, vendor, [&] { map.lock(0x1000, 0x1000); });
    std::jthread clearing([&] { map.clear(waits); });
    if (!waits) clearing.join();
    let_others_run();
    vendor.release();
    slow.join();
    if (waits) clearing.join();
    expect(vendor.held() == (waits ? 0u : 1u) && !map.find(0x9000), "clear has left what it should not");
  }
}

void unlock_while_another_unlocks() {
  Vendor vendor;
  PinnedMap map(vendor);
  map.lock(0x1000, 0x1000);
  bool locked = true;
  std::jthread last = stopped_at(0x1000, vendor, [&] { map.unlock(0x1000); });
  std::jthread late([&] { locked = !throws<pinning::NotLocked>([&] { map.unlock(0x1000); }); });
  let_others_run();
  vendor.release();
  last.join(), late.join();
  expect(!locked && vendor.unlocks == 1, "unlocked twice");
}

/// A lock in pieces whose second piece is in the vendor's call.
struct Growth {
  void lock() {
    try {
      map.lock(0x1000, 0x4000, {}, 0x1000);
    } catch (pinning::StillLocked const&) {
      ended = true;
    } catch (pinning::InvalidRange const&) {
      left = true;
    }
  }
  void end() {
    vendor.release();
    thread.join();
  }

  bool ended = false, left = false;
  Vendor vendor;
  PinnedMap map{vendor};
  std::jthread thread = stopped_at(0x2000, vendor, [this] { lock(); });
};

void the_lock_that_is_being_taken_is_not_taken_away() {
  Growth growth;
  std::atomic<bool> unlocked = false;
  std::jthread unlocking([&] {
    growth.map.unlock(0x1000);
    unlocked = true;
  });
  let_others_run();
  expect(!unlocked && growth.map.find(0x1000), "unlocked while it is being locked");
  growth.end();
  unlocking.join();
  expect(growth.vendor.locks == 4 && growth.vendor.held() == 0, "an unlock has not waited for the lock");
}

void memory_leaves_what_grows() {
  Growth growth;
  Hold const inside = growth.map.lock(0x1800, 0x10);
  growth.map.invalidate(0x1000, 0x1000);
  expect(!growth.map.find(0x1000) && !growth.map.holds(inside) && growth.map.size() == 0, "what has left is found");
  growth.end();
  expect(growth.left && growth.vendor.held() == 0, "a lock of memory that has left goes on");
  expect(!growth.map.unlock(inside), "a lock of memory that has left is held");
  growth.map.lock(0x1000, 0x4000);
}

void clear_ends_what_grows() {
  Growth growth;
  std::jthread clearing([&] { growth.map.clear(); });
  let_others_run();
  growth.end();
  clearing.join();
  expect(growth.ended && growth.vendor.held() == 0 && growth.map.size() == 0, "clear has left what grows");
  expect(growth.vendor.locks == 2, "more pieces were locked although all is to be undone");
}

/// `clear` throws the first error that it meets; the others it destroys.
void clear_while_others_make_quick_calls() {
  Vendor vendor(2);
  PinnedMap map(vendor);
  std::atomic<bool> stop = false;
  std::jthread quick([&] {
    while (!stop) {
      std::lock_guard const guard(interpreter);
      expect(!map.try_lock(0x100000, 1), "a range that nobody has locked is locked");
    }
  });
  for (int round = 0; round < 200; ++round) {
    for (Address ptr = 0x1000; ptr < 0x9000; ptr += 0x1000) {
      throws<Refused>([&] { map.lock(ptr, 0x1000); });
    }
    throws<Refused>([&] { map.clear(); });
    expect(map.size() == vendor.held(), "clear and the vendor differ on what is left");
  }
  stop = true;
}

// ---- invalidation ----

void memory_leaves() {
  Vendor vendor;
  PinnedMap map(vendor);
  Hold const first = map.lock(0x1000, 0x2000), second = map.lock(0x1800, 1), other = map.lock(0x8000, 0x1000);
  expect(!map.invalidate(0x4000, 0x4000) && map.holds(first), "memory that nobody has locked takes a region away");
  expect(map.invalidate(0x2800, 0x10), "nothing is to be undone");
  expect(!map.find(0x1000) && !map.holds(first) && !map.try_lock(0x1000, 1) && !map.try_unlock(second) && map.size() == 1 &&
             map.regions().size() == 1 && map.find(0x8000),
         "a region is relied on whose memory has left");
  expect(vendor.held() == 2, "the vendor is called by whoever tells that memory has left");
  expect(!map.unlock(second) && vendor.held() == 1 && !map.unlock(first), "a lock whose memory has left is given up twice");
  expect(throws<pinning::NotLocked>([&] { map.unlock(0x1000); }), "a lock whose memory has left is held");
  map.invalidate(0x8000, 1);
  Hold const anew = map.lock(0x7000, 0x2000);  // over it: that is undone first
  expect(vendor.unlocks == 2 && map.find(0x8000)->references == 1 && !map.unlock(other) && map.holds(anew),
         "the lock of what left is taken for the new one");
  map.lock(0x20000, 0x3000, {}, 0x1000);
  map.invalidate(0x21000, 0x1000);
  map.drain_invalidations();
  expect(vendor.held() == 1, "pieces stay locked");
  Address const page = static_cast<Address>(sysconf(_SC_PAGESIZE)), all = Address{1} << 30;
  for (Address const second : {0, 3, 5}) {  // pages: both parts are gone if they touch, otherwise the larger one is known
    map.lock(all, 8 * page);
    map.invalidate(all + page - second, 2 * page + 2 * second);  // of the pages at both ends a part exists
    map.invalidate(all + second * page, page);
    map.drain_invalidations();
    auto const [start, end] = vendor.gone();
    expect(start == all + (second == 0 ? 0 : page) && end == all + (second == 3 ? 4 : 3) * page, "a part that is gone is forgotten");
  }
  map.unlock(anew);
  expect(vendor.held() == 0 && vendor.locks == vendor.unlocks, "something stays locked");
}

void registered_memory_leaves() {
  Vendor vendor;
  PinnedMap map(vendor);
  map.register_pinned(0x1000, 0x1000, 0x1000);
  Hold const hold = map.lock(0x1000, 1);
  map.invalidate(0x1000, 0x1000);
  map.register_pinned(0x1800, 0x1000, 0x9000);
  expect(vendor.locks == 0 && vendor.unlocks == 0 && map.find(0x1800)->device_ptr == 0x9000 && !map.unlock(hold),
         "a registration outlives its memory");
}

void memory_leaves_while_it_is_locked() {
  for (bool const failing : {true, false}) {
    Vendor vendor;
    PinnedMap map(vendor);
    bool refused = false, left = false;
    std::jthread locks = stopped_at(0x1000, vendor, [&] {
      try {
        map.lock(0x1000, 0x1000);
      } catch (Refused const&) {
        refused = true;
      } catch (pinning::InvalidRange const&) {
        left = true;
      }
    });
    map.invalidate(0x1000, 1);
    vendor.release(failing);
    locks.join();
    expect(refused == failing && left == !failing && vendor.held() == 0 && !map.find(0x1000), "memory that left is locked");
    map.unlock(map.lock(0x1000, 0x1000));
    expect(vendor.held() == 0, "something stays locked");
  }
}

void memory_leaves_and_the_vendor_refuses() {
  Vendor vendor;
  PinnedMap map(vendor);
  Hold const hold = map.lock(0x1000, 0x1000);
  map.invalidate(0x1000, 0x1000);
  std::jthread undoes = stopped_at(0x1000, vendor, [&] { map.drain_invalidations(); });
  vendor.release(true);
  undoes.join();
  expect(throws<pinning::StillLocked>([&] { map.lock(0x1000, 1); }), "locked over a registration that the vendor still has");
  expect(!map.holds(hold) && !map.unlock(hold) && vendor.held() == 1, "a lock whose memory has left is held");
  map.unlock(0x1000);
  expect(vendor.held() == 0 && map.size() == 0, "something stays locked");
}

/// Memory is replaced repeatedly while threads lock it and look it up: a thread that has seen the replacement finds no
/// lock of the previous memory.
void memory_keeps_leaving(std::chrono::duration<double> time) {
  static constexpr int places = 4;
  static constexpr std::uint64_t place_size = 0x10000;
  struct Memory : pinning::Locker {
    std::array<std::atomic<Address>, places> generation{}, announced{};
    std::atomic<unsigned> calls = 0;
    std::atomic<long> locked = 0;
    static std::size_t place(Address ptr) { return (ptr - (Address{1} << 32)) / place_size; }
    Address lock(Address ptr, std::uint64_t, LockOptions) override {
      Address const now = generation[place(ptr)];
      ++locked;
      return ptr + (now << 44);
    }
    void unlock(Address) override {
      if (++calls % 16 == 0) throw Refused("unlock");
      --locked;
    }
    std::optional<pinning::Pinned> is_pinned(Address) override { return std::nullopt; }
  } memory;
  PinnedMap map(memory);
  std::atomic<bool> stop = false;
  std::atomic<long> finds = 0, losses = 0;
  auto const met = [&] { return finds > 0 && losses > 0; };
  auto const try_to = [](auto&& act) {
    try {
      act();
    } catch (Refused const&) {
    } catch (std::logic_error const&) {
    } catch (pinning::NotContiguous const&) {  // replaced between two pieces
    }
  };
  {
    std::vector<std::jthread> threads;
    for (unsigned seed = 1; seed <= 2; ++seed) {
      threads.emplace_back([&, seed] {
        for (std::minstd_rand random(seed); !stop;) {
          Address const ptr = (Address{1} << 32) + random() % places * place_size + random() % 4 * 0x1000;
          try_to([&] {
            Hold const hold = map.lock(ptr, 1 + random() % 0x2000, {}, random() % 4 == 0 ? 0x800 : 0);
            for (int i = 0; i < 10; ++i) {
              Address const at_least = memory.announced[Memory::place(ptr)];
              if (auto const region = map.find(ptr)) {
                expect((region->device_ptr - region->start) >> 44 >= at_least, "a stale region is found");
                ++finds;
              }
            }
            losses += !map.unlock(hold);
          });
        }
      });
    }
    threads.emplace_back([&] {
      for (std::minstd_rand random(9); !stop;) {
        auto const i = random() % places;
        Address const now = ++memory.generation[i];
        map.invalidate((Address{1} << 32) + i * place_size, place_size);
        memory.announced[i] = now;
        if (random() % 2) map.drain_invalidations();
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 100));
        // Retry what the vendor has refused to undo.
        for (Address at = 0; at < place_size; at += 0x800) {
          try_to([&] { map.unlock((Address{1} << 32) + i * place_size + at); });
        }
      }
    });
    for (Trial const trial(time); trial.goes_on(met());) let_others_run();
    stop = true;
  }
  for (int tries = 0; tries < 1000 && memory.locked != 0; ++tries) throws<Refused>([&] { map.clear(); });
  expect(memory.locked == 0 && map.size() == 0, "something stays locked");
  expect(met(), "no memory has left while it was locked");
}

// ---- the budget ----

void a_lock_waits_for_the_room_that_an_unlock_makes() {
  for (bool const idle : {false, true}) {
    Vendor one, other;
    Budget budget;
    budget.set(0x1000, 0x1000);
    PinnedMap map(other, budget);
    auto going = std::make_unique<PinnedMap>(one, budget);
    Hold const hold = going->lock(0x1000, 0x1000);
    if (idle) going->unlock(hold, true);
    std::jthread unlocking = stopped_at(0x1000, one, [&] {
      if (idle) {
        budget.give_back(1);
      } else {
        going->unlock(hold);
      }
    });
    std::jthread locking([&] { map.lock(0x8000, 0x1000); });
    std::jthread destroying([&] {
      if (idle) going.reset();
    });
    let_others_run();
    expect(other.locks == 0, "locked beyond the budget");
    one.release();
    unlocking.join(), locking.join(), destroying.join();
    expect(map.find(0x8000).has_value() && one.held() == 0, "not locked though there is room");
  }
}

pinning::VendorError no_room(bool known) {
  return pinning::VendorError({.function = "fakeLock", .code = 2, .name = "NO_ROOM", .advice = "", .no_memory = known});
}

/// Idle memory leaves as long as the vendor has no room, also if each region that leaves is not enough for it.
void a_lock_without_room_is_tried_again() {
  struct Small final : Vendor {
    Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
      if (size < 0x1000 && held() > 0) throw no_room(true);
      return Vendor::lock(ptr, size, options);
    }
  };
  Small vendor;
  Budget budget;
  budget.set(Budget::unlimited, Budget::unlimited);
  PinnedMap map(vendor, budget);
  for (Address start = 0x1000; start <= 0x4000; start += 0x1000) map.unlock(map.lock(start, 0x1000), true);
  map.lock(0x8000, 0x800);
  expect(map.find(0x8000) && vendor.held() == 1, "idle memory stays though the vendor has no room");
  expect(throws<pinning::VendorError>([&] { map.lock(0x9000, 0x800); }), "locked without room");  // nothing is idle any more
}

/// As many threads lock as the vendor has room for once all idle memory is given back, which another thread does too.
void what_another_thread_gives_back_is_room(std::chrono::duration<double> time) {
  struct Small final : Vendor {
    Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
      int before = taken;
      while (before < 2 && !taken.compare_exchange_weak(before, before + 1)) {
      }
      if (before == 2) {
        throw no_room(true);
      }
      return Vendor::lock(ptr, size, options);
    }
    void unlock(Address ptr) override {
      Vendor::unlock(ptr);
      --taken;
    }
    std::atomic<int> taken = 0;
  };
  Small vendor;
  Budget budget;
  budget.set(Budget::unlimited, Budget::unlimited);
  PinnedMap map(vendor, budget);
  std::atomic<bool> stop = false;
  std::atomic<long> given = 0;
  std::vector<std::jthread> threads;
  for (unsigned seed : {1, 2}) {
    threads.emplace_back([&, seed] {
      for (std::minstd_rand random(seed); !stop;) map.unlock(map.lock(0x1000 * (1 + random() % 6), 0x1000), true);
    });
  }
  threads.emplace_back([&] {
    for (; !stop; std::this_thread::sleep_for(std::chrono::microseconds(20))) given += budget.give_back(1).bytes != 0;
  });
  for (Trial const trial(time); trial.goes_on(given > 100);) let_others_run();
  stop = true;
}

/// Another thread makes room while the vendor refuses, or while it looks for the reason and so gives another one.
void room_that_is_made_during_a_refusal_is_used() {
  struct Stuck final : Vendor {
    void unlock(Address ptr) override {
      if (stuck) throw Refused("as told");
      Vendor::unlock(ptr);
    }
    bool stuck = false;
  };
  for (bool const known : {true, false}) {
    for (bool const idle_is_stuck : {false, true}) {
      Stuck vendor;
      Budget budget;
      budget.set(Budget::unlimited, Budget::unlimited);
      PinnedMap map(vendor, budget);
      if (idle_is_stuck) map.unlock(map.lock(0x1000, 0x1000), true);
      vendor.stuck = true;
      int calls = 0;
      budget.with_room(1, [&] {
        if (++calls > 1) return;
        std::jthread([&] { Budget::Unlocking(budget).begin(); }).join();
        throw no_room(known);
      });
      expect(calls == 2, "the call is not repeated");
      auto const refuse_for_good = [&] {
        if (++calls > 20) return;
        std::jthread([&] { Budget::Unlocking(budget).begin(); }).join();
        throw no_room(false);
      };
      calls = 0;
      expect(throws<pinning::VendorError>([&] { budget.with_room(1, refuse_for_good); }), "not refused");
      calls = 0;
      expect(throws<pinning::VendorError>([&] { budget.with_room(1, [&] { ++calls; throw no_room(true); }); }) && calls == 1,
             "a refusal of its own counts as an end of an unlock");
      vendor.stuck = false;
    }
  }
}

/// What is idle for the device itself gives way first, though what is idle for others is older.
void a_lock_takes_the_room_of_its_own_device() {
  struct Small final : Vendor {
    Address lock(Address ptr, std::uint64_t size, LockOptions options) override {
      if (held() == 2) throw no_room(false);
      return Vendor::lock(ptr, size, options);
    }
  };
  Vendor others;
  Small vendor;
  Budget budget;
  budget.set(Budget::unlimited, Budget::unlimited);
  PinnedMap other(others, budget), map(vendor, budget);
  for (PinnedMap* each : {&other, &map}) {
    for (Address const start : {0x1000, 0x2000}) each->unlock(each->lock(start, 0x1000), true);
  }
  map.lock(0x8000, 0x1000);
  expect(vendor.held() == 2 && others.held() == 2, "idle memory of another device was given back");
}

/// A region is given back piece by piece, and the vendor refuses the second: then it has no lock, and is not found.
void a_region_that_is_found_has_a_lock(std::chrono::duration<double> time) {
  struct Refusing final : Vendor {
    void unlock(Address ptr) override {
      if (ptr == 0x2000 && std::exchange(refuses, false)) throw Refused("as told");
      Vendor::unlock(ptr);
    }
    bool refuses = false;
  };
  Refusing vendor;
  Budget budget;
  budget.set(Budget::unlimited, Budget::unlimited);
  PinnedMap map(vendor, budget);
  std::atomic<long> found = 0;
  std::jthread reader([&](std::stop_token const& stopped) {
    while (!stopped.stop_requested()) {
      auto const region = map.find(0x1000);
      if (!region) continue;
      ++found;
      if (region->references == 0) fail("found without a lock");
    }
  });
  for (Trial const trial(time); trial.goes_on(found > 100);) {
    map.unlock(map.lock(0x1000, 0x2000, {}, 0x1000), true);
    vendor.refuses = true;
    budget.give_back(1);
    map.give_back_idle(0x1000);
  }
}

// ---- all at once ----

constexpr Address arena = Address{1} << 32;
constexpr std::uint64_t slot_size = 1 << 16;
constexpr int slots = 6, foreign_slot = 4, registered_slot = 5;
constexpr Range slot(int i) { return {arena + i * slot_size, slot_size}; }
/// What the other library pins: all of its slot, or some of it.
constexpr Range foreign_ranges[] = {slot(foreign_slot), {slot(foreign_slot).start, slot_size / 2},
                                    {slot(foreign_slot).start + 8192, slot_size - 8192}};

/// Look up an address; the region found must be one that can be there.
std::optional<Region> look(PinnedMap const& map, Address ptr, std::uint64_t size) {
  auto const region = map.find(ptr, size);
  if (!region) return region;
  if (ptr < region->start || ptr + size > region->start + region->size) fail("found a region that is elsewhere");
  Address const offset = region->device_ptr - region->start;
  if (offset == registered_offset) {
    expect(region->external, "a registration that is not external");
  } else if (offset == foreign_offset) {
    expect(region->external && region->references > 0, "an external region that nobody holds");
    expect(std::any_of(std::begin(foreign_ranges), std::end(foreign_ranges),
                       [&](Range range) { return range.start == region->start && range.size == region->size; }),
           "an external region of other bounds");
  } else {
    if (offset != locked_offset) fail("a device pointer from nowhere: " + std::to_string(region->device_ptr));
    expect(!region->external && region->references > 0, "a locked region that nobody holds");
  }
  expect(region->piece > 0 && region->piece <= region->size, "a piece larger than the region, or none");
  return region;
}

class Worker {
 public:
  using Devices = std::array<pinning::Locker*, 3>;
  using Books = std::array<Book*, 2>;
  Worker(PinnedMap& map, Devices const& devices, Books const& books, unsigned seed)
      : map_(map), devices_(devices), books_(books), random_(seed) {}

  void step() {
    if (held_.size() < 4 && random_() % 2 == 0) {
      lock();
    } else if (!held_.empty()) {
      unlock(random_() % held_.size());
    }
    for (Held const& lock : held_) {
      if (lock.refused || lock.of_others()) continue;
      if (!look(map_, lock.range.start, lock.range.size)) fail("what this thread has locked is not found");
      expect(map_.holds(lock.hold), "what this thread has locked is not held");
    }
    look(map_, arena + random_() % (slots * slot_size), 1 + random_() % 64);
  }
  /// Whether a lock in pieces was refused; the vendor may then have refused to undo some of them.
  bool refused_in_pieces() const { return refused_in_pieces_; }
  void unlock_all() {
    while (!held_.empty()) unlock(held_.size() - 1);
  }

 private:
  struct Held {
    Range range;
    Hold hold;
    bool refused;  // an unlock of it was refused, perhaps half way

    bool of_others() const { return hold.device_ptr - hold.ptr == foreign_offset; }
  };

  void lock() {
    int const at = static_cast<int>(random_() % (slots + 4));
    Range range = slot(at < slots ? at : foreign_slot);
    if (random_() % 2) range = {range.start + random_() % 16 * 4096, 1 + random_() % 4096};
    if (random_() % 8 == 0) range.start += slot_size / 2;  // across a border: it may overlap other slots
    std::uint64_t const piece = random_() % 4 == 0 ? slot_size / 3 : 0;
    try {
      std::optional<Hold> hold;
      {
        std::lock_guard const guard(interpreter);
        hold = map_.try_lock(range.start, range.size);
        expect(!hold || hold->device_ptr - hold->ptr != foreign_offset, "what others have pinned is counted unasked");
      }
      if (!hold) hold = map_.lock(range.start, range.size, {.locker = devices_[random_() % devices_.size()]}, piece);
      held_.push_back({range, *hold, false});
      auto const region = look(map_, range.start, range.size);
      if (held_.back().of_others()) return;
      if (!region || region->device_ptr_of(range.start) != hold->device_ptr) fail("locked, but found otherwise");
      for (Book* const book : books_) {
        expect(region->external || region->size != region->whole || book->knows(range), "a registrar does not know what is locked");
      }
    } catch (Refused const&) {
      refused_in_pieces_ |= piece != 0;
    } catch (Taken const&) {
      refused_in_pieces_ |= piece != 0;
    } catch (pinning::LockLimit const&) {
    } catch (pinning::PartialOverlap const&) {
    } catch (pinning::StillLocked const&) {
    }
  }
  void unlock(std::size_t i) {
    try {
      bool const keep = random_() % 2 == 0;
      bool done;
      {
        std::lock_guard const guard(interpreter);
        done = map_.try_unlock(held_[i].hold, keep);
      }
      if (!done) done = map_.unlock(held_[i].hold, keep);
      expect(done || held_[i].of_others(), "someone has taken this thread's lock");
      held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(i));
    } catch (Refused const&) {
      held_[i].refused = true;
    }
  }

  PinnedMap& map_;
  Devices const devices_;
  Books const books_;
  std::minstd_rand random_;
  std::vector<Held> held_;
  bool refused_in_pieces_ = false;
};

/// A runtime that maps and unmaps, each buffer perhaps several times.
class Mapper {
 public:
  Mapper(MappedLocks& locks, unsigned seed) : locks_(locks), random_(seed) {}

  void step() {
    if (mapped_.size() < 6 && random_() % 2 == 0) {
      Address const ptr = slot(static_cast<int>(random_() % slots)).start + random_() % 2 * 4096;
      try {
        auto const policy = static_cast<LockMapped>(random_() % 3);
        locks_.lock_mapped(ptr, 1 + random_() % 8192, policy);
      } catch (std::runtime_error const&) {  // Refused, Taken
        return;
      } catch (std::logic_error const&) {  // overlaps
        return;
      }
      mapped_.push_back(ptr);
    } else if (!mapped_.empty()) {
      unmap();
    }
  }
  void unmap_all() {
    while (!mapped_.empty()) unmap();
  }

 private:
  void unmap() {
    if (!throws<Refused>([&] { locks_.unlock_unmapped(mapped_.back()); })) mapped_.pop_back();
  }

  MappedLocks& locks_;
  std::minstd_rand random_;
  std::vector<Address> mapped_;
};

/// Pin and unpin as another library, and sometimes refresh the map; returns how many regions that has removed.
long pin_and_unpin(PinnedMap& map, Vendor& vendor, unsigned seed, std::atomic<bool> const& stop) {
  std::minstd_rand random(seed);
  long gone = 0;
  while (!stop) {
    while (!stop && !vendor.pin(foreign_ranges[random() % std::size(foreign_ranges)])) std::this_thread::yield();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 2000));
    vendor.pin({});
    if (random() % 2) continue;  // and perhaps pin anew what the map takes for the old range
    try {
      for (Region const& region : map.refresh()) {
        ++gone;
        expect(region.device_ptr - region.start == foreign_offset, "refresh has taken out what others have not pinned");
      }
      for (Region const& region : map.regions()) {
        expect(region.references > 0 || region.registered, "a region that nobody holds");
      }
    } catch (Refused const&) {
    }
  }
  return gone;
}

void register_and_unregister(PinnedMap& map, std::atomic<bool> const& stop) {
  Range const range = slot(registered_slot);
  while (!stop) {
    try {
      map.register_pinned(range.start, range.size, range.start + registered_offset);
    } catch (pinning::PartialOverlap const&) {
      continue;
    } catch (pinning::StillLocked const&) {
      continue;
    } catch (Refused const&) {  // an idle region was in the way, and stays
      continue;
    }
    for (bool registered = true; registered;) {
      for (int i = 0; i < 10000; ++i) {  // long enough for others to lock some of it
        auto const found = look(map, range.start, range.size);
        if (!found || found->device_ptr != range.start + registered_offset) fail("a registration is not found");
      }
      try {
        map.unregister(range.start + 1);
        registered = false;
      } catch (pinning::StillLocked const&) {
        if (stop) return;
      }
    }
  }
}

void churn(std::chrono::duration<double> time, unsigned round) {
  Vendor vendor(7, slot(foreign_slot));
  Vendor::Device second(vendor), third(vendor);
  Budget budget;
  if (round % 2) budget.set(3 * slot_size, 2 * slot_size);
  PinnedMap map(vendor, budget);
  MappedLocks mapped(map);
  std::atomic<bool> stop = false;
  std::atomic<long> steps = 0, looks = 0, gone = 0;
  Worker::Books const books{&add(map, std::make_unique<Book>(vendor)), &add(map, std::make_unique<Book>(vendor, slot_size / 5))};
  std::vector<Worker> workers;
  for (unsigned seed = 1; seed <= 3; ++seed) {
    workers.emplace_back(map, Worker::Devices{nullptr, &second, &third}, books, seed + 10 * round);
  }
  Mapper mapper(mapped, 5 + round);
  {
    std::vector<std::jthread> threads;
    for (Worker& worker : workers) {
      threads.emplace_back([&] {
        for (; !stop; ++steps) worker.step();
      });
    }
    threads.emplace_back([&] {
      while (!stop) mapper.step();
    });
    threads.emplace_back([&] { gone = pin_and_unpin(map, vendor, 7 + round, stop); });
    threads.emplace_back([&] { register_and_unregister(map, stop); });
    threads.emplace_back([&] {
      for (std::minstd_rand random(97); !stop; std::this_thread::sleep_for(std::chrono::microseconds(random() % 500))) {
        auto made = std::make_unique<Book>(vendor, 1 + random() % slot_size, random() % 3 == 0 ? static_cast<int>(random() % 8) : -1);
        made->goes = true;
        throws<Refused>([&] {
          Book& book = add(map, std::move(made));
          std::this_thread::yield();
          map.remove_registrar(book);
        });
      }
    });
    threads.emplace_back([&] {
      for (std::minstd_rand random(98); !stop; std::this_thread::sleep_for(std::chrono::microseconds(random() % 500))) {
        if (random() % 2) budget.give_back(random() % slot_size);
        for (Region const& region : map.regions(true)) {
          if (region.idle && random() % 8 == 0) throws<Refused>([&] { map.give_back_idle(region.start); });
        }
      }
    });
    threads.emplace_back([&] {
      for (std::minstd_rand random(99); !stop; ++looks) {
        look(map, arena + random() % (slots * slot_size), 1 + random() % 64);
        if (looks % 1024 == 0) {
          Address end = 0;
          for (Region const& region : map.regions()) {
            expect(region.start >= end, "regions out of order");
            end = region.start + region.size;
          }
        }
      }
    });
    std::this_thread::sleep_for(time);
    stop = true;
  }
  vendor.refuse(0);
  bool refused_in_pieces = false;
  for (Worker& worker : workers) {
    worker.unlock_all();
    refused_in_pieces |= worker.refused_in_pieces();
  }
  mapper.unmap_all();
  throws<pinning::NotLocked>([&] { map.unregister(slot(registered_slot).start); });
  expect(map.size() == 0 && map.regions().empty(), "something stays in the map");
  budget.give_back(Budget::unlimited);
  expect(budget.figures().idle == 0 && (budget.figures().locked == 0 || refused_in_pieces), "a wrong account");
  expect(vendor.held() == 0 || refused_in_pieces, "something stays locked");
  map.clear();
  expect(vendor.held() == 0, "something half unlocked stays locked after clear");
  expect(budget.figures().locked == 0 && budget.figures().external == 0, "a wrong account of nothing");
  expect(vendor.locks == vendor.unlocks, "locks and unlocks of the vendor differ");
  std::printf("%ld steps, %ld looks, %d vendor locks, %ld unpinned by others; ", steps.load(), looks.load(),
              vendor.locks.load(), gone.load());
}

/// A lock whose pages are being populated, which others wait for, use as far as it has come, and at times end.
void paced(std::chrono::duration<double> time, unsigned seed) {
  Vendor vendor(40);
  PinnedMap map(vendor);
  constexpr std::uint64_t unit = 4096, size = 40 * unit + 5;
  long all = 0, ended = 0;
  std::atomic<long> inside = 0;
  std::minstd_rand random(seed);
  auto const met = [&] { return all > 0 && ended > 0 && inside > 0; };
  for (Trial const trial(time); trial.goes_on(met());) {
    pinning::PacedPieces pieces(unit, 16 * unit, std::chrono::nanoseconds(random() % 20000 + 1));
    pieces.bring_in(0);
    bool const ends = random() % 3 == 0;
    std::uint64_t const enough = random() % size;
    std::jthread bringing([&] {
      for (std::uint64_t there = 0; there < size;) pieces.bring_in(there = std::min(size, there + 3 * unit + 7));
    });
    std::jthread using_it([&] {
      pieces.wait(enough, 10);
      std::uint64_t const held = pieces.held();
      if (auto const hold = held == 0 ? std::nullopt : map.try_lock(arena + held - 1, 1)) {
        ++inside;
        auto const region = look(map, arena, held);
        if (!region || region->whole != size || (region->size % unit != 0 && region->size != size)) {
          fail("what is locked so far has no such end");
        }
        for (bool done = map.try_unlock(*hold); !done;) done = !throws<Refused>([&] { map.unlock(*hold); });
      }
      if (ends) pieces.end();
    });
    std::optional<Hold> hold;
    try {
      hold = map.lock(arena, size, {}, pieces);
      ++all;
    } catch (pinning::Ended const&) {
      expect(ends, "ended by nobody");
      ++ended;
    } catch (Refused const&) {
    }
    pieces.finish(hold ? size : 0);
    bringing.join(), using_it.join();
    expect(!hold || pieces.held() == size, "less is locked than all");
    if (hold) throws<Refused>([&] { map.unlock(*hold); });
    while (vendor.held() != 0) throws<Refused>([&] { map.clear(); });  // if the vendor has refused to undo it
    expect(map.size() == 0 && vendor.locks == vendor.unlocks, "something stays");
  }
  expect(met(), "a case that was not met");
}

/// Readers against regions of the shortest life: only the vendor's two calls.
void flicker(std::chrono::duration<double> time) {
  struct Quick : pinning::Locker {
    Address lock(Address ptr, std::uint64_t, LockOptions) override { return ptr + locked_offset; }
    void unlock(Address) override {}
    std::optional<pinning::Pinned> is_pinned(Address) override { return std::nullopt; }
  } quick;
  PinnedMap map(quick);
  std::atomic<bool> stop = false;
  std::atomic<long> found = 0, missed = 0;
  auto const met = [&] { return found > 0 && missed > 0; };
  {
    std::jthread writer([&] {
      for (unsigned i = 0; !stop; ++i) {
        Address const ptr = arena + i % 2 * 100;
        map.lock(ptr, 4096 + i % 3);
        map.unlock(ptr);
      }
    });
    std::jthread reader([&] {
      for (Address offset = 0; !stop; offset = (offset + 1) % 4096) {
        ++(look(map, arena + 100 + offset, 1) ? found : missed);
      }
    });
    for (Trial const trial(time); trial.goes_on(met());) let_others_run();
    stop = true;
  }
  expect(met(), "the reader has not seen the region come and go");
}

/// Listing many regions needs no lock of the map, and lists all that stay while others between them come and go.
void tell_of_many() {
  Vendor vendor;
  PinnedMap map(vendor);
  constexpr Address step = 4096;
  constexpr std::size_t many = 5'000;
  for (std::size_t i = 0; i < many; ++i) map.register_pinned(arena + i * step, 16, arena);
  {
    std::lock_guard const busy(mutex_of(map));
    auto telling = std::async(std::launch::async, [&] { return map.regions().size() + map.overlapping(arena, step).size(); });
    if (telling.wait_for(std::chrono::minutes(2)) != std::future_status::ready) fail("regions waits for the map");
    expect(telling.get() == many + 1, "regions are missing");
  }
  std::atomic<bool> stop = false;
  std::jthread others([&] {
    for (std::minstd_rand random(5); !stop;) {
      Address const ptr = arena + random() % many * step + 16 + random() % 64;
      map.register_pinned(ptr, 1 + random() % 1024, ptr);
      map.unregister(ptr);
    }
  });
  for (int calls = 0; calls < 50; ++calls) {
    std::size_t there = 0;
    Address next = 0;
    for (Region const& region : map.regions()) {
      expect(region.start >= next, "regions that are not disjoint, or not ascending");
      next = region.start + region.size;
      there += region.size == 16 && (region.start - arena) % step == 0;
    }
    expect(there == many, "a region that stays is not told of");
  }
  stop = true;
}

}  // namespace

int main(int argc, char** argv) {
  std::chrono::duration<double> const time(argc > 1 ? std::atof(argv[1]) : 3);
  unsigned const seed = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 0)) : 1;
  the_device_that_has_locked_unlocks();
  memory_of_several_devices_leaves();
  a_region_goes_while_a_registrar_is_told_of_it();
  a_registrar_goes_while_it_is_added();
  a_registrar_is_added_once();
  memory_leaves();
  registered_memory_leaves();
  memory_leaves_while_it_is_locked();
  memory_leaves_and_the_vendor_refuses();
  memory_keeps_leaving(time / 4);
  one_call_for_two_threads();
  as_many_locks_as_can_be_counted();
  the_next_tries_when_the_first_fails();
  lock_while_the_last_unlock_is_under_way(false);
  lock_while_the_last_unlock_is_under_way(true);
  unlock_while_another_unlocks();
  clear_waits_or_leaves();
  the_lock_that_is_being_taken_is_not_taken_away();
  memory_leaves_what_grows();
  clear_ends_what_grows();
  clear_while_others_make_quick_calls();
  tell_of_many();
  a_lock_waits_for_the_room_that_an_unlock_makes();
  a_lock_without_room_is_tried_again();
  room_that_is_made_during_a_refusal_is_used();
  a_lock_takes_the_room_of_its_own_device();
  what_another_thread_gives_back_is_room(time / 4);
  a_region_that_is_found_has_a_lock(time / 4);
  flicker(time / 4);
  paced(time / 4, seed);
  for (unsigned round = 0; round < 4; ++round) churn(time / 8, 4 * seed + round);
  std::puts("all right");
}
