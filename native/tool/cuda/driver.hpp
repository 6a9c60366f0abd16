// SPDX-License-Identifier: Apache-2.0
// The NVIDIA driver, if the program has loaded it: nothing here loads it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace pinning::tool::cuda {

/// A function of libcuda by its exported name, from libc's own dlsym; null if the program has not loaded libcuda.
void* driver_symbol(char const* name) noexcept;

/// From now on, dlclose does not unload the library that contains `function`, whose address is remembered here.
void keep_library_of(void* function) noexcept;

// FUNCTION(name, arguments...): the functions used here. In each, the null stream is the legacy default stream.
#define PINNING_PRELOAD_FUNCTIONS(FUNCTION)                                      \
  FUNCTION(cuCtxGetCurrent, void**)                                              \
  FUNCTION(cuCtxGetId, void*, unsigned long long*)                               \
  FUNCTION(cuStreamGetCtx, void*, void**)                                        \
  FUNCTION(cuStreamGetId, void*, unsigned long long*)                            \
  FUNCTION(cuStreamIsCapturing, void*, int*)                                     \
  FUNCTION(cuStreamQuery, void*)                                                 \
  FUNCTION(cuStreamSynchronize, void*)                                           \
  FUNCTION(cuThreadExchangeStreamCaptureMode, int*)                              \
  FUNCTION(cuMemcpyAsync, unsigned long long, unsigned long long, std::size_t, void*)

#define PINNING_POINTER(name, ...) int (*name)(__VA_ARGS__);
struct Driver {
  PINNING_PRELOAD_FUNCTIONS(PINNING_POINTER)

  /// Null if the driver lacks one of them, as versions before 12.0 do.
  static Driver const* get() noexcept;
};
#undef PINNING_POINTER

enum : int { success = 0, invalid_value = 1, not_initialized = 3, not_ready = 600 };

/// The handles of the two default streams.
inline constexpr std::uintptr_t legacy_stream = 1, per_thread_stream = 2;

}  // namespace pinning::tool::cuda
