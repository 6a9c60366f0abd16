// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include "vendor.hpp"

namespace pinning {

/// Where the device reads the list of a batch's parts: HOST memory of the device, used again by later batches.
///
/// Locks: `mutex_` guards what is spare, and is held during no call of the vendor's.
class PartLists {
 public:
  /// What a warp moves at a time: a part that is larger is cut.
  static constexpr std::uint64_t part_bytes = 16 << 10;

  struct List {
    Part* parts = nullptr;
    Address device_ptr = 0;
    std::uint64_t room = 0;  // parts
  };

  /// `device` must outlive this.
  explicit PartLists(VendorDevice& device) : device_(device) {}

  /// A list with these parts in it. Throws what the vendor throws.
  List take(std::vector<Part> const& parts) {
    List list = spare(parts.size());
    if (list.parts == nullptr) list = make(std::bit_ceil(std::max<std::uint64_t>(parts.size(), least)));
    std::memcpy(list.parts, parts.data(), parts.size() * sizeof(Part));
    return list;
  }

  /// Takes back a list that no device reads any more.
  void give(List const& list) noexcept {
    if (list.parts == nullptr) return;
    std::lock_guard const guard(mutex_);
    try {
      spares_.emplace(list.room, list);
    } catch (...) {  // it stays allocated: nobody is there to hear
    }
  }

  /// Gives back what is spare; returns how many bytes. Throws what the vendor throws: the rest stays.
  std::uint64_t trim() {
    std::uint64_t bytes = 0;
    for (List list = spare(0); list.parts != nullptr; list = spare(0)) {
      try {
        device_.free(reinterpret_cast<Address>(list.parts), MemoryKind::host);
      } catch (...) {
        give(list);
        throw;
      }
      bytes += list.room * sizeof(Part);
    }
    return bytes;
  }

  /// In a child process after fork: these are the parent's.
  void forget() noexcept { new (this) PartLists(device_); }

 private:
  static constexpr std::uint64_t least = 4096;

  List spare(std::uint64_t count) {
    std::lock_guard const guard(mutex_);
    auto const found = spares_.lower_bound(count);
    if (found == spares_.end()) return {};
    List const list = found->second;
    spares_.erase(found);
    return list;
  }
  List make(std::uint64_t room) {
    Address const ptr = device_.allocate(room * sizeof(Part), MemoryKind::host);
    auto const pinned = device_.is_pinned(ptr);
    return {reinterpret_cast<Part*>(ptr), pinned ? pinned->device_ptr + (ptr - pinned->base) : ptr, room};
  }

  VendorDevice& device_;
  std::mutex mutex_;
  std::multimap<std::uint64_t, List> spares_;  // by room
};

}  // namespace pinning
