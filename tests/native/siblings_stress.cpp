// SPDX-License-Identifier: Apache-2.0
// Maps of several devices of one vendor, whose locks are for all of them: threads lock, unlock and keep idle at random,
// also in pieces, within a budget; maps and registrars are added and removed; vendor and registrars refuse and check
// their calls. Before that, cases with one right outcome: siblings_stress [SECONDS] [SEED]
#include <array>
#include <chrono>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <pinning/pinned_map.hpp>
#include <random>
#include <thread>

#include "expect.hpp"

namespace {

using pinning::Address;
using pinning::Budget;
using pinning::Coherence;
using pinning::Hold;
using pinning::PinnedMap;
using pinning::Siblings;
using pinning::LockOptions;

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// What the vendor has locked, for all devices; a wrong call ends the program.
struct Vendor {
  struct Range {
    std::uint64_t size;
    void const* by;
  };

  void lock(Address ptr, std::uint64_t size, void const* by) {
    std::lock_guard const guard(mutex);
    if (refuses()) throw Refused("lock");
    auto const next = ranges.lower_bound(ptr);
    expect(next == ranges.end() || next->first >= ptr + size, "the vendor was asked to lock what is locked");
    expect(next == ranges.begin() || std::prev(next)->first + std::prev(next)->second.size <= ptr,
           "the vendor was asked to lock what is locked");
    ranges[ptr] = {size, by};
    ++locks;
  }
  void unlock(Address ptr, void const* by) {
    std::lock_guard const guard(mutex);
    auto const found = ranges.find(ptr);
    expect(found != ranges.end(), "the vendor was asked to unlock what it has not locked");
    expect(found->second.by == by, "another device was asked to unlock than has locked");
    if (refuses()) throw Refused("unlock");
    ranges.erase(found);
  }
  std::optional<std::pair<Address, std::uint64_t>> around(Address ptr) {
    std::lock_guard const guard(mutex);
    auto next = ranges.upper_bound(ptr);
    if (next == ranges.begin()) return std::nullopt;
    --next;
    if (ptr - next->first >= next->second.size) return std::nullopt;
    return std::pair(next->first, next->second.size);
  }
  bool has(Address ptr, std::uint64_t size) {
    for (Address at = ptr; at < ptr + size;) {
      auto const found = around(at);
      if (!found) return false;
      at = found->first + found->second;
    }
    return true;
  }
  bool refuses() { return refuse_one_in != 0 && random() % refuse_one_in == 0; }

  std::mutex mutex;
  std::map<Address, Range> ranges;
  std::mt19937 random{1};
  unsigned refuse_one_in = 0;
  int locks = 0;
  Siblings siblings;
};

class Device : public pinning::Locker {
 public:
  Device(Vendor& vendor, unsigned index) : offset(Address{index + 1} << 44), vendor_(vendor) {}

  Address lock(Address ptr, std::uint64_t size, LockOptions) override {
    wait(ptr);
    vendor_.lock(ptr, size, this);
    return ptr + offset;
  }
  void unlock(Address ptr) override {
    wait(ptr);
    vendor_.unlock(ptr, this);
  }
  std::optional<pinning::Pinned> is_pinned(Address ptr) override {
    if (blind) return std::nullopt;
    auto const found = vendor_.around(ptr);
    if (!found) return std::nullopt;
    return pinning::Pinned{found->first, found->second, found->first + offset};
  }
  pinning::CoherenceSupport coherence() const noexcept override { return {.fine = true, .coarse = true}; }
  Siblings* siblings() noexcept override { return &vendor_.siblings; }

  /// Make calls at `ptr` wait until `go_on`.
  void stop_at(Address ptr) {
    arrived = false;
    stopped_at = ptr;
  }
  void wait_for_caller() {
    while (!arrived) std::this_thread::yield();
  }
  void go_on() { stopped_at = 0; }

  Address const offset;
  std::atomic<bool> blind = false;

