// SPDX-License-Identifier: Apache-2.0
// Threads that lock neighbouring ranges by mlock through <pinning/pinning.h> while another lists the regions; with a
// third argument the process also forks: c_api_stress [SECONDS] [SEED] [forks]
#include <pinning/pinning.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "expect.hpp"

namespace {

void ok(pinning_status status) {
  if (status != PINNING_OK) fail(std::string(pinning_error_string(status)) + " (" + pinning_last_error() + ")");
}

constexpr std::size_t page = 4096, slice = 3000, threads = 3;  // slices of two threads share pages
constexpr std::size_t paused_at = 4 * page, all_pages = 5 * page;
char* arena;

pinning_map* host() {
  pinning_map* map = nullptr;
  ok(pinning_map_open(&map, "host:0"));
  return map;
}

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool mlock_works = false;  // the sanitizers' mlock does nothing
#else
constexpr bool mlock_works = true;
#endif

#if defined(__SANITIZE_THREAD__)
constexpr bool children_start_threads = false;  // ThreadSanitizer does not support those
#else
constexpr bool children_start_threads = true;
#endif

/// Whether its page is locked: a locked page cannot be discarded.
bool is_locked(char* ptr) {
  auto* const start = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(ptr) & -page);
  return madvise(start, page, MADV_DONTNEED) == -1 && errno == EINVAL;
}

void locker(std::size_t index, unsigned seed, std::atomic<bool> const& over, std::atomic<long>& locks) {
  std::mt19937 random(seed + index);
  while (!over) {
    char* const own = arena + index * slice;
    std::size_t const offset = random() % slice, size = 1 + random() % (slice - offset);
    void* device = nullptr;
    bool const by_mapping = random() % 2 != 0;
    if (by_mapping) {
      ok(pinning_lock_mapped(host(), own + offset, size, PINNING_MANDATORY, &device));
    } else {
      ok(pinning_lock(host(), own + offset, size, &device));
    }
    expect(device == own + offset, "the host's device address is another");
    pinning_region region;
    ok(pinning_find(host(), own + offset, size, &region));
    expect(region.start == own + offset && region.size == size && region.references == 1, "a lock is another region");
    expect(!mlock_works || (is_locked(own + offset) && is_locked(own + offset + size - 1)),
           "a locked page is not locked");
    ok(by_mapping ? pinning_unlock_unmapped(host(), own + offset) : pinning_unlock(host(), own + offset));
    expect(pinning_find(host(), own + offset, 1, nullptr) == PINNING_NOT_LOCKED, "found after its unlock");
    ++locks;
  }
}

void reader(std::atomic<bool> const& over) {
  pinning_region regions[threads + 1];
  while (!over) {
    std::size_t count = 0;
    ok(pinning_regions(host(), regions, threads + 1, &count));
    expect(count <= threads + 1, "more regions than threads");
    for (std::size_t i = 0; i < count; ++i) {
      auto const offset = static_cast<char*>(regions[i].start) - arena;
      if (offset == paused_at) continue;
      expect(offset / slice == (offset + regions[i].size - 1) / slice, "a region that nobody has locked");
    }
  }
}

/// A child has nothing locked, and can lock for itself.
void fork_once() {
  pinning_map* const map = host();
  pid_t const child = fork();
  if (child == 0) {
    std::size_t count = 99;
    ok(pinning_regions(map, nullptr, 0, &count));
    expect(count == 0 && map == host(), "a child has inherited locks");
    ok(pinning_lock(map, arena, threads * slice, nullptr));
    expect(!mlock_works || is_locked(arena), "a child's lock locks nothing");
    ok(pinning_unlock(map, arena));
    for (std::size_t at = 0; at < threads * slice; at += page) expect(!is_locked(arena + at), "a child's page is locked");
    std::_Exit(0);
  }
  int status = 1;
  expect(waitpid(child, &status, 0) == child && status == 0, "the child has failed");
}

/// A thread that looks for devices, locks and unlocks, and that the program's own fork handlers join before each fork,
/// as many libraries do: no fork may wait for anything that the thread needs.
class Paused {
 public:
  static void begin() {
    expect(pthread_atfork(stop, start, nullptr) == 0, "no memory");  // before the first use of the library
    start();
  }
  static void stop() {
    over_ = true;
    thread_.join();
  }

 private:
  static void start() {
    over_ = false;
    thread_ = std::thread([] {
      do {
        pinning_map* map = nullptr;
        expect(pinning_map_open(&map, "no device:0") == PINNING_INVALID_ARGUMENT, "there is such a device");
        ok(pinning_lock(host(), arena + paused_at, page, nullptr));
        ok(pinning_unlock(host(), arena + paused_at));
      } while (!over_);
    });
  }

  static inline std::atomic<bool> over_;
  static inline std::thread thread_;
};

/// Fork while threads of the process use the library for the first time; the child uses it too.
void fork_at_first_use(unsigned seed) {
  std::mt19937 random(seed);
  for (int i = 0; i < 200; ++i) {
    pid_t const fresh = fork();
    if (fresh == 0) {
      std::atomic<int> ready = 0;
      auto const use = [&](std::size_t index) {
        for (++ready; ready < 3;) {
        }
        ok(pinning_lock(host(), arena + index * page, page, nullptr));
      };
      std::thread first(use, 0), second(use, 1);
      for (++ready; ready < 3;) {
      }
      std::atomic<unsigned> spins = random() % (1u << random() % 18);
      while (spins != 0) --spins;
      pid_t const child = fork();
      if (child == 0) {
        ok(pinning_lock(host(), arena, page, nullptr));
        ok(pinning_unlock(host(), arena));
        std::_Exit(0);
      }
      int status = 1;
      expect(waitpid(child, &status, 0) == child && status == 0, "a child at the first use has failed");
      first.join();
      second.join();
      std::_Exit(0);
    }
    int status = 1;
    expect(waitpid(fresh, &status, 0) == fresh && status == 0, "a process has failed at its first use");
    random();
  }
}

}  // namespace

int main(int count, char** arguments) {
  double const seconds = count > 1 ? std::atof(arguments[1]) : 2;
  unsigned const seed = count > 2 ? std::atoi(arguments[2]) : 1;
  void* const mapped = mmap(nullptr, all_pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(mapped != MAP_FAILED, "no memory");
  arena = static_cast<char*>(mapped);
  bool const forks_too = count > 3;
  if (forks_too && children_start_threads) fork_at_first_use(seed);
  if (forks_too) Paused::begin();
  std::atomic<bool> over = false;
  std::atomic<long> locks = 0;
  std::vector<std::thread> all;
  for (std::size_t index = 0; index < threads; ++index) {
    all.emplace_back([&, index] { locker(index, seed, over, locks); });
  }
  all.emplace_back([&] { reader(over); });
  auto const end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  long forks = 0;
  while (std::chrono::steady_clock::now() < end) {
    if (forks_too) {
      fork_once();
      ++forks;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  over = true;
  for (auto& each : all) each.join();
  if (forks_too) Paused::stop();
  for (std::size_t at = 0; at < all_pages; at += page) expect(!is_locked(arena + at), "a page is still locked");
  std::printf("all right: %ld locks, %ld forks\n", locks.load(), forks);
}
