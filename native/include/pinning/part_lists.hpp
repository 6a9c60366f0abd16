// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "budget.hpp"
#include "process.hpp"
#include "vendor.hpp"

namespace pinning {

/// Memory from which the device reads the part lists of batches: HOST memory of the device, reused by later batches.
///
/// Locks: `mutex_` guards `spares_`, and is never held during a vendor call.
class PartLists {
 public:
  /// Bytes that a warp moves at a time; larger parts are cut.
  static constexpr std::uint64_t part_bytes = 16 << 10;

  struct Room {
    CopyItem* parts = nullptr;
    Address device_ptr = 0;
    std::uint64_t count = 0;
  };

  /// `device` must outlive this.
  explicit PartLists(VendorDevice& device) : device_(device) {}

  /// Room for at least `count` parts. Throws what the vendor throws.
  Room take(std::uint64_t count) {
    Room const found = spare(count);
    return found.parts != nullptr ? found : make(std::bit_ceil(std::max(count, least)));
  }

  /// Take back room that no device reads any more. Does nothing in a forked child: the room belongs to the parent.
  void give(Room const& room) noexcept {
    if (room.parts == nullptr || is_parents(made_in_)) return;
    std::lock_guard const guard(mutex_);
    try {
      spares_.emplace(room.count, room);
    } catch (...) {  // a destructor calls this: the room stays allocated
    }
  }

  /// Free the spare room; returns the number of bytes. Throws what the vendor throws; the rest stays.
  std::uint64_t trim() {
    std::uint64_t bytes = 0;
    for (Room room = spare(0); room.parts != nullptr; room = spare(0)) {
      try {
        device_.free(reinterpret_cast<Address>(room.parts), MemoryKind::host);
      } catch (...) {
        give(room);
        throw;
      }
      bytes += room.count * sizeof(CopyItem);
    }
    return bytes;
  }

 private:
  static constexpr std::uint64_t least = 4096;

  Room spare(std::uint64_t count) {
    std::lock_guard const guard(mutex_);
    auto const found = spares_.lower_bound(count);
    if (found == spares_.end()) return {};
    Room const room = found->second;
    spares_.erase(found);
    return room;
  }
  Room make(std::uint64_t count) {
    std::uint64_t const bytes = count * sizeof(CopyItem);
    Address const ptr =
        process_budget().with_room(bytes, [&] { return device_.allocate(bytes, MemoryKind::host); });
    try {
      auto const pinned = device_.is_pinned(ptr);
      return {reinterpret_cast<CopyItem*>(ptr), pinned ? pinned->device_ptr + (ptr - pinned->base) : ptr, count};
    } catch (...) {
      device_.free(ptr, MemoryKind::host);
      throw;
    }
  }

  VendorDevice& device_;
  unsigned const made_in_ = generation();
  std::mutex mutex_;
  std::multimap<std::uint64_t, Room> spares_;  // by count
};

/// Parts in memory from which the device's kernel reads them. Destroy it only when no device reads it any more.
class PartList {
 public:
  explicit PartList(PartLists& lists) : lists_(&lists) {}
  PartList(PartList&& other) noexcept
      : lists_(other.lists_), room_(std::exchange(other.room_, {})), size_(std::exchange(other.size_, 0)),
        bytes_(other.bytes_), bits_(other.bits_) {}
  ~PartList() { lists_->give(room_); }

  /// Make room for `count` parts. Throws what the vendor throws; then the list is unchanged.
  void reserve(std::uint64_t count) {
    if (count <= room_.count) return;
    PartLists::Room const larger = lists_->take(count);
    if (size_ > 0) std::memcpy(larger.parts, room_.parts, size_ * sizeof(CopyItem));
    lists_->give(std::exchange(room_, larger));
  }
  void push_back(CopyItem const& part) {
    if (size_ == room_.count) reserve(2 * size_ + 1);
    room_.parts[size_++] = part;
    bytes_ += part.size;
    bits_ |= part.dst | part.src | part.size * 8;
  }

  std::uint64_t size() const noexcept { return size_; }
  std::uint64_t bytes() const noexcept { return bytes_; }  // of all parts
  /// Whether all addresses are multiples of 128 bytes, and all sizes of 16.
  bool aligned() const noexcept { return bits_ % 128 == 0; }
  CopyItem const* begin() const noexcept { return room_.parts; }
  CopyItem const* end() const noexcept { return room_.parts + size_; }
  Address device_ptr() const noexcept { return room_.device_ptr; }

 private:
  PartLists* lists_;
  PartLists::Room room_;
  std::uint64_t size_ = 0, bytes_ = 0, bits_ = 0;
};

}  // namespace pinning
