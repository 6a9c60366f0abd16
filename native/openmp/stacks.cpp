// SPDX-License-Identifier: Apache-2.0
#include "stacks.hpp"

#include <pthread.h>
#include <unistd.h>

#include "uncancelled.hpp"

namespace pinning::omp {

namespace {

// A list that needs no memory, for threads begin where none may be left. Held over a fork.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Stack* first = nullptr;
pthread_t main_thread;
bool main_is_known = false;

Range stack_of(pthread_t thread) noexcept {
  pthread_attr_t attributes;
  if (pthread_getattr_np(thread, &attributes) != 0) return {};
  void* start = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &start, &size);
  pthread_attr_destroy(&attributes);
  return range_of(start, size);
}

void lock() { pthread_mutex_lock(&mutex); }
void unlock() { pthread_mutex_unlock(&mutex); }

[[gnu::constructor]] void begin() {
  pthread_atfork(lock, unlock, unlock);
  main_is_known = gettid() == getpid();
  if (main_is_known) main_thread = pthread_self();
}

}  // namespace

Stack::Stack() noexcept : range_(stack_of(pthread_self())) {
  lock();
  next_ = first;
  if (next_ != nullptr) next_->previous_ = this;
  first = this;
  unlock();
}

Stack::~Stack() {
  lock();
  (previous_ != nullptr ? previous_->next_ : first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  unlock();
}

bool on_a_stack(Range const& range) noexcept {
  Uncancelled const uncancelled;  // the first time reads a file
  static Range const main_stack = main_is_known ? stack_of(main_thread) : Range{};
  if (main_stack.meets(range)) return true;
  lock();
  bool found = false;
  for (Stack const* each = first; each != nullptr && !found; each = each->next_) found = each->range_.meets(range);
  unlock();
  return found;
}

}  // namespace pinning::omp
