// SPDX-License-Identifier: Apache-2.0
// The map of several devices of one vendor, whose locks are for all of them: threads lock by any of them, unlock and keep
// idle at random, also in pieces, within a budget; registrars are added and removed; vendor and registrars refuse and
// check their calls. Before that, cases with one right outcome: domain_stress [SECONDS] [SEED]
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
using pinning::Hold;
using pinning::PinnedMap;
using pinning::LockOptions;

struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Whether disjoint ranges, by their starts, have all of these bytes.
template <class Ranges, class SizeOf>
bool covers(Ranges const& ranges, Address ptr, std::uint64_t size, SizeOf const& size_of) {
  for (Address at = ptr; at < ptr + size;) {
    auto next = ranges.upper_bound(at);
    if (next == ranges.begin()) return false;
    --next;
    if (at - next->first >= size_of(next->second)) return false;
    at = next->first + size_of(next->second);
  }
  return true;
}

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
  bool has(Address ptr, std::uint64_t size) {
    std::lock_guard const guard(mutex);
    return covers(ranges, ptr, size, [](Range const& range) { return range.size; });
  }
  bool refuses() { return refuse_one_in != 0 && random() % refuse_one_in == 0; }

  std::mutex mutex;
  std::map<Address, Range> ranges;
  std::mt19937 random{1};
  unsigned refuse_one_in = 0;
  int locks = 0;
};

constexpr Address offset = Address{1} << 44;

class Device : public pinning::Locker {
 public:
  explicit Device(Vendor& vendor) : vendor_(vendor) {}

  Address lock(Address ptr, std::uint64_t size, LockOptions) override {
    std::this_thread::yield();
    vendor_.lock(ptr, size, this);
    return ptr + offset;
  }
  void unlock(Address ptr) override {
    std::this_thread::yield();
    vendor_.unlock(ptr, this);
  }
  std::optional<pinning::Pinned> is_pinned(Address) override { return std::nullopt; }

 private:
  Vendor& vendor_;
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
    return covers(known_, ptr, size, [](std::uint64_t bytes) { return bytes; });
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
  std::array<Device, 3> devices{Device(vendor), Device(vendor), Device(vendor)};
  Budget budget;
  PinnedMap map{devices[0], budget};

