// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pinning/lane.hpp>

#include "python_errors.hpp"

namespace pinning {

/// Call what waits. `interrupted`: what it throws is of a signal's handler, not of the work.
template <class Wait>
auto wait_unless(bool& interrupted, Wait wait) {
  try {
    return wait();
  } catch (PythonInterrupt const&) {
    interrupted = true;
    throw;
  }
}

/// `Event::ask`, `Lane::synchronize`, `Lane::drain` and `Lane::close`, with signals handled meanwhile.
inline bool ask_and_handle_signals(Event& event, bool block, bool& interrupted) {
  return wait_unless(interrupted, [&] { return event.ask(block, handle_signals); });
}
inline void synchronize_and_handle_signals(Lane& lane, bool& interrupted) {
  wait_unless(interrupted, [&] { lane.synchronize(handle_signals); });
}
inline void drain_and_handle_signals(Lane& lane, bool& interrupted) {
  wait_unless(interrupted, [&] { lane.drain(handle_signals); });
}
inline void close_and_handle_signals(Lane& lane, bool& interrupted) {
  wait_unless(interrupted, [&] { lane.close(handle_signals); });
}

}  // namespace pinning
