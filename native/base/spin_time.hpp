// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

namespace pinning {

/// How long a thread has been spinning. Where the clock stands still, as under libfaketime, it has after so many looks
/// that they take longer otherwise.
class SpinTime {
 public:
  using Clock = std::chrono::steady_clock;

  void begin() noexcept { *this = {}; }
  Clock::duration lasts() noexcept {
    return looks_ == most_looks || ++looks_ == most_looks ? Clock::duration::max() : Clock::now() - began_;
  }

 private:
  static constexpr unsigned most_looks = 1 << 17;

  Clock::time_point began_ = Clock::now();
  unsigned looks_ = 0;
};

}  // namespace pinning
