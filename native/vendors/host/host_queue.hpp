// SPDX-License-Identifier: Apache-2.0
// Queues of the host: each has a thread, which runs one job after another.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <pinning/vendor.hpp>

namespace pinning {

class HostQueueThread;

/// The open queues of the host.
class HostQueues {
 public:
  /// Makes a queue. Throws VendorError if no thread can be started.
  std::unique_ptr<VendorQueue> make();
  /// Makes another queue on the thread of the queue with this handle. Throws InvalidRange.
  std::unique_ptr<VendorQueue> adopt(std::uintptr_t handle);
  /// Waits until everything submitted to any of them is done.
  void synchronize();
  /// Removes a queue from the list; called before its thread is stopped.
  void forget(std::uintptr_t handle) noexcept;

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::weak_ptr<HostQueueThread>> threads_;
  std::uintptr_t last_handle_ = 0;
};

}  // namespace pinning