  Hold lock(unsigned device, Address ptr, std::uint64_t size, std::uint64_t piece = 0) {
    return map.lock(ptr, size, {.locker = &devices[device]}, piece);
  }
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

/// In one call or in pieces, from the start or after it was idle, given back or unlocked at the second attempt.
void who_has_locked_unlocks() {
  for (unsigned const device : {0u, 1u}) {
    for (std::uint64_t const piece : {0, 40}) {
      Scene scene;
      scene.budget.set(200, 200);
      Hold const hold = scene.lock(device, 0x1000, 100, piece);
      Hold const inside = scene.lock(2, 0x1000 + 30, 10);
      expect(inside.device_ptr == 0x1000 + 30 + offset, "the address is that of the range");
      scene.map.unlock(hold, true);
      scene.map.unlock(inside, true);
      expect(scene.map.has_idle(), "it is kept");
      scene.map.unlock(scene.lock(2, 0x1000, 100, piece), true);
      expect(scene.vendor.locks == (piece == 0 ? 1 : 3), "another device needs no other lock");
      scene.lock(2, 0x1000 + 50, 100, piece);  // the idle region gives way
      expect(scene.vendor.has(0x1000 + 50, 100) && !scene.vendor.has(0x1000, 1), "it has given way");
      scene.vendor.refuse_one_in = 1;
      expect(throws<Refused>([&] { scene.map.unlock(0x1000 + 50); }), "the vendor refuses");
      scene.vendor.refuse_one_in = 0;
      scene.map.unlock(0x1000 + 50);
      expect(scene.vendor.ranges.empty() && scene.map.count() == 0, "it has gone");
    }
  }
}

void memory_leaves() {
  Scene scene;
  Hold const first = scene.lock(0, 0x10000, 0x1000), second = scene.lock(1, 0x20000, 0x1000);
  scene.map.invalidate(0x10000, 0x11000);
  expect(!scene.map.holds(first) && !scene.map.holds(second), "no lock is held");
  for (unsigned const device : {1u, 0u}) scene.lock(device, 0x20000 - 0x10000 * device, 0x1000);  // what is there now
  expect(scene.vendor.locks == 4 && scene.budget.figures().locked == 0x2000, "the vendor has forgotten what was there");
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
  scene.lock(0, 0x1000, 100, 40);
  scene.map.add_registrar(std::make_unique<Clearing>(scene.map, known));
  expect(known == 0 && scene.vendor.ranges.empty(), "it knows nothing of what has gone");
  expect(throws<pinning::NotLocked>([&] { scene.map.unlock(0x1000); }), "nor is it locked");
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
  scene.lock(0, 0x1000, 100);
  scene.lock(1, 0x2000, 100);
  std::jthread const adder([&] { scene.map.add_registrar(std::make_unique<Slow>()); });
  while (told == 0) std::this_thread::yield();
  pinning::Registrar* const registrar = scene.map.find_registrar([](pinning::Registrar&) { return true; });
  std::atomic<bool> removed = false;
  std::jthread const remover([&] {
    scene.map.remove_registrar(*registrar);
    removed = true;
  });
  while (scene.map.find_registrar([](pinning::Registrar&) { return true; }) != nullptr) std::this_thread::yield();
  expect(!removed, "it is not removed while it is told");
  goes_on = true;
  while (!removed) std::this_thread::yield();
  expect(told == 1 && known == 0, "it is told of no more, and knows nothing");
  scene.map.clear();
}

void churn(std::chrono::duration<double> time, unsigned seed) {
  constexpr Address base = 0x1000;
  constexpr std::uint64_t space = 64;
  Scene scene;
  scene.vendor.refuse_one_in = seed % 2 == 0 ? 60 : 0;
  scene.budget.set(96, seed % 3 == 0 ? 0 : 48);
  PinnedMap& map = scene.map;
  std::array<Book*, 2> const books{&add(map, scene.vendor, seed % 5), &add(map, scene.vendor, 3)};
  auto const end = std::chrono::steady_clock::now() + time;
  auto const work = [&](unsigned number) {
    std::mt19937 random(16 * seed + number);
    std::deque<std::pair<Hold, std::uint64_t>> held;
    auto const give_up = [&](std::size_t which) {
      auto const [hold, size] = held[which];
      expect(scene.vendor.has(hold.ptr, size), "what is locked is registered");
      for (;;) {
        try {
          expect(map.unlock(hold, random() % 2), "a lock is held until it is given up");
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
      try {
        Hold const hold = scene.lock(random() % 3, ptr, size, random() % 3 == 0 ? 5 : 0);
        held.emplace_back(hold, size);
        expect(hold.device_ptr == ptr + offset, "the address is that of the range");
        auto const region = map.find(ptr, size);
        expect(region.has_value(), "what is locked is found");
        for (Book* const book : books) {
          expect(region->size != region->whole || book->knows(ptr, size), "registrars know what is locked");
        }
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
  map.clear();
  expect(scene.vendor.ranges.empty(), "everything was given back");
  auto const figures = scene.budget.figures();
  expect(figures.locked == 0 && figures.idle == 0, "and is counted no more");
}

}  // namespace

int main(int argc, char** argv) {
  std::chrono::duration<double> const time(argc > 1 ? std::atof(argv[1]) : 3);
  unsigned const seed = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 0)) : 1;
  who_has_locked_unlocks();
  memory_leaves();
  a_region_goes_while_a_registrar_is_told_of_it();
  a_registrar_goes_while_it_is_added();
  for (unsigned round = 0; round < 6; ++round) churn(time / 6, 6 * seed + round);
  std::puts("all right");
}
