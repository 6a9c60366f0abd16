// SPDX-License-Identifier: Apache-2.0
// How the programs of these tests say that something does not hold.
#pragma once

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
