// SPDX-License-Identifier: Apache-2.0
// Memory that is unmapped, moved, discarded and mapped anew under a map, while others lock, look and copy: what is found
// is never what was there before: watch_stress [SECONDS] [SEED]
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

void* map_anonymous(void* at = nullptr) {
  void* const made = mmap(at, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
  if (made == MAP_FAILED) fail("mmap");
  return made;
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

/// What the device would read, where the map says that it can.
std::optional<unsigned char> seen_by_device(PinnedMap& map, Address ptr) {
  auto const hold = map.try_lock(ptr, 1);
  if (!hold) return std::nullopt;
  auto const seen = static_cast<unsigned char>(hold->device_ptr >> shift);
  map.unlock(*hold);
  return seen;
}

/// One way for memory to go.
enum Way { unmapped, replaced, moved, discarded, ways };

/// Where other memory is afterwards: mostly at the same place, unless another thread was quicker.
void* replace(void* at, Way way) {
  switch (way) {
    case unmapped:
      munmap(at, size);
      return map_anonymous();
    case replaced:
      return map_anonymous(at);
    case moved: {  // refused where a part is still watched for a region that was there before
      void* const to = mremap(at, size, 2 * size, MREMAP_MAYMOVE);
      if (to == MAP_FAILED) munmap(at, size);
      void* const made = map_anonymous();
      if (to != MAP_FAILED) munmap(to, 2 * size);
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
    std::atomic<long> all_cycles = 0, all_seen = 0;
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
            // What is moved must be one mapping, so all of it is watched.
            Address const ptr = address(at) + (way == moved ? 0 : random() % 4 * page);
            Hold const hold = map.lock(ptr, way == moved ? size : 1 + random() % (4 * page));
            if (static_cast<unsigned char>(hold.device_ptr >> shift) != byte) fail("a stale region is counted");
            for (int look = 0; look < 3; ++look) {
              auto const found = seen_by_device(map, ptr);
              if (found && *found != byte) fail("the device sees what was there before");
              all_seen += found.has_value();
            }
            if (random() % 4 == 0) expect(map.unlock(hold), "a lock went without its memory");
            at = replace(at, way);
            if (auto const found = seen_by_device(map, ptr)) {
              if (address(at) <= ptr && ptr < address(at) + size) fail("found where other memory is now");
            }
            expect(!map.holds(hold), "a lock is held whose memory has gone");
            ++all_cycles;
          }
          munmap(at, size);
        });
      }
      // Others' memory comes and goes too, and the map changes under the watcher.
      threads.emplace_back([&] {
        void* const own = map_anonymous();
        std::memset(own, 1, size);
        while (!stop) {
          map.unlock(map.lock(address(own), size));
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
  }
  expect(device.locked == 0, "something stays locked");
  expect(seen > 0, "nothing was ever found");
  std::printf("%ld cycles, %ld times seen; ", cycles, seen);
}

/// A thread frees watched memory with a lock of the map's held, so to speak: in the vendor's call.
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
    munmap(at, size);  // the parent must not hear of it, nor the child wait for the parent's thread
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

/// All of a region goes, also where a part of its memory has.
void a_part_goes() {
  Device device;
  PinnedMap map(device, &pinning::process_watcher());
  void* const at = map_anonymous();
  Hold const hold = map.lock(address(at) + 1, size - 2);
  munmap(pointer(address(at)) + 3 * page, page);
  expect(!map.try_lock(address(at) + 1, 1) && !map.holds(hold), "a region stays whose memory has gone in part");
  map.register_pinned(address(at) + 8 * page, page, 0x1000);
  expect(map.find(address(at) + 8 * page).has_value() && device.locked == 0, "what left is in the way");
  munmap(at, 3 * page);  // not the page that another thread may have by now
  munmap(pointer(address(at)) + 4 * page, size - 4 * page);
  expect(!map.try_lock(address(at) + 8 * page, 1), "a registration stays whose memory has gone");
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

/// Listeners are removed while the undoer is at the one before them.
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
  for (Undone* const each : {&last, &second, &first}) watcher.add(*each, true);  // who comes is told first
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
  for (long before = -1; before != first.told;) {  // until it is in the list no more
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
  memory_goes_in_a_vendor_call();
  churn(time, seed);
  told_by_a_thread();
  removed_beside_the_undoer();
  if (argc > 3) child_of_fork();
  std::printf("all right\n");
}
