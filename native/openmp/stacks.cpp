// SPDX-License-Identifier: Apache-2.0
#include "stacks.hpp"

#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>

#include "uncancelled.hpp"

namespace pinning::omp {

namespace {

// A list that needs no memory, for threads begin where none may be left. Held over a fork.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
Stack* first = nullptr;
pthread_key_t current;  // a thread's own, which the thread's end destroys, however it comes about
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

void Stack::begin() noexcept {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  static bool made = false;
  pthread_once(&once, [] { made = pthread_key_create(&current, end) == 0; });
  if (!made || pthread_setspecific(current, this) != 0) return;
  range_ = stack_of(pthread_self());
  thread_ = gettid();
  lock();
  next_ = first;
  if (next_ != nullptr) next_->previous_ = this;
  first = this;
  unlock();
}

void Stack::end(void* stack) noexcept { delete static_cast<Stack*>(stack); }

Stack::~Stack() {
  if (thread_ == 0) return;
  lock();
  (previous_ != nullptr ? previous_->next_ : first) = next_;
  if (next_ != nullptr) next_->previous_ = previous_;
  unlock();
}

bool Stack::is_there() const noexcept { return syscall(SYS_tgkill, getpid(), thread_, 0) == 0 || errno != ESRCH; }

bool on_a_stack(Range const& range) noexcept {
  Uncancelled const uncancelled;  // the first time reads a file
  static Range const main_stack = main_is_known ? stack_of(main_thread) : Range{};
  thread_local Range const own = stack_of(pthread_self());
  if (main_stack.meets(range) || own.meets(range)) return true;
  lock();
  bool found = false;
  for (Stack const* each = first; each != nullptr && !found; each = each->next_) {
    found = each->range_.meets(range) && each->is_there();
  }
  unlock();
  return found;
}

}  // namespace pinning::omp
