// SPDX-License-Identifier: Apache-2.0
// LLVM's own map of pinned allocations, as a C library that both C++ and Python load. Its CPU "device" locks nothing,
// so only the map is measured. Compiled by clang with `-fopenmp -fopenmp-targets=x86_64-pc-linux-gnu`.
#include <omp.h>

#include <chrono>
#include <cstddef>
#include <cstdint>

extern "C" {

void* llvm_omp_target_lock_mem(void* ptr, std::size_t size, int device);
void llvm_omp_target_unlock_mem(void* ptr, int device);

int llvm_devices() { return omp_get_num_devices(); }

void llvm_lock(std::uint64_t address, std::size_t size) {
  llvm_omp_target_lock_mem(reinterpret_cast<void*>(address), size, 0);
}

void llvm_unlock(std::uint64_t address) { llvm_omp_target_unlock_mem(reinterpret_cast<void*>(address), 0); }

/// Nanoseconds to lock and unlock `size` bytes at an address, over all of `addresses`.
double llvm_pairs(std::uint64_t const* addresses, std::size_t count, std::size_t size) {
  auto const begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < count; ++i) {
    llvm_lock(addresses[i], size);
    llvm_unlock(addresses[i]);
  }
  std::chrono::duration<double, std::nano> const elapsed = std::chrono::steady_clock::now() - begin;
  return elapsed.count() / static_cast<double>(count);
}

}  // extern "C"
