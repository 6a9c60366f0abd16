// SPDX-License-Identifier: Apache-2.0
// Threads map, transfer, unmap, free and lock parts of one memory at random, within a small budget, and some of it is
// removed unseen: no transfer ever crosses a lock, and in the end nothing is locked. Compiled with the tool's own sources
// except its hooks, and a map of a device that keeps its own list.
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <pinning/process.hpp>

#include "inside.hpp"
#include "openmp/tool.hpp"

using namespace pinning::tool;
using namespace pinning::tool::openmp;

bool pinning::tool::frees_are_seen() noexcept { return true; }

namespace {

constexpr std::size_t page = 4096, pages = 64;
char* memory;

// Locked ranges by start, as the vendor knows them.
std::mutex mutex;
std::map<Address, std::size_t> locked;
std::atomic<bool> keeps = true;     // the vendor refuses to unlock now and then
std::atomic<bool> has_kept = true;  // and a call that it refuses may still be in progress

template <class Each>
void each_meeting(Range const& range, Each&& each) {
  std::lock_guard const guard(mutex);
  for (auto const& [start, length] : locked) {
    if (Range const lock{start, start + length}; lock.meets(range)) each(lock);
  }
}

[[noreturn]] void fail(char const* what) {
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

class Vendor : public pinning::VendorDevice {
 public:
  Address lock(Address ptr, std::uint64_t size, pinning::LockOptions) override {
    each_meeting({ptr, ptr + size}, [](auto const&) { fail("a lock overlaps another"); });
    refuse_now_and_then(true);
    std::lock_guard const guard(mutex);
    locked[ptr] = size;
    return ptr;
  }
  void unlock(Address ptr) override {
    refuse_now_and_then(keeps);
    forget(ptr, {});
  }
  void forget(Address ptr, pinning::Span) override {
    std::lock_guard const guard(mutex);
    if (locked.erase(ptr) == 0) fail("what is unlocked was not locked");
  }
  std::optional<pinning::Pinned> is_pinned(Address) override { return std::nullopt; }
  std::string const& name() const noexcept override { return name_; }
  Address allocate(std::uint64_t, pinning::MemoryKind, bool) override { std::abort(); }
  void free(Address, pinning::MemoryKind) override { std::abort(); }
  std::optional<pinning::MemoryInfo> memory_info(Address) override { return std::nullopt; }
  void copy(Address, Address, std::uint64_t) override { std::abort(); }
  void synchronize() override {}
  std::unique_ptr<pinning::VendorQueue> make_queue() override { std::abort(); }
  std::unique_ptr<pinning::VendorQueue> adopt_queue(std::uintptr_t) override { std::abort(); }

 private:
  static void refuse_now_and_then(bool refuses) {
    thread_local std::mt19937 random(static_cast<unsigned>(std::hash<std::thread::id>()(std::this_thread::get_id())));
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50));
    if (refuses && random() % 17 == 3) throw pinning::VendorError({"lock", 1, "REFUSED", ""});
  }

  std::string const name_ = "cuda:0";
} vendor;

/// Reports memory that is gone, as libpinning's watcher does.
class Watch : public pinning::Watcher {
 public:
  void add(pinning::InvalidationListener& listener, bool) noexcept override { listener_ = &listener; }
  void remove(pinning::InvalidationListener&) noexcept override {}
  bool watch(Address, std::uint64_t) noexcept override { return true; }
  void unwatch(Address, std::uint64_t) noexcept override {}
  bool is_quiet() noexcept override { return !has_pending(); }
  void await_quiet(Address, std::uint64_t) noexcept override { await_pending(); }
  void hear_of_calls() noexcept override {}
  void invalidate(Address, std::uint64_t) noexcept override {}
  Address end_of_added(Address start) noexcept override { return start; }
  std::string problem() override { return {}; }

  void leave(Range const& range) {
    std::lock_guard const one(leaving_);
    pending_ = 1;
    pinning::InvalidationListener* const listener = listener_;
    while (listener != nullptr && !listener->try_invalidate(range.start, range.size())) std::this_thread::yield();
    pending_ = 0;
  }

