// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <dlfcn.h>

#include <atomic>

namespace pinning::tool {

using Dlsym = void*(void*, char const*);

/// The next dlsym after this library's own: libc's, or that of another library that replaces it. The version is the
/// oldest, which every libc has.
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

/// The next function of that name after this library's own, or null. Plain `dlsym` could return this library's own: if
/// a library before it replaces `dlsym`, RTLD_NEXT means what comes after that library.
template <class Function>
Function* next_function(char const* name) noexcept {
  return reinterpret_cast<Function*>(next_dlsym()(RTLD_NEXT, name));
}

}  // namespace pinning::tool
