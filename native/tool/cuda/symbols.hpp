// SPDX-License-Identifier: Apache-2.0
// The functions of the driver that this library replaces, however a program looks them up.
#pragma once

#include <atomic>

namespace pinning::tool::cuda {

// SYMBOL(exported name, name for cuGetProcAddress, first and last version there, whether the null stream is per thread)
#define PINNING_COPY_SYMBOLS(SYMBOL)                                                            \
  SYMBOL(cuMemcpyHtoD_v2, "cuMemcpyHtoD", 3020, newest, false)                                  \
  SYMBOL(cuMemcpyHtoD_v2_ptds, "cuMemcpyHtoD", 3020, newest, true)                              \
  SYMBOL(cuMemcpyDtoH_v2, "cuMemcpyDtoH", 3020, newest, false)                                  \
  SYMBOL(cuMemcpyDtoH_v2_ptds, "cuMemcpyDtoH", 3020, newest, true)                              \
  SYMBOL(cuMemcpy, "cuMemcpy", 4000, newest, false)                                             \
  SYMBOL(cuMemcpy_ptds, "cuMemcpy", 4000, newest, true)                                         \
  SYMBOL(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", 3020, newest, false)                        \
  SYMBOL(cuMemcpyHtoDAsync_v2_ptsz, "cuMemcpyHtoDAsync", 3020, newest, true)                    \
  SYMBOL(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", 3020, newest, false)                        \
  SYMBOL(cuMemcpyDtoHAsync_v2_ptsz, "cuMemcpyDtoHAsync", 3020, newest, true)                    \
  SYMBOL(cuMemcpyAsync, "cuMemcpyAsync", 4000, newest, false)                                   \
  SYMBOL(cuMemcpyAsync_ptsz, "cuMemcpyAsync", 4000, newest, true)                               \
  SYMBOL(cuMemcpy2D_v2, "cuMemcpy2D", 3020, newest, false)                                      \
  SYMBOL(cuMemcpy2D_v2_ptds, "cuMemcpy2D", 3020, newest, true)                                  \
  SYMBOL(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", 3020, newest, false)                    \
  SYMBOL(cuMemcpy2DUnaligned_v2_ptds, "cuMemcpy2DUnaligned", 3020, newest, true)                \
  SYMBOL(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", 3020, newest, false)                            \
  SYMBOL(cuMemcpy2DAsync_v2_ptsz, "cuMemcpy2DAsync", 3020, newest, true)                        \
  SYMBOL(cuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync", 13020, newest, false)      \
  SYMBOL(cuMemcpyWithAttributesAsync_ptsz, "cuMemcpyWithAttributesAsync", 13020, newest, true)  \
  SYMBOL(cuMemcpyBatchAsync, "cuMemcpyBatchAsync", 12080, 12999, false)                         \
  SYMBOL(cuMemcpyBatchAsync_ptsz, "cuMemcpyBatchAsync", 12080, 12999, true)                     \
  SYMBOL(cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", 13000, newest, false)                     \
  SYMBOL(cuMemcpyBatchAsync_v2_ptsz, "cuMemcpyBatchAsync", 13000, newest, true)                 \
  SYMBOL(cuGetProcAddress, "cuGetProcAddress", 11030, 11999, false)                             \
  SYMBOL(cuGetProcAddress_v2, "cuGetProcAddress", 12000, newest, false)

#define PINNING_ENUMERATOR(name, ...) name##_symbol,
enum Symbol : unsigned { PINNING_COPY_SYMBOLS(PINNING_ENUMERATOR) symbols };
#undef PINNING_ENUMERATOR

/// The driver's own functions; null until known.
extern std::atomic<void*> driver_functions[symbols];

/// The driver's own function, looked up if not known yet. If another library of the program defines it, such as a
/// simulator, then that one, which the program would call without ours. Null if the driver is not loaded either.
void* driver_function(Symbol symbol) noexcept;

/// Our function in place of the driver's `function`, which is then remembered, for `cuGetProcAddress`; or `function`.
void* in_place_of(void* function, char const* name, int version, bool per_thread) noexcept;

}  // namespace pinning::tool::cuda
