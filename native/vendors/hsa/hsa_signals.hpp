// SPDX-License-Identifier: Apache-2.0
// Signals to tell the end of work.
#pragma once

#include <mutex>
#include <vector>

#include "hsa_runtime.hpp"

namespace pinning::hsa {

/// Signals that are no longer needed, to be used again: one that can be slept on is the kernel's.
class SpareSignals {
 public:
  explicit SpareSignals(Runtime const& runtime) : runtime_(runtime) {}
  SpareSignals(SpareSignals const&) = delete;
  ~SpareSignals() {
    close();
    close();  // those too that could not be destroyed
  }

  /// One of them, or a new one, with this value.
  Handle take(std::int64_t value);
  /// Keeps one for later, or destroys one when there are enough. Any destructor may call it. In a fork it does nothing.
  void give(Handle signal) noexcept;
  /// Destroys them, and from now on all that are given.
  void close() noexcept;

 private:
  void destroy_beyond(std::size_t count) noexcept;

  Runtime const& runtime_;
  std::mutex mutex_;
  std::vector<Handle> spares_;
  std::size_t made_ = 0;  // for so many is there room in `spares_`
  std::size_t most_ = 64;
};

}  // namespace pinning::hsa
