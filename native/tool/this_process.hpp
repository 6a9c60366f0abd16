// SPDX-License-Identifier: Apache-2.0
// State that a forked child does not inherit, from its first instruction on and whatever call has created it: the
// kernel gives it these pages empty. So nothing is held over a fork or left half changed.
#pragma once

#include <pthread.h>
#include <sys/types.h>

#include <atomic>
#include <cstddef>

namespace pinning {

class Watcher;

}  // namespace pinning

namespace pinning::tool {

class MemoryListener;
class Stack;

#if defined(__x86_64__)
inline constexpr std::size_t largest_page = 4096;
#else
inline constexpr std::size_t largest_page = 65536;
#endif

/// A process begins with all zeros.
struct alignas(largest_page) ThisProcess {
  std::atomic<MemoryListener*> listener;  // null unless a tool runs that locks memory
  std::atomic<Watcher*> watcher;  // of the maps, if it is informed of calls
  std::atomic<bool> began;  // this process is not a forked child
  std::atomic<pid_t> id;  // of the process, whose memory a child of vfork has too; 0 in a child made without handlers
  std::atomic<bool> copies;  // it has looked up the driver's copy functions, which cuda/ replaces
  std::atomic<unsigned> sandboxed;  // how often it has forbidden itself system calls; it may be killed by one

  struct Stacks {
    pthread_mutex_t mutex;
    Stack* first;
  } stacks;
};

extern ThisProcess this_process;

/// Inform the watcher of the maps of calls that take memory away: in this process, and in a child once the watcher has
/// begun anew there.
void inform_watcher(Watcher& watcher) noexcept;

}  // namespace pinning::tool
