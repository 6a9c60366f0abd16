// SPDX-License-Identifier: Apache-2.0
// How many watch each page.
#pragma once

#include <iterator>
#include <map>
#include <pinning/errors.hpp>

namespace pinning {

class PageCounts {
 public:
  /// Throws std::bad_alloc; then nothing has changed.
  void add(Address start, Address end) {
    auto const first = border(start);
    try {
      auto const last = border(end);
      for (auto step = first; step != last; ++step) ++step->second.count;
    } catch (...) {
      leave(first);
      throw;
    }
  }

  /// Undoes one `add`, and calls `unused` with each run of pages that nobody watches any more.
  template <class Unused>
  void remove(Address start, Address end, Unused&& unused) {
    auto const first = steps_.find(start), last = steps_.find(end);
    for (auto step = first; step != last; ++step) {
      if (--step->second.count == 0) unused(step->first, std::next(step)->first);
    }
    leave(last);
    leave(first);
  }

 private:
  /// From its address up to the next one so many watch each page. It stays while a range begins or ends there.
  struct Step {
    unsigned count = 0, borders = 0;
  };
  using Steps = std::map<Address, Step>;

  Steps::iterator border(Address at) {
    auto step = steps_.lower_bound(at);
    if (step == steps_.end() || step->first != at) {
      unsigned const before = step == steps_.begin() ? 0 : std::prev(step)->second.count;
      step = steps_.emplace_hint(step, at, Step{before, 0});
    }
    ++step->second.borders;
    return step;
  }
  void leave(Steps::iterator step) {
    if (--step->second.borders == 0) steps_.erase(step);
  }

  Steps steps_;
};

}  // namespace pinning
