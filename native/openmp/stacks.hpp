// SPDX-License-Identifier: Apache-2.0
// The stacks of this process's threads. What lies there is never locked: a stack goes, or is used anew, and nobody says
// so.
#pragma once

#include "range.hpp"

namespace pinning::omp {

/// While it lives, the stack of the thread that made it, in which it lies, is known.
class Stack {
 public:
  Stack() noexcept;
  ~Stack();
  Stack(Stack const&) = delete;

 private:
  friend bool on_a_stack(Range const& range) noexcept;

  Range range_;
  Stack *previous_ = nullptr, *next_ = nullptr;
};

/// Whether the range shares bytes with a known stack or with that of the first thread.
bool on_a_stack(Range const& range) noexcept;

}  // namespace pinning::omp
