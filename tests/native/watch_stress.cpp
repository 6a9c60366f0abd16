// SPDX-License-Identifier: Apache-2.0
// Memory that is unmapped, moved, discarded and replaced under a map, while others lock it and look it up: no lookup
// finds a region of memory that was there before: watch_stress [SECONDS] [SEED] [forks]
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pinning/pinned_map.hpp>
#include <random>
#include <thread>
#include <vector>

#include "expect.hpp"

namespace {

using pinning::Address;
using pinning::Hold;
using pinning::PinnedMap;
using pinning::LockOptions;

constexpr std::uint64_t page = 4096, size = 16 * page;
constexpr int shift = 48;

Address address(void* ptr) { return reinterpret_cast<Address>(ptr); }
char* pointer(Address ptr) { return reinterpret_cast<char*>(ptr); }

void* map_anonymous(void* at = nullptr, std::uint64_t bytes = size) {
  void* const made = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (made == MAP_FAILED) fail("mmap");
  return made;
}

/// Move to other addresses, `room` if given; null if the kernel has the memory as several mappings.
void* move(void* at, std::uint64_t bytes, std::uint64_t new_bytes, void* room = nullptr) {
  if (room == nullptr) room = map_anonymous(nullptr, new_bytes);
  void* const to = mremap(at, bytes, new_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, room);
  return to == MAP_FAILED ? nullptr : to;
}

/// The device sees the first byte that was there when the memory was locked, as a GPU sees the old pages.
struct Device : pinning::Locker {
  Address lock(Address ptr, std::uint64_t, LockOptions) override {
    ++locked;
    return ptr | Address(static_cast<unsigned char>(*pointer(ptr))) << shift;
  }
  void unlock(Address) override { --locked; }
  std::optional<pinning::Pinned> is_pinned(Address) override { return std::nullopt; }
  std::atomic<long> locked = 0;
};

/// What the device would read, if the map finds a region there.
std::optional<unsigned char> seen_by_device(PinnedMap& map, Address ptr) {
  auto const hold = map.try_lock(ptr, 1);
  if (!hold) return std::nullopt;
  auto const seen = static_cast<unsigned char>(hold->device_ptr >> shift);
  map.unlock(*hold);
  return seen;
}

/// How memory is taken away.
enum Way { unmapped, replaced, moved, discarded, ways };

/// Refused only while a part is still watched for a region whose memory was discarded, or while the watcher asks how far
/// memory beside this one is watched.
void* move_soon(void* at, std::uint64_t bytes, PinnedMap& map) {
  for (int tries = 0; tries < 1000; ++tries) {
    if (void* const to = move(at, bytes, 2 * size)) return to;
    map.drain_invalidations();
    sched_yield();
  }
  fail("watched memory cannot be moved");
}

/// Take memory away and return the address of other memory: mostly the same, unless another thread was quicker.
void* replace(void* at, Way way, PinnedMap& map) {
  switch (way) {
    case unmapped:
      munmap(at, size);
      return map_anonymous();
    case replaced:
      return map_anonymous(at);
    case moved: {
      void* const to = move_soon(move_soon(at, size, map), 2 * size, map);
      void* const made = map_anonymous();
      munmap(to, 2 * size);
      return made;
    }
    default:
      madvise(at, size, MADV_DONTNEED);
      return at;
  }
}

void churn(std::chrono::duration<double> time, unsigned seed) {
  Device device;
  long cycles = 0, seen = 0;
  {
    PinnedMap map(device, &pinning::process_watcher());
    std::atomic<bool> stop = false;
    std::atomic<long> all_cycles = 0, all_seen = 0, all_lost = 0;
    // What another thread has taken away just before, at the same addresses, may be told of while this is being locked.
    auto const lock_soon = [&](Address ptr, std::uint64_t bytes) {
      for (;;) {
        try {
          return map.lock(ptr, bytes);
        } catch (pinning::InvalidRange const&) {
          ++all_lost;
        }
      }
    };
    {
      std::vector<std::jthread> threads;
      for (unsigned i = 0; i < 3; ++i) {
        threads.emplace_back([&, i] {
          void* at = map_anonymous();
          std::minstd_rand random(seed + i);
          for (unsigned cycle = 1; !stop; ++cycle) {
            auto const byte = static_cast<unsigned char>(1 + (3 * cycle + i) % 255);
            std::memset(at, byte, size);
            auto const way = static_cast<Way>(random() % ways);
            // Memory that is moved must be one mapping, so all of it is watched.
            Address const ptr = address(at) + (way == moved ? 0 : random() % 4 * page);
            Hold const hold = lock_soon(ptr, way == moved ? size : 1 + random() % (4 * page));
            if (static_cast<unsigned char>(hold.device_ptr >> shift) != byte) fail("a stale region is counted");
            for (int look = 0; look < 3; ++look) {
              auto const found = seen_by_device(map, ptr);
              if (found && *found != byte) fail("the device sees what was there before");
              all_seen += found.has_value();
            }
            if (random() % 4 == 0 && !map.unlock(hold)) ++all_lost;
            at = replace(at, way, map);
            if (auto const found = seen_by_device(map, ptr)) {
              if (address(at) <= ptr && ptr < address(at) + size) fail("found where other memory is now");
            }
            expect(!map.holds(hold), "a lock is held whose memory has gone");
            ++all_cycles;
          }
          munmap(at, size);
        });
      }
      // Memory that is not locked is unmapped too, and the map changes while the watcher works.
      threads.emplace_back([&] {
        void* const own = map_anonymous();
        std::memset(own, 1, size);
        while (!stop) {
          map.unlock(lock_soon(address(own), size));
          void* const other = map_anonymous();
          munmap(other, size);
          map.drain_invalidations();
        }
        munmap(own, size);
      });
      for (Trial const trial(time); trial.goes_on(all_seen > 0);) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      }
      stop = true;
    }
    cycles = all_cycles, seen = all_seen;
    // A lock does not wait for ever until no memory goes away anywhere: docs/invalidation.md.
    expect(all_lost <= 1 + cycles / 1000, "locks went without their memory");
  }
  expect(device.locked == 0, "something stays locked");
  expect(seen > 0, "nothing was ever found");
  std::printf("%ld cycles, %ld times seen; ", cycles, seen);
}

