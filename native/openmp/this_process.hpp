// SPDX-License-Identifier: Apache-2.0
// What a child of fork does not have of its parent's, from its first instant on and whatever call has made it: the kernel
// gives it these pages empty. So nothing is held over a fork, nor left half changed.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace pinning::omp {

class Stack;
class Tool;

#if defined(__x86_64__)
inline constexpr std::size_t largest_page = 4096;
#else
inline constexpr std::size_t largest_page = 65536;
#endif

/// All zero is what a process begins with.
struct alignas(largest_page) ThisProcess {
  std::atomic<Tool*> tool;  // while it runs
  std::atomic<bool> began;  // here, and not as a fork
  std::atomic<bool> copies;  // it has looked for the driver's copies, which ../preload answers
  std::atomic<bool> sandboxed;  // it has forbidden itself system calls, and ends where it makes one of them

  struct Stacks {
    pthread_mutex_t mutex;
    Stack* first;
    std::uint64_t era;  // no other process's
  } stacks;
};

extern ThisProcess this_process;

}  // namespace pinning::omp
