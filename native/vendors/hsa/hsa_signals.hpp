// SPDX-License-Identifier: Apache-2.0
// Signals that report the completion of work.
#pragma once

#include <atomic>
#include <mutex>
#include <vector>

#include "hsa_runtime.hpp"

namespace pinning::hsa {

/// Unused signals, kept for reuse: a signal on which a thread can sleep is a kernel object.
class SpareSignals {
 public:
  explicit SpareSignals(Runtime const& runtime) : runtime_(runtime) {}
  SpareSignals(SpareSignals const&) = delete;
  ~SpareSignals() {
    close();
    close();  // tries again those that could not be destroyed
  }

  /// Takes one of them, or creates one, and sets its value.
  Handle take(std::int64_t value);
  /// Keeps a signal, or destroys one if there are enough. May be called by any destructor. Does nothing in a fork.
  void give(Handle signal) noexcept;
  /// Destroys all spares, and from now on every signal passed to `give`.
  void close() noexcept;

 private:
  void destroy_beyond(std::size_t count) noexcept;

  Runtime const& runtime_;
  std::mutex mutex_;
  std::vector<Handle> spares_;
  std::atomic<std::size_t> made_ = 0;  // signals that exist; `spares_` has room for all
  std::size_t most_ = 64;
};

}  // namespace pinning::hsa