 private:
  void wait(Address ptr) {
    if (stopped_at != ptr) return std::this_thread::yield();
    arrived = true;
    while (stopped_at == ptr) std::this_thread::yield();
  }

  Vendor& vendor_;
  std::atomic<Address> stopped_at = 0;
  std::atomic<bool> arrived = false;
};

/// A registrar that accepts ranges that the vendor has locked, and no others.
class Book : public pinning::Registrar {
 public:
  explicit Book(Vendor& vendor, std::uint64_t piece = 0, int refuse_after = -1)
      : refuse_after(refuse_after), goes(refuse_after >= 0), vendor_(vendor), piece_(piece) {}
  ~Book() override { expect(known_.empty(), "a registrar goes when it knows nothing"); }

  std::uint64_t piece() const noexcept override { return piece_; }
  void* add(Address ptr, std::uint64_t size) override {
    expect(vendor_.has(ptr, size), "what it is told of is locked");
    expect(piece_ == 0 || size <= piece_, "it is told in the pieces that it wants");
    std::lock_guard const guard(mutex_);
    if (refuse_after >= 0 && refuse_after-- == 0) throw Refused("add");
    auto const next = known_.lower_bound(ptr);
    expect(next == known_.end() || next->first >= ptr + size, "it is told once");
    known_[ptr] = size;
    ++told;
    return reinterpret_cast<void*>(ptr);
  }
  void remove(void* handle) override {
    auto const ptr = reinterpret_cast<Address>(handle);
    std::lock_guard const guard(mutex_);
    auto const found = known_.find(ptr);
    expect(found != known_.end(), "it forgets what it knows");
    expect(vendor_.has(ptr, found->second) || goes, "and before the vendor unlocks it");
    known_.erase(found);
  }
  bool knows(Address ptr, std::uint64_t size) {
    std::lock_guard const guard(mutex_);
    for (Address at = ptr; at < ptr + size;) {
      auto next = known_.upper_bound(at);
      if (next == known_.begin()) return false;
      --next;
      if (at - next->first >= next->second) return false;
      at = next->first + next->second;
    }
    return true;
  }

  int refuse_after;
  std::atomic<int> told = 0;
  std::atomic<bool> goes;  // being removed, also by a refusal: that does not wait for threads that unlock

