// SPDX-License-Identifier: Apache-2.0
// Threads map, transfer, unmap, free and lock parts of one memory at random, and some of it is removed unseen: no
// transfer ever crosses a lock, and in the end nothing is locked. Compiled with the tool's own sources except its
// hooks, and with a locker that keeps its own list.
#include <cstdio>
#include <cstdlib>
#include <list>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "inside.hpp"
#include "openmp/tool.hpp"

using namespace pinning::tool;
using namespace pinning::tool::openmp;

bool pinning::tool::frees_are_seen() noexcept { return true; }

namespace {

constexpr std::size_t page = 4096, pages = 64;
char* memory;

// Locked ranges by start, as the vendor knows them; and ranges that are being locked.
struct Coming {
  Range range;
  bool left = false;
};
std::mutex mutex;
std::map<char*, std::size_t> locked;
std::list<Coming> coming;

template <class Each>
void each_meeting(char* ptr, std::size_t size, Each&& each) {
  std::lock_guard const guard(mutex);
  for (auto const& [start, length] : locked) {
    if (start < ptr + size && ptr < start + length) each(start, length);
  }
}

[[noreturn]] void fail(char const* what) {
  std::fprintf(stderr, "%s\n", what);
  std::_Exit(1);
}

/// Reports memory that is gone in the order of libpinning's watcher: first to the tool, then to the map.
class Watch : public pinning::Watcher {
 public:
  void add(pinning::InvalidationListener& tenant, bool) noexcept override { tenant_ = &tenant; }
  void remove(pinning::InvalidationListener&) noexcept override {}
  bool watch(Address, std::uint64_t) noexcept override { return true; }
  void unwatch(Address, std::uint64_t) noexcept override {}
  bool settled() noexcept override { return !has_pending(); }
  void await_settled(Address, std::uint64_t) noexcept override { await_pending(); }
  void hear_of_calls() noexcept override {}
  void invalidate(Address, std::uint64_t) noexcept override {}
  std::string problem() override { return {}; }

  void leave(Range const& range) {
    std::lock_guard const one(leaving_);
    pending_ = 1;
    pinning::InvalidationListener* const tenant = tenant_;
    while (tenant != nullptr && !tenant->try_invalidate(range.start, range.size())) std::this_thread::yield();
    {
      std::lock_guard const guard(mutex);
      std::erase_if(locked, [&](auto const& each) { return range_of(each.first, each.second).meets(range); });
      for (Coming& each : coming) each.left |= each.range.meets(range);
    }
    pending_ = 0;
  }

 private:
  std::mutex leaving_;
  std::atomic<pinning::InvalidationListener*> tenant_ = nullptr;
} watcher;

}  // namespace

pinning::Watcher& pinning::process_watcher() { return watcher; }

// Stand-ins for libpinning's functions.
extern "C" {
pinning_status pinning_map_open(pinning_map** map, char const*) noexcept {
  *map = reinterpret_cast<pinning_map*>(1);
  return PINNING_OK;
}
pinning_status pinning_lock(pinning_map*, void* ptr, size_t size, void** device_ptr) noexcept {
  while (watcher.has_pending()) std::this_thread::yield();
  std::unique_lock guard(mutex);
  auto const mine = coming.insert(coming.end(), {range_of(ptr, size)});
  guard.unlock();
  each_meeting(static_cast<char*>(ptr), size, [](auto...) { fail("a lock overlaps another"); });
  std::this_thread::sleep_for(std::chrono::microseconds(std::rand() % 50));
  guard.lock();
  bool const left = mine->left;
  coming.erase(mine);
  if (left || locked.size() % 17 == 3) return PINNING_VENDOR_ERROR;
  locked[static_cast<char*>(ptr)] = size;
  *device_ptr = ptr;
  return PINNING_OK;
}
pinning_status pinning_unlock(pinning_map*, void const* ptr) noexcept {
  std::this_thread::sleep_for(std::chrono::microseconds(std::rand() % 50));
  std::lock_guard const guard(mutex);
  return locked.erase(static_cast<char*>(const_cast<void*>(ptr))) == 1 ? PINNING_OK : PINNING_NOT_LOCKED;
}
pinning_status pinning_fail(pinning_status status, char const*) noexcept { return status; }
char const* pinning_last_error() noexcept { return "the vendor's refusal"; }
}

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 2;
  setenv("PINNING_LOCK_MIN_BYTES", "4096", 1);
  setenv("PINNING_LOCK_AFTER", "1", 1);
  setenv("PINNING_REPORT", "/dev/null", 1);
  memory = static_cast<char*>(std::aligned_alloc(page, page * pages));
  Tool& tool = Tool::get();
  tool.devices.add(0, "sm_90");
  Device& device = *tool.devices.find(0);
  Locks& locks = tool.locks(device);
  auto const until = now() + std::chrono::duration<double>(seconds);
  std::atomic<long> transfers = 0, within = 0;

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
        auto const lock = locks.before_transfer(me, device, range_of(ptr, size), device_ptr + first);
        each_meeting(ptr, size, [&](char* start, std::size_t length) {
          if (start > ptr || start + length < ptr + size) fail("a transfer crosses a lock");
        });
        locks.submitted(range_of(ptr, size));
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
    }
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; i++) threads.emplace_back(work, i);
  for (auto& each : threads) each.join();
  locks.freed(range_of(memory, page * pages));
  if (!locked.empty()) fail("something stays locked");
  std::printf("%ld transfers, %ld of locked memory\n", transfers.load(), within.load());
  return within == 0 || within == transfers;
}
