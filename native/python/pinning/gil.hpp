// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <Python.h>
#include <unistd.h>

namespace pinning {

/// The GIL, held or not before.
///
/// A daemon thread that asks for it while the interpreter exits never gets it: before Python 3.14 its stack is unwound
/// instead, which C++ on it does not survive. Such a thread stops here, as 3.14 has it, until the process ends.
class Gil {
 public:
  Gil() try : state_(PyGILState_Ensure()) {
  } catch (...) {
    stop();
  }
  ~Gil() {
    if (!PyGILState_Check()) stop();
    PyGILState_Release(state_);
  }
  Gil(Gil const&) = delete;

 private:
  [[noreturn]] static void stop() noexcept {
    for (;;) pause();
  }

  PyGILState_STATE state_;
};

}  // namespace pinning
