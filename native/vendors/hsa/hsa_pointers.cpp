// SPDX-License-Identifier: Apache-2.0
// Locks: the mutexes of `Locks` and `PeerMemory` are taken last, for one search or change, never during a vendor call.
#include "hsa_pointers.hpp"

namespace pinning::hsa {

Locks& Locks::get() {
  static Locks* const only = new Locks;
  return *only;
}

bool Locks::enter(Address base, std::uint64_t size) {
  std::lock_guard const guard(mutex_);
  auto const after = locks_.lower_bound(base + size);
  if (after != locks_.begin()) {
    auto const& [start, lock] = *std::prev(after);
    if (start + (lock.size - 1) >= base) return false;
  }
  locks_[base] = {size, std::nullopt};
  return true;
}

void Locks::locked(Address base, Address device_ptr) {
  std::lock_guard const guard(mutex_);
  locks_.at(base).device_ptr = device_ptr;
}

std::optional<Address> Locks::begin_unlock(Address base) {
  std::lock_guard const guard(mutex_);
  auto const entry = locks_.find(base);
  return entry == locks_.end() ? std::nullopt : std::exchange(entry->second.device_ptr, std::nullopt);
}

void Locks::leave(Address base) {
  std::lock_guard const guard(mutex_);
  locks_.erase(base);
}

std::optional<Pinned> Locks::around(Address ptr) {
  std::lock_guard const guard(mutex_);
  auto const after = locks_.upper_bound(ptr);
  if (after == locks_.begin()) return std::nullopt;
  auto const& [base, lock] = *std::prev(after);
  if (ptr - base >= lock.size || !lock.device_ptr) return std::nullopt;
  return Pinned{base, lock.size, *lock.device_ptr};
}

PeerMemory& PeerMemory::get() {
  static PeerMemory* const only = new PeerMemory;
  return *only;
}

void PeerMemory::add(Address ptr) {
  std::lock_guard const guard(mutex_);
  all_.insert(ptr);
}

bool PeerMemory::remove(Address ptr) {
  std::lock_guard const guard(mutex_);
  return all_.erase(ptr) != 0;
}

bool PeerMemory::has(Address ptr) {
  std::lock_guard const guard(mutex_);
  return all_.contains(ptr);
}

PointerInfo pointer_info(Runtime const& runtime, Address ptr) {
  PointerInfo info{};
  info.size = sizeof info;
  if (ptr == 0) return info;  // the runtime would refuse null
  int const code = runtime.hsa_amd_pointer_info(reinterpret_cast<void*>(ptr), &info, nullptr, nullptr, nullptr);
  runtime.check_code(runtime.hsa_amd_pointer_info, code);
  return info;
}

bool is_pinned_host(Runtime const& runtime, PointerInfo const& info) {
  if (info.type == HSA_EXT_POINTER_TYPE_LOCKED) return true;
  return info.type == HSA_EXT_POINTER_TYPE_HSA && !runtime.gpu(info.agentOwner);
}

std::optional<Range> range_around(Runtime const& runtime, Address ptr) {
  if (auto const lock = Locks::get().around(ptr)) return Range{lock->base, lock->device_ptr, lock->size, std::nullopt};
  PointerInfo const info = pointer_info(runtime, ptr);
  bool const is_allocated = info.type == HSA_EXT_POINTER_TYPE_HSA;
  if (!is_allocated && info.type != HSA_EXT_POINTER_TYPE_LOCKED) return std::nullopt;
  return Range{reinterpret_cast<Address>(info.hostBaseAddress), reinterpret_cast<Address>(info.agentBaseAddress),
               info.sizeInBytes, is_allocated ? runtime.gpu(info.agentOwner) : std::nullopt};
}

std::optional<Reached> reach(Runtime const& runtime, Address ptr, std::uint64_t size, int gpu) {
  auto const range = range_around(runtime, ptr);
  if (!range || range->offset(ptr) > range->size || size > range->size - range->offset(ptr)) return std::nullopt;
  if (!range->gpu) return Reached{range->device + range->offset(ptr), runtime.cpu, false};
  if (*range->gpu != gpu && !PeerMemory::get().has(range->device)) return std::nullopt;
  return Reached{ptr, runtime.gpus[static_cast<std::size_t>(*range->gpu)], true};
}

}  // namespace pinning::hsa
