// SPDX-License-Identifier: Apache-2.0
// A gate at which a vendor's queue waits for a thread of the host.
#pragma once

#include <atomic>

namespace pinning {

/// Shut when it is made; once open, it stays so. It must outlive everybody who waits at it.
class Gate {
 public:
  Gate() = default;
  Gate(Gate const&) = delete;
  Gate& operator=(Gate const&) = delete;

  /// Let through whoever waits, and whoever comes. What this thread did before is seen by them.
  void open() noexcept {
    open_.store(true, std::memory_order_release);
    open_.notify_all();
  }

  bool is_open() const noexcept { return open_.load(std::memory_order_acquire); }

  /// Block until it is open.
  void wait() const noexcept { open_.wait(false, std::memory_order_acquire); }

  /// The same as the C function that vendors' queues call: cuLaunchHostFunc and its like.
  static void pass(void* gate) noexcept { static_cast<Gate const*>(gate)->wait(); }

 private:
  std::atomic<bool> open_{false};
};

}  // namespace pinning
