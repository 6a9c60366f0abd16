// SPDX-License-Identifier: Apache-2.0
// Queues of the host: a thread for each, which does one job after another.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <pinning/vendor.hpp>

namespace pinning {

class HostQueueThread;

/// The queues of the host that are in use.
class HostQueues {
 public:
  /// A new one. Throws VendorError where no thread can be started.
  std::unique_ptr<VendorQueue> make();
  /// Another one over the thread of the queue with this handle. Throws InvalidRange.
  std::unique_ptr<VendorQueue> adopt(std::uintptr_t handle);
  /// Waits until all that was submitted to any of them is done.
  void synchronize();
  /// Removes a queue from the list, before its thread ends.
  void forget(std::uintptr_t handle) noexcept;

 private:
  std::mutex mutex_;
  std::map<std::uintptr_t, std::weak_ptr<HostQueueThread>> threads_;
  std::uintptr_t last_handle_ = 0;
};

}  // namespace pinning
