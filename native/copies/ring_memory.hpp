// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <pinning/vendor.hpp>

namespace pinning {

class CopyThreads;

/// Pinned memory of a ring: our own mapping, locked by the vendor, if that is faster, and otherwise the vendor's
/// memory. Our own mapping stays readable after the context in which it was locked is destroyed.
struct RingMemory {
  Address ptr = 0, shift = 0;  // the host address, and the offset from it to the device's
  std::uint64_t mapped = 0;    // bytes of our own mapping; 0 for the vendor's memory

  /// Allocate memory for the words and `blocks` bytes of blocks. Throws what the vendor throws.
  static RingMemory make(VendorDevice& device, CopyThreads& threads, std::uint64_t blocks);
  /// Free the memory. Throws what the vendor throws; the memory is then still allocated.
  void free(VendorDevice& device);
  /// Forget what has gone with its context, and unmap our own mapping. Calls no vendor: others may have memory there.
  void forget() noexcept;
};

}  // namespace pinning
