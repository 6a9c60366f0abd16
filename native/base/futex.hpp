// SPDX-License-Identifier: Apache-2.0
// A number that threads wait for. Unlike those of std::atomic, its waits end for signals; and it has no state
// elsewhere, so a fork may happen at any time.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdint>
#include <ctime>

namespace pinning {

class Futex {
 public:
  std::uint32_t load() const noexcept { return value_.load(std::memory_order_acquire); }
  void store(std::uint32_t value) noexcept {
    value_ = value;
    wake();
  }
  void add_one() noexcept {
    ++value_;
    wake();
  }

  /// Block while the value is this one; may return earlier.
  void wait(std::uint32_t value) noexcept { sleep(value, nullptr); }
  /// The same, for a tenth of a second at most, or until a signal is handled.
  void wait_a_while(std::uint32_t value) noexcept {
    timespec const at_most{0, 100'000'000};
    sleep(value, &at_most);
  }

 private:
  void sleep(std::uint32_t value, timespec const* at_most) noexcept {
    static_assert(std::atomic<std::uint32_t>::is_always_lock_free && sizeof value_ == sizeof value);
    ++waiting_;
    syscall(SYS_futex, &value_, FUTEX_WAIT_PRIVATE, value, at_most, nullptr, 0);
    --waiting_;
  }
  // Sequentially consistent on both sides: either the waiter sees the new value, or this thread sees the waiter.
  void wake() noexcept {
    if (waiting_ != 0) syscall(SYS_futex, &value_, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
  }

  std::atomic<std::uint32_t> value_ = 0, waiting_ = 0;
};

}  // namespace pinning
