// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace pinning::omp {

using Dlsym = void*(void*, char const*);

/// The dlsym behind this library's own: libc's, or that of another library which answers in its place. The version is the
/// oldest, which each libc has.
inline Dlsym* next_dlsym() noexcept {
#if defined(__x86_64__)
  constexpr char version[] = "GLIBC_2.2.5";
#else
  constexpr char version[] = "GLIBC_2.17";
#endif
  static constinit std::atomic<Dlsym*> known = nullptr;
  Dlsym* next = known.load(std::memory_order_relaxed);
  if (next == nullptr) {
    next = reinterpret_cast<Dlsym*>(dlvsym(RTLD_NEXT, "dlsym", version));
    known.store(next, std::memory_order_relaxed);
  }
  return next;
}

/// The function behind this library's own of that name, or null. By `dlsym` it could be this library's own: where another
/// library before it answers that, RTLD_NEXT is what is behind the other one.
template <class Function>
Function* next_function(char const* name) noexcept {
  return reinterpret_cast<Function*>(next_dlsym()(RTLD_NEXT, name));
}

}  // namespace pinning::omp
