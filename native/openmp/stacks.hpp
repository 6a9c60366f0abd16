// SPDX-License-Identifier: Apache-2.0
// The stacks of this process's threads. What lies there is never locked: the end or reuse of a stack is not
// reported.
#pragma once

#include <pthread.h>

#include <cstdint>

#include "range.hpp"

namespace pinning::omp {

/// The stack of a thread, known from `begin` until the thread ends, which destroys this. It does not lie there itself: a
/// thread may end by a system call, without a word, and take all that is there along.
class Stack {
 public:
  Stack() = default;
  Stack(Stack const&) = delete;

  /// On the thread. Makes no system call where the program has forbidden itself all but a few; then nothing is known of
  /// this stack.
  void begin() noexcept;

 protected:
  virtual ~Stack();

 private:
  friend bool on_a_stack(Range const& range) noexcept;
  static void end(void* stack) noexcept;
  bool is_there() const noexcept;

  Range range_;
  mutable pthread_mutex_t life_;  // the thread's own, of which the kernel tells when the thread is gone
  std::uint64_t era_ = 0;         // of the list in which it is
  Stack *previous_ = nullptr, *next_ = nullptr;
};

/// Before the first question of the next function, with no lock held: it reads a file.
void learn_main_stack() noexcept;

/// Whether the range shares bytes with a known stack, with that of the first thread, or with this thread's.
bool on_a_stack(Range const& range) noexcept;

}  // namespace pinning::omp