 private:
  Vendor& vendor_;
  std::uint64_t const piece_;
  std::mutex mutex_;
  std::map<Address, std::uint64_t> known_;
};

struct Scene {
  Vendor vendor;
  Device gpu0{vendor, 0}, gpu1{vendor, 1}, gpu2{vendor, 2};
  Budget budget;
  PinnedMap a{gpu0, budget}, b{gpu1, budget}, c{gpu2, budget};
};

template <class Error, class Body>
bool throws(Body&& body) {
  try {
    body();
  } catch (Error const&) {
    return true;
  }
  return false;
}

void inside_and_across() {
  Scene scene;
  scene.a.lock(0x1000, 100);
  Hold const inside = scene.b.lock(0x1000 + 30, 10);
  expect(inside.device_ptr == 0x1000 + 30 + scene.gpu1.offset, "the address is that of the range");
  auto const region = scene.b.find(0x1000);
  expect(region && region->size == 100 && region->references == 1, "the region is as it is registered");
  expect(throws<pinning::PartialOverlap>([&] { scene.c.lock(0x1000 + 50, 100); }), "an overlap is refused");
  expect(throws<pinning::PartialOverlap>([&] { scene.c.lock(0x1000 - 50, 300); }), "and one around it");
  expect(!scene.c.find(0x1000) && scene.c.size() == 0 && scene.vendor.locks == 1, "nothing has changed");
  scene.a.unlock(0x1000);
  expect(throws<pinning::NotLocked>([&] { scene.a.unlock(0x1000); }), "there is no other lock to take");
  scene.c.lock(0x1000 + 90, 10);  // only b still holds it
  scene.b.unlock(inside);
  expect(scene.vendor.has(0x1000, 100), "c has it still");
  scene.c.unlock(0x1000);
  expect(scene.vendor.ranges.empty(), "nobody has it");
}

void within_the_budget() {
  Scene scene;
  scene.budget.set(100, 0);
  scene.a.lock(0x1000, 100);
  scene.b.lock(0x1000, 100);
  expect(throws<pinning::LockLimit>([&] { scene.b.lock(0x2000, 1); }), "there is no room for more");
  scene.a.unlock(0x1000);
  expect(throws<pinning::LockLimit>([&] { scene.a.lock(0x2000, 1); }), "it is registered still");
  scene.b.unlock(0x1000);
  scene.a.lock(0x2000, 100);
}

void idle_moves_over() {
  Scene scene;
  scene.budget.set(200, 200);
  for (int i = 0; i < 3; ++i) {
    scene.a.unlock(scene.a.lock(0x1000, 100), true);
    expect(scene.a.has_idle() && scene.budget.figures().idle == 100, "it is kept idle");
    Hold const hold = scene.b.lock(0x1000 + 10, 10);
    expect(!scene.a.has_idle() && scene.budget.figures().idle == 0, "it is locked by another map now");
    expect(scene.budget.figures().locked == 100 && scene.vendor.locks == 1, "it counts once");
    scene.b.unlock(hold, true);
    expect(scene.b.has_idle() && scene.budget.figures().idle == 100, "and idle there");
  }
  Hold const both = scene.a.lock(0x1000, 100);
  Hold const other = scene.c.lock(0x1000, 100);
  scene.a.unlock(both, true);
  expect(!scene.a.has_idle() && scene.budget.figures().idle == 0, "what a sibling has locked is not idle");
  scene.c.unlock(other, true);
  expect(scene.c.has_idle() && scene.vendor.locks == 1, "the last one keeps it");
  scene.b.lock(0x1000 + 50, 100);  // overlaps the idle region, which gives way
  expect(!scene.c.has_idle() && scene.vendor.ranges.size() == 1 && scene.vendor.locks == 2, "it has given way");
}

void one_waits_for_the_other() {
  Scene scene;
  scene.gpu0.stop_at(0x1000);
  std::thread first([&] { scene.a.lock(0x1000, 100); });
  scene.gpu0.wait_for_caller();
  std::atomic<bool> locked = false;
  std::thread second([&] {
    scene.b.lock(0x1000 + 10, 10);
    locked = true;
  });
  scene.c.lock(0x2000, 10);  // a lock elsewhere does not wait
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  expect(!locked, "it waits for the vendor");
  scene.gpu0.go_on();
  first.join();
  second.join();
  expect(scene.vendor.locks == 2, "and counts on what has come of it");

  scene.b.unlock(0x1000);
  scene.gpu0.stop_at(0x1000);
  std::thread last([&] { scene.a.unlock(0x1000); });
  scene.gpu0.wait_for_caller();
  std::thread again([&] { scene.b.lock(0x1000, 50); });
  scene.gpu0.go_on();
  last.join();
  again.join();
  expect(scene.vendor.locks == 3 && scene.vendor.ranges[0x1000].size == 50, "after the unlock it is locked anew");
}

void refusals() {
  Scene scene;
  Hold const first = scene.a.lock(0x1000, 100);
  scene.gpu1.blind = true;
  expect(throws<pinning::AlreadyPinned>([&] { scene.b.lock(0x1000, 100); }), "a driver that does not know of it");
  expect(!scene.b.find(0x1000) && scene.a.holds(first) && scene.vendor.has(0x1000, 100), "nothing has changed");
  scene.gpu1.blind = false;
  Hold const second = scene.b.lock(0x1000, 100);
  scene.a.unlock(first);
  scene.vendor.refuse_one_in = 1;
  expect(throws<Refused>([&] { scene.b.unlock(second); }), "the last unlock fails");
  expect(scene.b.holds(second) && scene.b.find(0x1000), "it is as before");
  scene.vendor.refuse_one_in = 0;
  scene.c.lock(0x1000, 10);
  expect(scene.b.unlock(second) && scene.vendor.has(0x1000, 100), "and can still be shared");
  scene.c.unlock(0x1000);
  expect(scene.vendor.ranges.empty(), "it has gone");

  scene.a.lock(0x3000, 100, {.coherence = Coherence::coarse});
  expect(throws<pinning::StillLocked>([&] { scene.b.lock(0x3000, 10, {.coherence = Coherence::fine}); }),
         "what is coarse there is coarse here");
  scene.b.lock(0x3000, 10, {.coherence = Coherence::coarse});
  scene.budget.set(Budget::unlimited, 1000);
  scene.a.unlock(scene.a.lock(0x4000, 100, {.coherence = Coherence::coarse}), true);
  scene.b.lock(0x4000, 10, {.coherence = Coherence::fine});
  expect(!scene.a.has_idle() && scene.vendor.ranges[0x4000].size == 10, "what is idle and coarse gives way");
}

void memory_leaves() {
  Scene scene;
  Hold const first = scene.a.lock(0x10000, 0x1000), second = scene.b.lock(0x10000, 0x1000);
  for (PinnedMap* map : {&scene.a, &scene.b}) map->invalidate(0x10000, 0x1000);
  expect(!scene.a.holds(first) && !scene.b.holds(second), "no lock is held");
  scene.c.lock(0x10000, 0x1000);  // the memory that is there now
  expect(scene.vendor.locks == 2 && scene.budget.figures().locked == 0x1000, "the vendor has forgotten what was there");
}

Book& add(PinnedMap& map, Vendor& vendor, std::uint64_t piece = 0, int refuse_after = -1) {
  auto made = std::make_unique<Book>(vendor, piece, refuse_after);
  Book& book = *made;
  map.add_registrar(std::move(made));
  return book;
}

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

void a_region_goes_while_a_registrar_is_told_of_it() {
  Scene scene;
  int known = 0;
  scene.a.lock(0x1000, 100, {}, 40);
  scene.a.add_registrar(std::make_unique<Clearing>(scene.a, known));
  expect(known == 0 && scene.vendor.ranges.empty(), "it knows nothing of what has gone");
  Book& book = add(scene.b, scene.vendor);
  scene.b.lock(0x1000, 50);
  scene.b.unlock(0x1000);
  expect(book.told == 1 && scene.vendor.ranges.empty(), "nor does the next region");
}

/// A registrar is removed while regions locked earlier are added to it: no more are added, and the first is removed.
void a_registrar_goes_while_it_is_added() {
  Scene scene;
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
  scene.a.lock(0x1000, 100);
  scene.a.lock(0x2000, 100);
  std::jthread const adder([&] { scene.a.add_registrar(std::make_unique<Slow>()); });
  while (told == 0) std::this_thread::yield();
  pinning::Registrar* const registrar = scene.a.find_registrar([](pinning::Registrar&) { return true; });
  std::atomic<bool> removed = false;
  std::jthread const remover([&] {
    scene.a.remove_registrar(*registrar);
    removed = true;
  });
  while (scene.a.find_registrar([](pinning::Registrar&) { return true; }) != nullptr) std::this_thread::yield();
  expect(!removed, "it is not removed while it is told");
  goes_on = true;
  while (!removed) std::this_thread::yield();
  expect(told == 1 && known == 0, "it is told of no more, and knows nothing");
  scene.a.clear();
}

void churn(std::chrono::duration<double> time, unsigned seed) {
  constexpr Address base = 0x1000;
  constexpr std::uint64_t space = 64;
  Scene scene;
  scene.vendor.refuse_one_in = seed % 2 == 0 ? 60 : 0;
  scene.budget.set(96, seed % 3 == 0 ? 0 : 48);
  std::array<PinnedMap*, 3> const maps{&scene.a, &scene.b, &scene.c};
  std::array<Address, 3> const offsets{scene.gpu0.offset, scene.gpu1.offset, scene.gpu2.offset};
  std::array<Book*, 3> const books{&add(scene.a, scene.vendor, seed % 5), &add(scene.b, scene.vendor),
                                   &add(scene.c, scene.vendor, 3)};
  auto const end = std::chrono::steady_clock::now() + time;
  auto const work = [&](unsigned number) {
    std::mt19937 random(16 * seed + number);
    std::deque<std::tuple<unsigned, Hold, std::uint64_t>> held;
    auto const give_up = [&](std::size_t which) {
      auto const [map, hold, size] = held[which];
      expect(scene.vendor.has(hold.ptr, size), "what is locked is registered");
      for (;;) {
        try {
          expect(maps[map]->unlock(hold, random() % 2), "a lock is held until it is given up");
          break;
        } catch (Refused const&) {
        }
      }
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    };
    while (std::chrono::steady_clock::now() < end) {
      if (!held.empty() && random() % 5 < 2) give_up(random() % held.size());
      if (held.size() > 4) continue;
      Address const ptr = base + random() % space;
      std::uint64_t const size = 1 + random() % 16;
      unsigned const which = random() % 3;
      try {
        if (random() % 16 == 0 && scene.vendor.refuse_one_in == 0) {  // otherwise nothing would retry its unlock
          PinnedMap brief(which == 0 ? scene.gpu0 : scene.gpu1, scene.budget);
          brief.lock(ptr, size);
          continue;
        }
        Hold const hold = maps[which]->lock(ptr, size, {}, random() % 3 == 0 ? 5 : 0);
        held.emplace_back(which, hold, size);
        expect(hold.device_ptr == ptr + offsets[which], "the address is the device's own");
        auto const region = maps[which]->find(ptr, size);
        expect(region.has_value(), "what is locked is found");
        expect(region->size != region->whole || books[which]->knows(ptr, size), "registrars know what is locked");
      } catch (pinning::PartialOverlap const&) {
      } catch (pinning::StillLocked const&) {
      } catch (pinning::LockLimit const&) {
      } catch (Refused const&) {
      }
    }
    while (!held.empty()) give_up(0);
  };
  std::array<std::thread, 4> threads;
  for (unsigned i = 0; i < threads.size(); ++i) threads[i] = std::thread(work, i);
  for (std::mt19937 random(seed); std::chrono::steady_clock::now() < end;) {
    PinnedMap& map = *maps[random() % 3];
    try {
      Book& book = add(map, scene.vendor, 1 + random() % 20, random() % 3 == 0 ? random() % 8 : -1);
      book.goes = true;
      std::this_thread::yield();
      map.remove_registrar(book);
    } catch (Refused const&) {
    }
  }
  for (auto& thread : threads) thread.join();
  scene.vendor.refuse_one_in = 0;
  for (PinnedMap* map : maps) map->clear();
  expect(scene.vendor.ranges.empty(), "everything was given back");
  auto const figures = scene.budget.figures();
  expect(figures.locked == 0 && figures.idle == 0, "and is counted no more");
}

}  // namespace

int main(int argc, char** argv) {
  std::chrono::duration<double> const time(argc > 1 ? std::atof(argv[1]) : 3);
  unsigned const seed = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 0)) : 1;
  inside_and_across();
  within_the_budget();
  idle_moves_over();
  one_waits_for_the_other();
  refusals();
  memory_leaves();
  a_region_goes_while_a_registrar_is_told_of_it();
  a_registrar_goes_while_it_is_added();
  for (unsigned round = 0; round < 6; ++round) churn(time / 6, 6 * seed + round);
  std::puts("all right");
}
