// SPDX-License-Identifier: Apache-2.0
#include <pinning/status_page.hpp>

#include "../base/process.hpp"

namespace pinning {

namespace {

Only<Budget> only;

void begin_anew() {
  if (Budget* const budget = only.if_made()) budget->begin_anew(generation());
}

}  // namespace

/// Never destroyed, nor are the maps that it counts.
Budget& process_budget() {
  return only.get([] {
    at_fork(Subsystem::budget, begin_anew);
    return std::make_unique<Budget>(&status_page().budget);
  });
}

}  // namespace pinning