/// A thread unmaps watched memory in the vendor's call, which is like doing so with a lock of the map held.
void memory_goes_in_a_vendor_call() {
  static void* victim = nullptr;
  struct Frees : Device {
    Address lock(Address ptr, std::uint64_t bytes, LockOptions options) override {
      if (victim != nullptr) munmap(std::exchange(victim, nullptr), size);
      return Device::lock(ptr, bytes, options);
    }
  } device;
  PinnedMap map(device, &pinning::process_watcher());
  void* const at = map_anonymous();
  void* const other = map_anonymous();
  Hold const hold = map.lock(address(at), size);
  victim = at;
  map.lock(address(other), size);
  expect(!map.holds(hold) && map.find(address(other)), "memory that went in a vendor's call is locked");
  munmap(other, size);
}

void child_of_fork() {
  Device device;
  PinnedMap map(device, &pinning::process_watcher());
  void* const at = map_anonymous();
  Hold const hold = map.lock(address(at), size);
  std::fflush(stdout);
  pid_t const child = fork();
  if (child == 0) {
    munmap(at, size);  // the parent must not be notified, and the child must not wait for the parent's thread
    Device own;
    PinnedMap anew(own, &pinning::process_watcher());
    void* const mine = map_anonymous();
    Hold const held = anew.lock(address(mine), size);
    munmap(mine, size);
    anew.drain_invalidations();
    std::_Exit(anew.holds(held) || own.locked != 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  expect(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a child of fork does not watch for itself");
  expect(map.holds(hold), "the parent has heard of the child's memory");
  munmap(at, size);
  map.drain_invalidations();
  expect(!map.holds(hold) && device.locked == 0, "the parent hears no more");
}

/// A region is removed as a whole, even if only a part of its memory is unmapped.
void a_part_goes() {
  Device device;
  PinnedMap map(device, &pinning::process_watcher());
  void* const at = map_anonymous();
  Hold const hold = map.lock(address(at) + 1, size - 2);
  munmap(pointer(address(at)) + 3 * page, page);
  expect(!map.try_lock(address(at) + 1, 1) && !map.holds(hold), "a region stays whose memory has gone in part");
  map.register_pinned(address(at) + 8 * page, page, 0x1000);
  expect(map.find(address(at) + 8 * page).has_value() && device.locked == 0, "what left is in the way");
  munmap(at, 3 * page);  // not the page that another thread may have mapped by now
  munmap(pointer(address(at)) + 4 * page, size - 4 * page);
  expect(!map.try_lock(address(at) + 8 * page, 1), "a registration stays whose memory has gone");
}

/// While another thread's call takes memory away, which may be any that is watched, no more locks are counted on that.
void memory_is_about_to_go() {
  struct Quiet : pinning::Watcher {
    void add(pinning::InvalidationListener&, bool) noexcept override {}
    void remove(pinning::InvalidationListener&) noexcept override {}
    bool watch(Address, std::uint64_t) noexcept override { return watches; }
    void unwatch(Address, std::uint64_t) noexcept override {}
    void hear_of_calls() noexcept override {}
    void invalidate(Address, std::uint64_t) noexcept override {}
    bool is_quiet() noexcept override { return quiet; }
    void await_quiet(Address, std::uint64_t) noexcept override {}
    Address end_of_added(Address start) noexcept override { return start; }
    std::string problem() override { return {}; }
    bool watches = true, quiet = true;
  } watcher;
  Device device;
  PinnedMap map(device, &watcher);
  std::vector<char> memory(2 * size);
  Address const watched = address(memory.data()), other = watched + size;
  map.lock(watched, size);
  watcher.watches = false;
  map.lock(other, size);
  expect(map.try_lock(watched, 1) && map.try_lock(other, 1), "a lock is not counted");
  watcher.quiet = false;
  expect(!map.try_lock(watched, 1), "a lock is counted on memory that is about to go");
  expect(map.try_lock(other, 1).has_value(), "a lock of memory that is not watched is not counted");
}

/// A lock on a page shared with an invalidated region is a separate lock of the vendor.
void gone_beside_what_is_locked() {
  Device device;
  PinnedMap map(device, &pinning::process_watcher());
  void* const at = map_anonymous();
  Hold const gone = map.lock(address(at) + 100, page);
  munmap(at, size);
  map_anonymous(at);
  Hold const hold = map.lock(address(at) + page + 1000, 10);
  expect(device.locked == 1 && map.holds(hold) && !map.holds(gone), "what has gone is locked beside what is there");
  map.unlock(hold);
  munmap(at, size);
}

void told_by_a_thread() {
  static Device device;
  auto* const map = new PinnedMap(device, &pinning::process_watcher(), true);  // never destroyed
  void* const at = map_anonymous();
  map->lock(address(at), size);
  munmap(at, size);
  auto const deadline = std::chrono::steady_clock::now() + std::chrono::minutes(2);
  while (device.locked != 0 && std::chrono::steady_clock::now() < deadline) std::this_thread::yield();
  expect(device.locked == 0, "no thread tells the vendor");
}

/// Watched memory moves to where other watched memory was, which is unwatched only afterwards. It is watched until the
/// listener has drained.
void moved_to_where_other_memory_was() {
  struct Heard : pinning::InvalidationListener {
    std::optional<bool> try_invalidate(Address, std::uint64_t) noexcept override { return false; }
    std::optional<bool> try_move(Address ptr, std::uint64_t, Address) noexcept override {
      if (ptr == from) ++moves;
      return true;
    }
    bool may_have(Address, std::uint64_t) const noexcept override { return true; }
    void drain_invalidations() override {
      while (relies) std::this_thread::yield();
    }
    std::atomic<Address> from = 0;
    std::atomic<long> moves = 0;
    std::atomic<bool> relies = true;
  } listener;
  pinning::Watcher& watcher = pinning::process_watcher();
  watcher.add(listener, true);
  auto const moves_from = [&](void* at) {
    listener.from = address(at);
    long const before = listener.moves;
    void* const to = move(at, 2 * size, 2 * size);
    if (to == nullptr) fail("what is watched has become several mappings");
    while (!watcher.is_quiet()) std::this_thread::yield();
    expect(listener.moves == before + 1, "a move is missed");
    return to;
  };
  for (Way const way : {unmapped, replaced, moved}) {
    for (std::uint64_t const offset : {0, 3}) {  // of the watched range, in pages
      void* const place = map_anonymous(nullptr, 2 * size);
      void* const other = map_anonymous(nullptr, 2 * size);
      Address const old = address(place) + offset * page;
      expect(watcher.watch(old, size) && watcher.watch(old, page), "memory is not watched");
      expect(watcher.watch(address(other), 2 * size), "memory is not watched");
      if (way == unmapped) munmap(place, 2 * size);
      if (way == replaced) map_anonymous(place, 2 * size);
      if (way == moved) munmap(move(pointer(old), size, size), size);
      void* to = move(other, 2 * size, 2 * size, place);
      watcher.unwatch(old, page);
      watcher.unwatch(old, size);
      watcher.unwatch(address(other), 2 * size);
      to = moves_from(moves_from(to));
      munmap(to, 2 * size);
    }
  }
  listener.relies = false;
  void* moved_on = map_anonymous();
  expect(watcher.watch(address(moved_on), size), "memory is not watched");
  Address const first = address(moved_on);
  moved_on = move(moved_on, size, 2 * size);
  watcher.unwatch(first, size);
  for (long before = -1; before != listener.moves;) {  // until the undoer has ended the watch
    before = listener.moves;
    listener.from = address(moved_on);
    if ((moved_on = move(moved_on, 2 * size, 2 * size)) == nullptr) fail("what has moved is several mappings");
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  munmap(moved_on, 2 * size);
  // After `unwatch`, no part that remains of a range is watched.
  void* const at = map_anonymous();
  watcher.watch(address(at), size);
  munmap(pointer(address(at)) + 3 * page, 2 * page);
  munmap(pointer(address(at)) + 8 * page, page);
  watcher.unwatch(address(at), size);
  expect(watcher.watch(address(at) + page, page), "memory is not watched");
  watcher.unwatch(address(at) + page, page);
  listener.from = address(at) + 5 * page;
  long const before = listener.moves;
  munmap(move(pointer(address(at)) + 5 * page, 3 * page, 3 * page), 3 * page);
  munmap(at, 3 * page);
  munmap(pointer(address(at)) + 9 * page, size - 9 * page);
  while (!watcher.is_quiet()) std::this_thread::yield();
  expect(listener.moves == before, "a move of memory that is not watched is told");
  watcher.remove(listener);
}

/// Listeners are removed while the undoer is calling the one before them.
void removed_beside_the_undoer() {
  struct Undone : pinning::InvalidationListener {
    std::optional<bool> try_invalidate(Address, std::uint64_t) noexcept override {
      ++told;
      return true;
    }
    bool may_have(Address, std::uint64_t) const noexcept override { return true; }
    void drain_invalidations() override {
      expect(!removed, "a tenant is called once it has been removed");
      ++begun;
      while (stopped) std::this_thread::yield();
      ++undone;
    }
    std::atomic<long> told = 0, begun = 0, undone = 0;
    std::atomic<bool> stopped = false, removed = false;
  } last, second, first;
  pinning::Watcher& watcher = pinning::process_watcher();
  for (Undone* const each : {&last, &second, &first}) watcher.add(*each, true);  // the last one added is called first
  auto const memory_goes = [&] {
    void* const at = map_anonymous();
    expect(watcher.watch(address(at), size), "memory is not watched");
    munmap(at, size);
    watcher.unwatch(address(at), size);
  };
  first.stopped = true;
  memory_goes();
  while (first.begun == 0) std::this_thread::yield();
  std::jthread const remover([&] { watcher.remove(first); });
  for (long before = -1; before != first.told;) {  // until the list no longer has it
    before = first.told;
    memory_goes();
  }
  watcher.remove(second);
  second.removed = true;
  first.stopped = false;
  while (last.undone == 0) std::this_thread::yield();
  watcher.remove(last);
}

}  // namespace

int main(int argc, char** argv) {
  std::chrono::duration<double> const time(argc > 1 ? std::atof(argv[1]) : 3);
  unsigned const seed = argc > 2 ? static_cast<unsigned>(std::strtoul(argv[2], nullptr, 0)) : 1;
  if (auto const why = pinning::process_watcher().problem(); !why.empty()) {
    std::printf("SKIPPED: %s\n", why.c_str());
    return 0;
  }
  a_part_goes();
  memory_is_about_to_go();
  gone_beside_what_is_locked();
  moved_to_where_other_memory_was();
  memory_goes_in_a_vendor_call();
  churn(time, seed);
  told_by_a_thread();
  removed_beside_the_undoer();
  if (argc > 3) child_of_fork();
  std::printf("all right\n");
}
