// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>

namespace pinning {

/// The host-readable memory that pending operations of a lane may write.
class Writes {
 public:
  void add(std::uint64_t position, std::uint64_t start, std::uint64_t size) {
    ranges_.push_back({position, start, start + size});
    first_ = ranges_.size() == 1 ? start : std::min(first_, start);
    end_ = ranges_.size() == 1 ? start + size : std::max(end_, start + size);
  }
  void add_unknown(std::uint64_t position) noexcept { unknown_ = position; }
  void reach(std::uint64_t position) noexcept {
    while (!ranges_.empty() && ranges_.front().position <= position) ranges_.pop_front();
  }
  bool meet(std::uint64_t reached, std::uint64_t start, std::uint64_t size) const noexcept {
    if (unknown_ > reached) return true;
    if (ranges_.empty() || start >= end_ || start + size <= first_) return false;
    for (Range const& range : ranges_) {
      if (range.position > reached && range.start < start + size && start < range.end) return true;
    }
    return false;
  }

 private:
  struct Range {
    std::uint64_t position, start, end;
  };
  std::uint64_t unknown_ = 0;  // the last position that may write anywhere
  std::deque<Range> ranges_;
  std::uint64_t first_ = 0, end_ = 0;  // around these and those before, so that most questions need no search
};

}  // namespace pinning
