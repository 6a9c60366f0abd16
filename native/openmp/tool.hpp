// SPDX-License-Identifier: Apache-2.0
// The tool of this process: its devices and their locks.
#pragma once

#include <atomic>
#include <string>

#include "devices.hpp"
#include "locks.hpp"
#include "this_process.hpp"

namespace pinning::omp {

class Tool {
 public:
  Tool();

  /// Null before the first use, and in a forked child, where nothing is locked and no device works.
  static Tool* running() noexcept { return this_process.tool.load(std::memory_order_acquire); }
  /// Start the tool, if it does not run yet.
  static Tool& get();
  /// Whether a runtime has ever started it in this process.
  static bool was_started() noexcept { return started_.load(std::memory_order_relaxed); }

  Locks& locks(Device const& device) { return locks_[static_cast<int>(device.vendor())]; }
  void freed(Range const& range) {
    for (Locks& each : locks_) each.freed(range);
  }
  bool may_meet(Range const& range) const noexcept {
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

/// During its lifetime, memory that this thread frees is the tool's or a vendor's own, and the hooks ignore it.
class Inside {
 public:
  Inside() noexcept { depth++; }
  ~Inside() { depth--; }
  Inside(Inside const&) = delete;
  static bool now() noexcept { return depth != 0; }

 private:
  static inline thread_local int depth = 0;
};

/// Whether the functions of hooks.cpp are those that the program calls.
bool frees_are_seen() noexcept;

/// The loaded OpenMP runtime, or nothing; if there are several, one that offloads.
std::string runtime();
bool may_offload(std::string const& runtime);

}  // namespace pinning::omp
