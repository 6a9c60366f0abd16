// SPDX-License-Identifier: Apache-2.0
// What a thread of the host does in the place of a vendor's queue.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <pinning/errors.hpp>
#include <thread>

namespace pinning {

/// Runs `body` on a thread that nobody waits for. What pthread_create says: 0 where it runs.
inline int start_thread(char const* name, std::function<void()> body) {
  auto own = std::make_unique<std::function<void()>>(std::move(body));
  // Signals are for the program's own threads. What the body brings upon itself is not.
  sigset_t all, before;
  sigfillset(&all);
  for (int const own_fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP}) sigdelset(&all, own_fault);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  int const code = pthread_create(
      &thread, nullptr,
      [](void* argument) -> void* {
        std::unique_ptr<std::function<void()>> const body(static_cast<std::function<void()>*>(argument));
        (*body)();
        return nullptr;
      },
      own.get());
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (code != 0) return code;
  own.release();
  pthread_setname_np(thread, name);
  pthread_detach(thread);
  return 0;
}

/// Writes the low `bytes` of `value` `count` times.
inline void fill_bytes(char* to, std::uint32_t value, unsigned bytes, std::uint64_t count) {
  std::uint64_t const size = count * bytes;
  std::uint64_t filled = std::min<std::uint64_t>(bytes, size);
  std::memcpy(to, &value, filled);  // little endian, as all hosts of GPUs are
  while (filled < size) {
    std::uint64_t const step = std::min<std::uint64_t>({filled, size - filled, 64 << 10});
    std::memcpy(to + filled, to, step);
    filled += step;
  }
}

/// Looks at a word until it has reached `value`, at first without a pause and then ever less often. One who finds that
/// another thread needs the processor more lets it go first.
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
