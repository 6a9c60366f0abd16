// SPDX-License-Identifier: Apache-2.0
#include "stacks.hpp"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "this_process.hpp"
#include "uncancelled.hpp"

namespace pinning::tool {

namespace {

pthread_key_t current;  // a thread's own Stack, destroyed when the thread ends, for whatever reason
bool key_is_made = false;
pthread_t main_thread;
bool main_is_known = false;
Range main_stack;

/// The locked list of stacks. It needs no memory, because a thread may begin when none is left.
class List {
 public:
  List() noexcept { pthread_mutex_lock(&all.mutex); }
  ~List() { pthread_mutex_unlock(&all.mutex); }
  List(List const&) = delete;

  ThisProcess::Stacks& all = this_process.stacks;
};

Range stack_of(pthread_t thread) noexcept {
  pthread_attr_t attributes;
  if (pthread_getattr_np(thread, &attributes) != 0) return {};
  void* start = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &start, &size);
  pthread_attr_destroy(&attributes);
  return range_of(start, size);
}

[[gnu::constructor]] void begin() {
  Stack::make_key();
  main_is_known = gettid() == getpid();
  if (main_is_known) main_thread = pthread_self();
}

}  // namespace

void Stack::make_key() noexcept {
  static pthread_once_t once = PTHREAD_ONCE_INIT;
  pthread_once(&once, [] { key_is_made = pthread_key_create(&current, end) == 0; });
}

Stack::Stack(pthread_attr_t const* attributes) noexcept {
  make_key();
  pthread_attr_t usual;
  pthread_attr_init(&usual);
  pthread_attr_getstacksize(attributes != nullptr ? attributes : &usual, &size_);
  pthread_attr_destroy(&usual);
}

void Stack::begin() noexcept {
  if (!key_is_made || pthread_setspecific(current, this) != 0) return;
  pthread_mutexattr_t robust;
  pthread_mutexattr_init(&robust);
  pthread_mutexattr_setrobust(&robust, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&life_, &robust);
  pthread_mutexattr_destroy(&robust);
  pthread_mutex_lock(&life_);
  // glibc puts the thread's descriptor at the top of its stack, on ARM below static TLS. pthread_getattr_np would
  // allocate and ask the kernel.
  Address const top = (static_cast<Address>(pthread_self()) | (largest_page - 1)) + 1;
  range_ = {top - std::min<Address>(top, size_ + largest_page), top};
  List const list;
  next_ = list.all.first;
  if (next_ != nullptr) next_->previous_ = this;
  list.all.first = this;
}

void Stack::end(void* stack) noexcept { delete static_cast<Stack*>(stack); }

Stack::~Stack() {
  if (range_.empty()) return;
  {
    List const list;
    bool const is_listed = previous_ != nullptr ? previous_->next_ == this : list.all.first == this;
    if (is_listed) {  // not if a fork has begun another list
      (previous_ != nullptr ? previous_->next_ : list.all.first) = next_;
      if (next_ != nullptr) next_->previous_ = previous_;
    }
  }
  pthread_mutex_unlock(&life_);
}

bool Stack::is_there() const noexcept {
  int const error = pthread_mutex_trylock(&life_);
  if (error == EOWNERDEAD) pthread_mutex_unlock(&life_);
  return error == EBUSY;
}

void learn_main_stack() noexcept {
  if (main_is_known) main_stack = stack_of(main_thread);
}

bool on_a_stack(Range const& range) noexcept {
  Uncancelled const uncancelled;
  thread_local Range const own = stack_of(pthread_self());
  if (main_stack.meets(range) || own.meets(range)) return true;
  List const list;
  for (Stack* each = list.all.first; each != nullptr; each = each->next_) {
    if (each->range_.meets(range) && each->is_there()) return true;
  }
  return false;
}

}  // namespace pinning::tool