 private:
  std::mutex leaving_;
  std::atomic<pinning::InvalidationListener*> listener_ = nullptr;
} watcher;

}  // namespace

pinning::Watcher& pinning::process_watcher() { return watcher; }
pinning::Budget& pinning::process_budget() {
  static Budget budget;
  return budget;
}

void pinning::at_fork(Subsystem, void (*)()) noexcept {}

// Stand-ins for libpinning's functions.
extern "C" {
pinning_status pinning_map_open(pinning_map** map, char const*) noexcept {
  static pinning_map only(vendor, ~std::uint64_t{0}, &vendor);
  *map = &only;
  return PINNING_OK;
}
pinning_status pinning_fail(pinning_status status, char const*) noexcept { return status; }
char const* pinning_last_error() noexcept { return "the vendor's refusal"; }
}

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 2;
  setenv("PINNING_LOCK_MIN_BYTES", "4096", 1);
  setenv("PINNING_LOCK_AFTER", "1", 1);
  setenv("PINNING_LOCK_BUDGET", "128KiB", 1);
  setenv("PINNING_REPORT", "/dev/null", 1);
  memory = static_cast<char*>(std::aligned_alloc(page, page * pages));
  Tool& tool = Tool::get();
  tool.devices.add(0, "sm_90");
  Device& device = *tool.devices.find(0);
  Locks& locks = tool.locks(device);
  auto const until = now() + std::chrono::duration<double>(seconds);
  constexpr long over = std::numeric_limits<long>::max();
  std::atomic<long> transfers = 0, within = 0, rounds[4] = {};

  // Two threads transfer parts of each half of the memory, and all of them free parts of all of it.
  auto const work = [&](int me) {
    std::mt19937 random(static_cast<unsigned>(me));
    std::size_t const share = pages / 2, base = static_cast<std::size_t>(me % 2) * share;
    Address const device_ptr = Address(me + 1) << 50;
    while (now() < until) {
      std::size_t const first = base + random() % share, count = 1 + random() % (base + share - first);
      char* const ptr = memory + first * page + random() % 2 * 100;
      std::size_t const size = count * page - 100;
      int const action = static_cast<int>(random() % 8);
      Inside const inside;
      if (action < 4) {
        locks.mapped(me, range_of(ptr, size), device_ptr + first);
        bool const kept = has_kept;
        auto const lock = locks.before_transfer(me, device, range_of(ptr, size), device_ptr + first);
        each_meeting(range_of(ptr, size), [&](Range const& held) {
          if (!kept && !held.holds(range_of(ptr, size))) fail("a transfer crosses a lock");
        });
        locks.submitted();
        transfers++;
        within += lock.has_value();
        locks.unmapped(me, device_ptr + first);
      } else if (action == 4) {
        watcher.leave(range_of(memory + random() % pages * page, page));
      } else if (action == 5) {
        locks.freed(range_of(memory + random() % pages * page, page));
      } else {
        void* place;
        if (locks.lock(device, range_of(ptr, size), &place) == PINNING_OK) {
          if (place != ptr) fail("a lock has another device pointer than its memory");
          locks.unlock(reinterpret_cast<Address>(ptr));
        }
      }
      rounds[me]++;
    }
    rounds[me] = over;
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back(work, i);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 2));
  keeps = false;
  for (auto& each : rounds) {
    long const begun = each;
    while (each == begun && begun != over) std::this_thread::yield();
  }
  has_kept = false;
  locks.freed(range_of(memory, page * pages));
  for (auto& each : threads) each.join();
  locks.freed(range_of(memory, page * pages));
  pinning_map* map;
  pinning_map_open(&map, nullptr);
  map->map->drain_invalidations();  // of what has left last
  if (!locked.empty()) fail("something stays locked");
  std::printf("%ld transfers, %ld of locked memory\n", transfers.load(), within.load());
  return within == 0 || within == transfers;
}
