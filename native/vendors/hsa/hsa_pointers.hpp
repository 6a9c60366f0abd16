// SPDX-License-Identifier: Apache-2.0
// Information about pointers: kept here for this library's locks and allocations, else from the runtime.
#pragma once

#include <map>
#include <mutex>
#include <pinning/locker.hpp>
#include <set>

#include "hsa_runtime.hpp"

namespace pinning::hsa {

/// The ranges locked by this library, for all devices.
///
/// HSA's locks belong to the process, not to a device, and the runtime cannot always report them: if the kernel driver
/// supports shared virtual memory, hsa_amd_pointer_info does not know locks. Nor does the runtime count locks reliably:
/// of two locks with one base and different sizes, hsa_amd_memory_unlock undoes neither, and reports success. So no two
/// locks may overlap, which this class ensures.
class Locks {
 public:
  static Locks& get();

  /// Enters a range before it is locked; false if it overlaps another.
  bool enter(Address base, std::uint64_t size);
  void locked(Address base, Address device_ptr);
  /// Begins to unlock the range that starts at `base`, and returns its device pointer; the caller then calls `leave`,
  /// or `locked` again. Nothing if no such range is locked.
  std::optional<Address> begin_unlock(Address base);
  void leave(Address base);

  /// The locked range that contains `ptr`.
  std::optional<Pinned> around(Address ptr);

 private:
  struct Lock {
    std::uint64_t size;
    std::optional<Address> device_ptr;
  };

  std::mutex mutex_;
  std::map<Address, Lock> locks_;
};

/// Device allocations, by first byte, that all GPUs able to reach them may access: asking the runtime for that is slow.
class PeerMemory {
 public:
  static PeerMemory& get();

  void add(Address ptr);
  bool remove(Address ptr);
  bool has(Address ptr);

 private:
  std::mutex mutex_;
  std::set<Address> all_;
};

/// An allocation or a lock: its first byte's host address and GPU address. Without `gpu`, it is memory of the host.
struct Range {
  Address host, device;
  std::uint64_t size;
  std::optional<int> gpu;

  bool holds_host(Address ptr) const noexcept { return ptr - host < size; }
  /// The offset of `ptr`, which is either kind of address.
  std::uint64_t offset(Address ptr) const noexcept { return holds_host(ptr) ? ptr - host : ptr - device; }
};

/// The address by which a GPU reaches memory, and the agent to which it belongs.
struct Reached {
  Address ptr;
  Handle agent;
  bool is_gpu;
};

/// The runtime's information about `ptr`.
PointerInfo pointer_info(Runtime const& runtime, Address ptr);

/// Whether it is pinned host memory.
bool is_pinned_host(Runtime const& runtime, PointerInfo const& info);

/// The range that contains the byte at `ptr`, a host or GPU address.
std::optional<Range> range_around(Runtime const& runtime, Address ptr);

/// How the engines of a GPU reach these bytes; nothing if they cannot reach all of them.
std::optional<Reached> reach(Runtime const& runtime, Address ptr, std::uint64_t size, int gpu);

}  // namespace pinning::hsa
