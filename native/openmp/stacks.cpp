// SPDX-License-Identifier: Apache-2.0
#include "stacks.hpp"

#include <pthread.h>

namespace pinning::omp {

namespace {

Range this_stack() {
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) != 0) return {};
  void* start = nullptr;
  std::size_t size = 0;
  pthread_attr_getstack(&attributes, &start, &size);
  pthread_attr_destroy(&attributes);
  return range_of(start, size);
}

}  // namespace

void Stacks::add_this_thread() {
  Range const stack = this_stack();
  std::lock_guard const guard(mutex_);
  ends_[stack.start] = stack.end;
}

void Stacks::remove_this_thread() {
  Range const stack = this_stack();
  std::lock_guard const guard(mutex_);
  ends_.erase(stack.start);
}

bool Stacks::meet(Range const& range) {
  std::lock_guard const guard(mutex_);
  auto const next = ends_.lower_bound(range.end);
  return next != ends_.begin() && std::prev(next)->second > range.start;
}

}  // namespace pinning::omp
