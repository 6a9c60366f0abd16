// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pinning/lane.hpp>

#include "python_errors.hpp"

namespace pinning {

/// `Event::ask`, with signals handled meanwhile. `interrupted`: what it throws is of a handler, not of the operation.
inline bool ask_and_handle_signals(Event& event, bool block, bool& interrupted) {
  try {
    return event.ask(block, handle_signals);
  } catch (PythonInterrupt const&) {
    interrupted = true;
    throw;
  }
}

}  // namespace pinning
