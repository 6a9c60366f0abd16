// SPDX-License-Identifier: Apache-2.0
// How these test programs report a violation, expect an error, and how long they try.
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

/// Whether `act` throws an `Error`, which ends there.
template <class Error>
bool throws(auto&& act) {
  try {
    act();
  } catch (Error const&) {
    return true;
  }
  return false;
}

/// Repeats something for `time`, and longer until an intended case was met: on a loaded machine that may take long.
class Trial {
 public:
  explicit Trial(std::chrono::duration<double> time) : time_(time) {}
  /// Whether to continue. A case not met after two minutes is given up.
  bool goes_on(bool met) const {
    auto const passed = std::chrono::steady_clock::now() - began_;
    return passed < time_ || (!met && passed < std::chrono::minutes(2));
  }

 private:
  std::chrono::steady_clock::time_point const began_ = std::chrono::steady_clock::now();
  std::chrono::duration<double> const time_;
};
