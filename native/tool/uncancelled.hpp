// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pthread.h>

namespace pinning::tool {

/// Between `begin` and `end` this thread is not cancelled: it waits, calls a vendor or writes, or has begun something
/// that only it can end. May be nested.
class Uncancelled {
 public:
  Uncancelled() noexcept { begin(); }
  ~Uncancelled() { end(); }
  Uncancelled(Uncancelled const&) = delete;

  static void begin() noexcept {
    if (depth++ == 0) pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
  }
  static void end() noexcept {
    if (--depth == 0) pthread_setcancelstate(before, nullptr);
  }

 private:
  static inline thread_local int depth = 0, before = PTHREAD_CANCEL_ENABLE;
};

}  // namespace pinning::tool
