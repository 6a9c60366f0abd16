// SPDX-License-Identifier: Apache-2.0
// The tool of this process: its devices and their locks.
#pragma once

#include <atomic>
#include <string>

#include "../hooks.hpp"
#include "../this_process.hpp"
#include "devices.hpp"
#include "locks.hpp"

namespace pinning::tool::openmp {

class Tool final : public MemoryListener {
 public:
  Tool();

  /// Null before the first use, and in a forked child, where nothing is locked and no device works.
  static Tool* running() noexcept {
    return static_cast<Tool*>(this_process.listener.load(std::memory_order_acquire));
  }
  /// Start the tool, if it does not run yet.
  static Tool& get();
  /// Whether a runtime has ever started it in this process.
  static bool was_started() noexcept { return started_.load(std::memory_order_relaxed); }

  Locks& locks(Device const& device) { return locks_[static_cast<int>(device.vendor())]; }
  void freed(Range const& range) override {
    for (Locks& each : locks_) each.freed(range);
  }
  bool may_meet(Range const& range) const noexcept override {
    return locks_[0].may_meet(range) || locks_[1].may_meet(range) || locks_[2].may_meet(range);
  }
  /// False if there is no such lock.
  bool unlock(Address ptr);
  void finish();

  Context context;
  Devices devices;

 private:
  static inline std::atomic<bool> started_ = false;

  Locks locks_[vendors]{Locks(context), Locks(context), Locks(context)};
};

/// The loaded OpenMP runtime, or nothing; if there are several, one that offloads.
std::string runtime();
bool may_offload(std::string const& runtime);

}  // namespace pinning::tool::openmp
