// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <pinning/status_page.hpp>

namespace pinning {

/// Never destroyed, nor are the maps that it counts.
Budget& process_budget() {
  static Budget& only = []() -> Budget& {
    auto* const made = new Budget(&status_page().budget);
    if (pthread_atfork(nullptr, nullptr, [] { process_budget().begin_anew(); }) != 0) throw std::bad_alloc();
    return *made;
  }();
  return only;
}

}  // namespace pinning
