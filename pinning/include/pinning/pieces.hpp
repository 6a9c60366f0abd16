// SPDX-License-Identifier: Apache-2.0
// A range locked by several vendor calls, `step` bytes each but for the last.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "errors.hpp"
#include "locker.hpp"

namespace pinning {

/// Unlocks the pieces of the first `held` bytes, the last one first; `held` says how far it got.
inline void unlock_pieces(Locker& locker, Address ptr, std::uint64_t& held, std::uint64_t step) {
  while (held > 0) {
    std::uint64_t const last = (held - 1) / step * step;
    locker.unlock(ptr + last);
    held = last;
  }
}

/// The same where the memory in `gone` is not there any more.
inline void forget_pieces(Locker& locker, Address ptr, std::uint64_t& held, std::uint64_t step, Span gone) {
  while (held > 0) {
    std::uint64_t const last = (held - 1) / step * step;
    locker.forget(ptr + last, gone);
    held = last;
  }
}

/// Locks all pieces or none, and returns the device pointer of the first; `held`, 0 at first, says how many bytes the
/// vendor has locked when it is done.
inline Address lock_pieces(Locker& locker, Address ptr, std::uint64_t size, Wish wish, std::uint64_t step,
                           std::uint64_t& held) {
  Address device_ptr = 0;
  try {
    while (held < size) {
      std::uint64_t const next = std::min(step, size - held);
      Address const piece_ptr = locker.lock(ptr + held, next, wish);
      if (held == 0) device_ptr = piece_ptr;
      std::uint64_t const at = std::exchange(held, held + next);
      if (piece_ptr != device_ptr + at) throw NotContiguous();
    }
  } catch (...) {
    try {
      unlock_pieces(locker, ptr, held, step);
    } catch (...) {  // the first error says more
    }
    throw;
  }
  return device_ptr;
}

}  // namespace pinning
