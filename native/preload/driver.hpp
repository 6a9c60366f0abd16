// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver as the program has loaded it: nothing here loads it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pinning::preload {

/// A function of libcuda by its exported name, found by libc's own dlsym; null where the program has not loaded it.
void* driver_symbol(char const* name) noexcept;

/// What is asked of it. Each function is the one whose null stream is the legacy default stream.
struct Driver {
  int (*cuPointerGetAttributes)(unsigned, int*, void**, unsigned long long);
  int (*cuCtxGetCurrent)(void**);
  int (*cuCtxGetId)(void*, unsigned long long*);
  int (*cuStreamGetCtx)(void*, void**);
  int (*cuStreamGetId)(void*, unsigned long long*);
  int (*cuStreamIsCapturing)(void*, int*);
  int (*cuStreamQuery)(void*);
  int (*cuStreamSynchronize)(void*);
  int (*cuThreadExchangeStreamCaptureMode)(int*);
  int (*cuMemcpyAsync)(unsigned long long, unsigned long long, std::size_t, void*);

  /// Null where it lacks one of them, as those before 12.0 do.
  static Driver const* get() noexcept;
};

enum : int { success = 0, invalid_value = 1, not_initialized = 3, not_ready = 600 };

/// The handles of the two default streams.
inline constexpr std::uintptr_t legacy_stream = 1, per_thread_stream = 2;

}  // namespace pinning::preload
