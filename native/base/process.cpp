// SPDX-License-Identifier: Apache-2.0
#include <pthread.h>

#include <cstdlib>
#include <pinning/process.hpp>

namespace pinning {

namespace {

std::atomic<void (*)()> handlers[static_cast<std::size_t>(Subsystem::none)];

void after_fork_in_child() {
  ++forks;
  for (auto const& handler : handlers) {
    if (auto* const restart = handler.load()) restart();
  }
}

/// Runs when the library is loaded, so that its handler comes before those of everything that uses it.
[[gnu::constructor]] void register_handler() {
  if (pthread_atfork(nullptr, nullptr, after_fork_in_child) != 0) std::abort();  // there is no memory for a few words
}

}  // namespace

constinit std::atomic<unsigned> forks = 0;

void at_fork(Subsystem subsystem, void (*restart)()) noexcept {
  handlers[static_cast<std::size_t>(subsystem)].store(restart);
}

}  // namespace pinning
