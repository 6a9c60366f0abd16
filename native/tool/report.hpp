// SPDX-License-Identifier: Apache-2.0
// The report at exit: what was locked, for how long, what was moved, and what was refused.
#pragma once

#include <chrono>
#include <map>
#include <mutex>
#include <string>

#include "range.hpp"

namespace pinning::tool {

using Moment = std::chrono::steady_clock::time_point;
inline Moment now() noexcept { return std::chrono::steady_clock::now(); }

class Report {
 public:
  void locked(Range const& range, std::string const& device, Moment began, Moment ended);
  void unlocked(Range const& range, Moment began, Moment ended);
  void refused(Range const& range, std::string const& why);
  /// `buffer` is the lock that contained the bytes, otherwise the bytes themselves.
  void moved(Range const& buffer, std::size_t bytes, bool to_device, bool locked);
  /// Whether there was nothing to report.
  bool empty();
  std::string text(Moment until);

 private:
  struct Traffic {
    std::size_t transfers = 0, bytes = 0;
  };
  struct Buffer {
    std::size_t size = 0, times = 0;
    std::string device;
    std::chrono::nanoseconds locking{}, unlocking{}, held{};
    Moment since{};
    bool is_locked = false;
    Traffic fast;
  };
  struct Refusal {
    std::size_t times = 0, largest = 0;
  };

  bool has_moved() const noexcept {
    return moved_[0][0].transfers + moved_[0][1].transfers + moved_[1][0].transfers + moved_[1][1].transfers != 0;
  }

  std::mutex mutex_;
  std::map<Address, Buffer> buffers_;
  std::map<std::string, Refusal> refusals_;
  Traffic moved_[2][2];  // to the device or from it, locked or not
  std::size_t now_locked_ = 0, most_ = 0;
};

/// Write a report to standard error for "-", otherwise to a new file.
void write_report(std::string const& where, std::string const& text);

/// The report's text about CUDA copies, which cuda/ counts.
inline std::string (*text_of_copies)() = nullptr;

}  // namespace pinning::tool
