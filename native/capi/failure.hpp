// SPDX-License-Identifier: Apache-2.0
// The status and the text that a call in C returns for the exception that ended it.
#pragma once

#include <pthread.h>

#include <pinning/errors.hpp>
#include <string>
#include <utility>

namespace pinning {

/// The status that a function of a locker or a registrar in C returned, with the text that it set by `pinning_fail`.
struct CError : std::exception {
  CError(pinning_status status, char const* text) : status(status), text(text) {}
  char const* what() const noexcept override { return text.c_str(); }

  pinning_status status;
  std::string text;
};

/// The status of the exception that is being handled; its text becomes this thread's last error.
pinning_status failure() noexcept;

/// Sets this thread's last error.
pinning_status fail(pinning_status status, char const* text) noexcept;

/// How often this thread has set it.
unsigned failures() noexcept;

/// During its lifetime, pthread_cancel of this thread is delayed: it would unwind through noexcept functions, and leave
/// a range that is being locked without an owner.
class Uncancelled {
 public:
  Uncancelled() noexcept { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
  Uncancelled(Uncancelled const&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

/// Runs `body`, which may throw, for a caller that cannot catch.
template <class Body>
pinning_status guarded(Body&& body) noexcept {
  Uncancelled const uncancelled;
  try {
    std::forward<Body>(body)();
    return PINNING_OK;
  } catch (...) {
    return failure();
  }
}

}  // namespace pinning
