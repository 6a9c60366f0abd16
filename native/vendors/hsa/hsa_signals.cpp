// SPDX-License-Identifier: Apache-2.0
// Locks: `SpareSignals::mutex_` is taken last, for a few nanoseconds, and never held during a vendor call.
#include "hsa_signals.hpp"

namespace pinning::hsa {

Handle SpareSignals::take(std::int64_t value) {
  Handle signal{};
  bool found = false;
  {
    std::lock_guard const guard(mutex_);
    if (!spares_.empty()) {
      signal = spares_.back();
      spares_.pop_back();
      found = true;
    } else {
      if (spares_.capacity() <= made_) spares_.reserve(2 * made_ + 8);  // so that `give` needs no memory
      ++made_;
    }
  }
  if (!found) {
    int const code = runtime_.hsa_signal_create(0, 0, nullptr, &signal);
    if (code != 0) {
      std::lock_guard const guard(mutex_);
      --made_;
    }
    runtime_.check_code(runtime_.hsa_signal_create, code);
  }
  runtime_.hsa_signal_store_screlease(signal, value);
  return signal;
}

void SpareSignals::give(Handle signal) noexcept {
  if (runtime_.started().is_parents()) return;
  std::size_t most;
  {
    std::lock_guard const guard(mutex_);
    spares_.push_back(signal);
    most = most_;
  }
  destroy_beyond(most);
}

void SpareSignals::close() noexcept {
  if (made_ == 0 || runtime_.started().is_parents()) return;
  {
    std::lock_guard const guard(mutex_);
    most_ = 0;
  }
  destroy_beyond(0);
}

void SpareSignals::destroy_beyond(std::size_t count) noexcept {
  for (;;) {
    Handle spare;
    {
      std::lock_guard const guard(mutex_);
      if (spares_.size() <= count) return;
      spare = spares_.back();
      spares_.pop_back();
    }
    int const code = runtime_.hsa_signal_destroy(spare);
    std::lock_guard const guard(mutex_);
    if (code == 0) {
      --made_;
    } else {  // it still exists
      spares_.push_back(spare);
      return;
    }
  }
}

}  // namespace pinning::hsa
