// SPDX-License-Identifier: Apache-2.0
// Threads that lock neighbouring ranges by mlock through <pinning/pinning.h>, while others look up and list; with a third
// argument the process also forks: c_api_stress [SECONDS] [SEED] [forks]
#include <pinning/pinning.h>
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

namespace {

[[noreturn]] void fail(std::string const& what) {
  std::printf("VIOLATION: %s (%s)\n", what.c_str(), pinning_last_error());
  std::fflush(stdout);
  std::_Exit(1);
}
void expect(bool holds, char const* what) {
  if (!holds) fail(what);
}
void ok(pinning_status status) {
  if (status != PINNING_OK) fail(pinning_error_string(status));
}

constexpr std::size_t page = 4096, slice = 3000, threads = 3;  // slices of two threads share pages
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

/// Locked pages are those that cannot be given up.
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
  pinning_region regions[threads];
  while (!over) {
    std::size_t count = 0;
    ok(pinning_regions(host(), regions, threads, &count));
    expect(count <= threads, "more regions than threads");
    for (std::size_t i = 0; i < count; ++i) {
      auto const offset = static_cast<char*>(regions[i].start) - arena;
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

}  // namespace

int main(int count, char** arguments) {
  double const seconds = count > 1 ? std::atof(arguments[1]) : 2;
  unsigned const seed = count > 2 ? std::atoi(arguments[2]) : 1;
  void* const mapped = mmap(nullptr, 4 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  expect(mapped != MAP_FAILED, "no memory");
  arena = static_cast<char*>(mapped);
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
    if (count > 3) {
      fork_once();
      ++forks;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  over = true;
  for (auto& each : all) each.join();
  for (std::size_t at = 0; at < 4 * page; at += page) expect(!is_locked(arena + at), "a page is still locked");
  std::printf("all right: %ld locks, %ld forks\n", locks.load(), forks);
}
