// SPDX-License-Identifier: Apache-2.0
// What is known of a pointer: by us of our own locks and allocations, by the runtime of everyone's.
#pragma once

#include <map>
#include <mutex>
#include <pinning/locker.hpp>
#include <set>

#include "hsa_runtime.hpp"

namespace pinning::hsa {

/// What is locked here, for all devices.
///
/// HSA's locks are the process's, not a device's, and the runtime cannot always tell what is locked: where the kernel
/// driver supports shared virtual memory, hsa_amd_pointer_info knows nothing of a lock. Nor does it count locks reliably:
/// of two locks with one base and different sizes hsa_amd_memory_unlock undoes neither, and says that it has. So no two
/// locks may overlap, and this is where that is known.
class Locks {
 public:
  static Locks& get();

  /// Enters a range before it is locked; false where it shares a byte with another.
  bool enter(Address base, std::uint64_t size);
  void locked(Address base, Address device_ptr);
  /// Begins to unlock the range that starts there, and gives its device pointer: afterwards it leaves, or is `locked`
  /// again. Nothing where no such range is locked.
  std::optional<Address> begin_unlock(Address base);
  void leave(Address base);

  /// The range that holds `ptr`, once it is locked.
  std::optional<Pinned> around(Address ptr);

 private:
  struct Lock {
    std::uint64_t size;
    std::optional<Address> device_ptr;
  };

  std::mutex mutex_;
  std::map<Address, Lock> locks_;
};

/// Device memory, by its first byte, that all GPUs may use which can: asking the runtime for permissions is slow.
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

/// An allocation or a lock: its first byte's address for the host, and for GPUs. `gpu` has it; without one, the host.
struct Range {
  Address host, device;
  std::uint64_t size;
  std::optional<int> gpu;

  bool holds_host(Address ptr) const noexcept { return ptr - host < size; }
  /// Where `ptr` is in it, which is either kind of address.
  std::uint64_t offset(Address ptr) const noexcept { return holds_host(ptr) ? ptr - host : ptr - device; }
};

/// The address by which a GPU reaches bytes, and the agent that they belong to.
struct Reached {
  Address ptr;
  Handle agent;
  bool is_gpu;
};

/// What the runtime says.
PointerInfo pointer_info(Runtime const& runtime, Address ptr);

/// Whether it is pinned, and no GPU's.
bool is_pinned_host(Runtime const& runtime, PointerInfo const& info);

/// What holds the byte at `ptr`, which is the host's address or a GPU's.
std::optional<Range> range_around(Runtime const& runtime, Address ptr);

/// How the engines of a GPU reach these bytes; nothing where they do not, or not all of them.
std::optional<Reached> reach(Runtime const& runtime, Address ptr, std::uint64_t size, int gpu);

}  // namespace pinning::hsa
