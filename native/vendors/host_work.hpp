// SPDX-License-Identifier: Apache-2.0
// Work that a host thread does instead of a vendor's queue.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <pinning/errors.hpp>
#include <thread>

namespace pinning {

/// Writes the low `bytes` bytes of `value`, `count` times.
inline void fill_bytes(char* to, std::uint32_t value, unsigned bytes, std::uint64_t count) {
  std::uint64_t const size = count * bytes;
  std::uint64_t filled = std::min<std::uint64_t>(bytes, size);
  std::memcpy(to, &value, filled);  // little-endian, like all hosts with GPUs
  while (filled < size) {
    std::uint64_t const step = std::min<std::uint64_t>({filled, size - filled, 64 << 10});
    std::memcpy(to + filled, to, step);
    filled += step;
  }
}

/// Polls a word until it has reached `value`: at first yields the processor, then sleeps, up to 1 ms at a time.
inline void wait_for_word(Address address, std::uint32_t value) {
  using namespace std::chrono_literals;
  std::atomic_ref const word(*reinterpret_cast<std::uint32_t*>(address));
  auto const is_reached = [&] {
    return static_cast<std::int32_t>(word.load(std::memory_order_acquire) - value) >= 0;
  };
  for (int look = 0; look < 64; ++look) {
    if (is_reached()) return;
    std::this_thread::yield();
  }
  for (auto pause = 20us; !is_reached(); pause = std::min<std::chrono::microseconds>(2 * pause, 1ms)) {
    std::this_thread::sleep_for(pause);
  }
}

inline void write_word(Address address, std::uint32_t value) {
  std::atomic_ref(*reinterpret_cast<std::uint32_t*>(address)).store(value, std::memory_order_release);
}

}  // namespace pinning
