// SPDX-License-Identifier: Apache-2.0
// LLVM's extensions by which a program locks host memory itself, or allocates it locked. If this library is loaded
// before libomptarget, by LD_PRELOAD or link order, the program calls these; libomptarget's are the next functions.
#include "../inside.hpp"
#include "../next_function.hpp"
#include "../output.hpp"
#include "tool.hpp"

namespace {

using pinning::tool::Address;
using pinning::tool::Inside;
using pinning::tool::next_function;
using pinning::tool::range_of;
using pinning::tool::say;
using pinning::tool::openmp::Device;
using pinning::tool::openmp::Tool;

/// The device, if this library locks for it; otherwise libomptarget is called.
Device* known(Tool* tool, int number) {
  Device* const device = tool != nullptr ? tool->devices.find(number) : nullptr;
  return device != nullptr && device->map() != nullptr ? device : nullptr;
}

pinning_status lock(void* ptr, size_t size, int number, void** device_ptr) noexcept {
  Inside const inside;
  try {
    Tool* const tool = Tool::running();
    Device* const device = known(tool, number);
    if (device == nullptr) return PINNING_UNAVAILABLE;
    pinning_status const status = tool->locks(*device).lock(*device, range_of(ptr, size), device_ptr);
    if (status != PINNING_OK) say(std::string("not locked: ") + pinning_last_error());
    return status;
  } catch (std::exception const& error) {
    say(std::string("not locked: ") + error.what());
    return PINNING_NO_MEMORY;
  }
}

bool unlock(void* ptr) noexcept {
  Inside const inside;
  try {
    Tool* const tool = Tool::running();
    return tool != nullptr && tool->unlock(reinterpret_cast<Address>(ptr));
  } catch (std::exception const& error) {
    say(std::string("not unlocked: ") + error.what());
    return false;
  }
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

/// The device's address of `ptr`; null if the range is null, empty, or partly overlaps another lock. If the vendor
/// refuses, libomptarget's function is called, as without this library.
void* llvm_omp_target_lock_mem(void* ptr, size_t size, int device) {
  if (ptr == nullptr || size == 0 || size - 1 > ~reinterpret_cast<Address>(ptr)) return nullptr;
  void* device_ptr = nullptr;
  pinning_status const status = lock(ptr, size, device, &device_ptr);
  if (status == PINNING_OK || status == PINNING_PARTIAL_OVERLAP) return device_ptr;
  auto* const theirs = next_function<void*(void*, size_t, int)>("llvm_omp_target_lock_mem");
  return theirs != nullptr ? theirs(ptr, size, device) : nullptr;
}

void llvm_omp_target_unlock_mem(void* ptr, int device) {
  if (unlock(ptr)) return;
  if (auto* const theirs = next_function<void(void*, int)>("llvm_omp_target_unlock_mem")) theirs(ptr, device);
}

/// Allocate libomptarget's memory and lock it: on CPU devices that is ordinary memory.
void* llvm_omp_target_alloc_host(size_t size, int device) {
  auto* const theirs = next_function<void*(size_t, int)>("llvm_omp_target_alloc_host");
  void *const ptr = theirs != nullptr ? theirs(size, device) : nullptr, *device_ptr = nullptr;
  if (ptr != nullptr && size != 0) lock(ptr, size, device, &device_ptr);
  return ptr;
}

void llvm_omp_target_free_host(void* ptr, int device) {
  if (ptr != nullptr) unlock(ptr);
  if (auto* const theirs = next_function<void(void*, int)>("llvm_omp_target_free_host")) theirs(ptr, device);
}
}
#pragma GCC visibility pop
