// SPDX-License-Identifier: Apache-2.0
// The stacks of this process's threads. What lies there is never locked: a stack goes, or is used anew, and nobody says
// so.
#pragma once

#include <sys/types.h>

#include "range.hpp"

namespace pinning::omp {

/// The stack of a thread, known from `begin` until the thread ends, which destroys this. It does not lie there itself: a
/// thread may end by a system call, without a word, and take all that is there along.
class Stack {
 public:
  Stack() = default;
  Stack(Stack const&) = delete;

  /// On the thread.
  void begin() noexcept;

 protected:
  virtual ~Stack();

 private:
  friend bool on_a_stack(Range const& range) noexcept;
  static void end(void* stack) noexcept;
  bool is_there() const noexcept;

  Range range_;
  pid_t thread_ = 0;
  Stack *previous_ = nullptr, *next_ = nullptr;
};

/// Whether the range shares bytes with a known stack, with that of the first thread, or with this thread's.
bool on_a_stack(Range const& range) noexcept;

}  // namespace pinning::omp
