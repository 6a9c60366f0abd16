// SPDX-License-Identifier: Apache-2.0
#include "this_process.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <new>
#include <pinning/process.hpp>

namespace pinning::tool {

constinit ThisProcess this_process{};

namespace {

bool wiped = false;  // by the kernel, at a fork
std::atomic<Watcher*> informed = nullptr;

/// When the watcher has begun anew. Before that no call is reported: a thread of the parent may have held the mutexes of
/// the listeners. Nor is any in a child that is made without handlers (_Fork, clone).
void begin_in_child() {
  if (!wiped) new (&this_process) ThisProcess{};
  this_process.id = getpid();
  this_process.watcher = informed.load();
}

[[gnu::constructor]] void begin() {
  wiped = madvise(&this_process, sizeof this_process, MADV_WIPEONFORK) == 0;  // not in gVisor
  at_fork(Subsystem::tool, begin_in_child);
  this_process.id = getpid();
  this_process.began = true;
}

}  // namespace

void inform_watcher(Watcher& watcher) noexcept { this_process.watcher = informed = &watcher; }

}  // namespace pinning::tool
