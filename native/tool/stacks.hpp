// SPDX-License-Identifier: Apache-2.0
// The stacks of this process's threads. Memory there is never locked: the end or reuse of a stack is not reported.
#pragma once

#include <pthread.h>

#include <cstddef>

#include "range.hpp"

namespace pinning::tool {

/// The stack of a thread, known from `begin` until the thread ends, which destroys this. The object itself is
/// elsewhere: a thread may end unnoticed, by a system call, and its stack with it.
class Stack {
 public:
  /// Of a thread that is created with these attributes, or with the default ones.
  explicit Stack(pthread_attr_t const* attributes) noexcept;
  Stack(Stack const&) = delete;

  /// Before a thread that reads it begins: threads of other libraries' constructors begin before those of this library.
  static void make_key() noexcept;

  /// Called on the thread. Makes no system call and does not allocate: the program may have forbidden itself the one, and
  /// its allocator may not know the thread yet.
  void begin() noexcept;

 protected:
  virtual ~Stack();

 private:
  friend bool on_a_stack(Range const& range) noexcept;
  static void end(void* stack) noexcept;
  bool is_there() const noexcept;

  std::size_t size_ = 0;
  Range range_;
  mutable pthread_mutex_t life_;  // robust and held by the thread: the kernel marks it when the thread is gone
  Stack *previous_ = nullptr, *next_ = nullptr;
};

/// Called before the first `on_a_stack`, with no lock held: it reads a file.
void learn_main_stack() noexcept;

/// Whether the range shares bytes with a known stack, with that of the first thread, or with this thread's.
bool on_a_stack(Range const& range) noexcept;

}  // namespace pinning::tool
