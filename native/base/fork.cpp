// SPDX-License-Identifier: Apache-2.0
#include "fork.hpp"

#include <pthread.h>

#include <new>

namespace pinning {

namespace {

std::atomic<void (*)()> begin_parts_anew[fork_parts];
std::atomic<bool> heard = false;

void after_fork_in_child() {
  ++forks;
  for (auto const& each : begin_parts_anew) {
    if (auto* const begin_anew = each.load()) begin_anew();
  }
}

}  // namespace

std::atomic<unsigned> forks = 0;

void count_forks() {
  if (heard.load(std::memory_order_acquire)) return;
  // Two threads may both come here: to begin anew twice does no harm.
  if (pthread_atfork(nullptr, nullptr, after_fork_in_child) != 0) throw std::bad_alloc();
  heard.store(true, std::memory_order_release);
}

void in_child(ForkPart part, void (*begin_anew)()) {
  begin_parts_anew[static_cast<std::size_t>(part)].store(begin_anew);
  count_forks();
}

}  // namespace pinning
