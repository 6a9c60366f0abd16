// SPDX-License-Identifier: Apache-2.0
// How the programs of these tests say that something does not hold, and how long they try.
#pragma once

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

[[noreturn]] inline void fail(std::string const& what) {
  std::printf("VIOLATION: %s\n", what.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

inline void expect(bool holds, char const* what) {
  if (!holds) fail(what);
}

/// Something is tried for a time, and on until what it is meant to meet was met: on a loaded machine that may take long.
class Trial {
 public:
  explicit Trial(std::chrono::duration<double> time) : time_(time) {}
  /// Whether to go on. What is not met in two minutes never is.
  bool goes_on(bool met) const {
    auto const passed = std::chrono::steady_clock::now() - began_;
    return passed < time_ || (!met && passed < std::chrono::minutes(2));
  }

 private:
  std::chrono::steady_clock::time_point const began_ = std::chrono::steady_clock::now();
  std::chrono::duration<double> const time_;
};
