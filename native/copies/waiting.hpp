// SPDX-License-Identifier: Apache-2.0
// How threads of the staging engine exclude each other and sleep.
#pragma once

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>

// A thread sanitizer in the program, which sees the copies of these threads, but not the order that this library keeps.
extern "C" {
[[gnu::weak]] void __tsan_acquire(void* address);
[[gnu::weak]] void __tsan_release(void* address);
}

namespace pinning {

inline void relax() noexcept {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

/// For sections of some hundred instructions without a system call: a mutex would put waiting threads to sleep, and
/// waking one takes longer than moving a slice.
class Spinlock {
 public:
  void lock() noexcept {
    // Waiting threads look less and less often, and write only to a lock that looks free: each look takes the cache line
    // from the holder, and each write from all.
    unsigned pause = 1;
    for (unsigned looks = 1; held_.load(std::memory_order_relaxed) || held_.exchange(true, std::memory_order_acquire); ++looks) {
      for (unsigned i = 0; i < pause; ++i) relax();
      pause = std::min(2 * pause, longest_pause);
      if (looks % 8 == 0) sched_yield();  // the holder may be waiting for this processor
    }
    if (__tsan_acquire != nullptr) __tsan_acquire(this);
  }
  void unlock() noexcept {
    if (__tsan_release != nullptr) __tsan_release(this);
    held_.store(false, std::memory_order_release);
  }

 private:
  static constexpr unsigned longest_pause = 32;  // times `relax`: 1 to 2 us

  std::atomic<bool> held_{false};
};

/// Rings for threads that wait for news. A thread that hears it sees all that was done before `ring`.
class Bell {
 public:
  std::uint32_t count() const noexcept { return rung_.load(std::memory_order_acquire); }

  /// Wake up to `wake` sleeping threads. A thread that reads `count`, or is about to sleep, hears it too.
  void ring(unsigned wake) noexcept {
    rung_.fetch_add(1);
    if (wake == 0 || sleeping_.load() == 0) return;
    // Subtracted here: a thread takes 50 us or more to wake, and should not be woken again meanwhile.
    long const woken = futex(FUTEX_WAKE_PRIVATE, std::min<unsigned>(wake, INT_MAX), nullptr);
    if (woken > 0) sleeping_.fetch_sub(static_cast<unsigned>(woken));
  }

  /// Sleep until it has rung since `count` was `seen`, without limit or at most `longest`.
  void wait(std::uint32_t seen) noexcept { sleep(seen, nullptr); }
  void wait(std::uint32_t seen, std::chrono::nanoseconds longest) noexcept {
    timespec const time{static_cast<time_t>(longest.count() / 1'000'000'000),
                        static_cast<long>(longest.count() % 1'000'000'000)};
    sleep(seen, &time);
  }

  unsigned sleeping() const noexcept { return sleeping_.load(std::memory_order_relaxed); }

 private:
  void sleep(std::uint32_t seen, timespec const* longest) noexcept {
    sleeping_.fetch_add(1);
    if (futex(FUTEX_WAIT_PRIVATE, seen, longest) != 0) sleeping_.fetch_sub(1);  // nothing has woken it
  }
  long futex(int operation, std::uint32_t value, timespec const* time) noexcept {
    return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&rung_), operation, value, time, nullptr, 0);
  }

  std::atomic<std::uint32_t> rung_{0};
  std::atomic<unsigned> sleeping_{0};
};

}  // namespace pinning
