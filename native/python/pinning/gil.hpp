// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>
#include <unistd.h>

namespace pinning {

/// Holds the GIL, whether or not the thread held it before.
///
/// A daemon thread that requests it while the interpreter exits never gets it: before Python 3.14 its stack is unwound
/// instead, which C++ frames do not survive; and once the interpreter has ended, a request crashes. Such a thread stops
/// here until the process ends, as in 3.14.
class Gil {
 public:
  Gil() try : state_((stop_if_too_late(), PyGILState_Ensure())) {
  } catch (...) {
    stop();
  }
  ~Gil() {
    if (!PyGILState_Check()) stop();
    stop_if_too_late();
    PyGILState_Release(state_);
  }
  Gil(Gil const&) = delete;

 private:
  /// The main thread, which ends the interpreter, may still request it meanwhile.
  static void stop_if_too_late() noexcept {
    if (!Py_IsInitialized() && gettid() != getpid()) stop();
  }
  [[noreturn]] static void stop() noexcept {
    for (;;) pause();
  }

  PyGILState_STATE state_;
};

}  // namespace pinning
