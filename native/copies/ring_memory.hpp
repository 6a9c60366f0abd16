// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pinning/vendor.hpp>

namespace pinning {

class CopyThreads;

/// Pinned memory of a ring: a mapping of our own that the vendor locks, where that is quicker, else memory of the vendor's.
/// Our own stays readable when the context goes in which it was locked.
struct RingMemory {
  Address ptr = 0, shift = 0;  // the host's address, and what is added to it for the device's
  std::uint64_t mapped = 0;    // bytes of our own

  /// Room for its words and so many bytes of blocks. Throws what the vendor throws.
  static RingMemory make(VendorDevice& device, CopyThreads& threads, std::uint64_t blocks);
  /// Throws what the vendor throws: then it is still there.
  void free(VendorDevice& device);
  /// Of our own, that the vendor does not know any more.
  void unmap() noexcept;
};

}  // namespace pinning
