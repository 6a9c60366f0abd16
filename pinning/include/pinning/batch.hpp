// SPDX-License-Identifier: Apache-2.0
// Many copies at once, sorted by the path that each part of them takes.
#pragma once

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "part_lists.hpp"
#include "pinned_map.hpp"
#include "vendor.hpp"

namespace pinning {

/// Whose memory an address is, and the range around it for which the same holds.
struct Place {
  enum class Kind : std::uint8_t { device, locked, pageable };

  Address start, end;
  Kind kind;
  Address device_ptr = 0;  // of `start`, where a device reaches it
  std::uint64_t piece = 0;  // bytes that one registration spans, from `start`; a single copy crosses no border of these

  bool holds(Address ptr) const noexcept { return start <= ptr && ptr < end; }
  bool holds(Address ptr, std::uint64_t size) const noexcept {
    return start <= ptr && ptr < end && size <= end - ptr;
  }
  Address device_ptr_of(Address ptr) const noexcept { return device_ptr + (ptr - start); }
};

/// The places that one batch of copies has met. Each locked region is held from then on, so that no unlock takes it away
/// under the copies; the vendor is asked once for each range that the map does not know.
class Places {
 public:
  Places(PinnedMap& map, VendorDevice& device) : map_(map), device_(device) {}
  Places(Places const&) = delete;
  /// Gives up what it holds. Nobody is there to hear of a vendor that refuses; its region stays, for `unlock` to try.
  ~Places() {
    for (Hold const& hold : holds_) {
      try {
        map_.unlock(hold);
      } catch (...) {
      }
    }
  }

  /// The place of `ptr`, of which no byte from `limit` on matters. Throws what the vendor throws.
  Place const& of(Address ptr, Address limit) {
    if (last_ < places_.size() && places_[last_].holds(ptr)) return places_[last_];
    auto const after = std::upper_bound(places_.begin(), places_.end(), ptr,
                                        [](Address each, Place const& place) { return each < place.start; });
    if (after != places_.begin() && std::prev(after)->holds(ptr)) {
      last_ = static_cast<std::size_t>(std::prev(after) - places_.begin());
      return places_[last_];
    }
    Place found = look_up(ptr, limit);
    if (found.kind == Place::Kind::pageable) return unknown_ = found;  // too many, and each for one item only
    last_ = static_cast<std::size_t>(after - places_.begin());
    return *places_.insert(after, found);
  }

  /// The place that was found last, if it is one to be kept; else one that holds nothing.
  Place last() const noexcept { return last_ < places_.size() ? places_[last_] : Place{}; }

 private:
  Place look_up(Address ptr, Address limit) {
    while (auto const region = map_.find(ptr)) {
      if (region->external && !region->registered) break;  // it may have been unpinned: the vendor knows
      holds_.reserve(holds_.size() + 1);
      if (auto const hold = map_.try_lock(ptr, 1)) {
        holds_.push_back(*hold);
        return {region->start, region->start + region->size, Place::Kind::locked, region->device_ptr, region->piece};
      }
    }
    if (auto const info = device_.memory_info(ptr)) {
      if (info->kind != MemoryKind::host) {
        return {info->base, info->base + info->size, Place::Kind::device, info->base, info->size};
      }
      if (auto const pinned = device_.is_pinned(ptr)) {
        return {pinned->base, pinned->base + pinned->size, Place::Kind::locked, pinned->device_ptr, pinned->size};
      }
    }
    Address end = limit;
    for (Region const& region : map_.overlapping(ptr, limit - ptr)) {
      if (region.start > ptr) {
        end = region.start;
        break;
      }
    }
    return {ptr, end, Place::Kind::pageable};
  }

  PinnedMap& map_;
  VendorDevice& device_;
  std::vector<Place> places_;  // ascending, none overlaps another
  std::vector<Hold> holds_;
  std::size_t last_ = 0;
  Place unknown_{};
};

/// The parts of a batch, by what moves them.
struct Parts {
  std::vector<Part> by_kernel;      // addresses of the device, also for locked memory of the host
  std::vector<Part> by_engine;      // the copy engines: addresses as they were given
  std::vector<Part> to_device;      // from pageable memory
  std::vector<Part> to_host;        // into pageable memory
  std::vector<Part> on_host;        // between two ends of the host
  std::uint64_t bytes = 0;
};

/// What one batch may use.
struct BatchLimits {
  bool kernel;                      // whether the device has one, and may use it
  std::uint64_t largest_by_kernel;  // bytes of an item; larger ones go by the copy engines
};

/// Sorts item `index` of a batch, split where either end crosses the border of a lock. Throws InvalidRange, which names
/// it, for a range that is none or runs out of a device's memory; what was sorted before stays.
inline void sort_item(Places& dst_places, Places& src_places, std::uint64_t index, Part item,
                      BatchLimits const& limits, Parts& parts) {
  using Kind = Place::Kind;
  auto const refuse = [index](std::string const& why) {
    throw InvalidRange("item " + std::to_string(index) + " of the batch: " + why);
  };
  if (item.size == 0) refuse("its size is 0; a copy needs at least 1 byte");
  for (auto const& [name, ptr] : {std::pair("dst", item.dst), std::pair("src", item.src)}) {
    if (ptr == 0 || ptr + (item.size - 1) < ptr) {
      refuse(std::string(name) + " " + describe(ptr, item.size) + " is no range of memory");
    }
  }
  bool const small = limits.kernel && item.size <= limits.largest_by_kernel;
  parts.bytes += item.size;
  bool first = true, dst_device = false, src_device = false;
  while (item.size > 0) {
    Place const dst = dst_places.of(item.dst, item.dst + item.size);
    Place const src = src_places.of(item.src, item.src + item.size);
    if (std::exchange(first, false)) {
      dst_device = dst.kind == Kind::device, src_device = src.kind == Kind::device;
    } else if (dst_device != (dst.kind == Kind::device) || src_device != (src.kind == Kind::device)) {
      refuse("it runs past the end of an allocation of the device's, with " + std::to_string(item.size) +
             " bytes left at dst " + describe(item.dst, item.size) + ", src " + describe(item.src, item.size));
    }
    std::uint64_t size = std::min({item.size, dst.end - item.dst, src.end - item.src});
    if (!dst_device && !src_device) {
      parts.on_host.push_back({item.dst, item.src, size});
    } else if (dst.kind == Kind::pageable) {
      parts.to_host.push_back({item.dst, item.src, size});
    } else if (src.kind == Kind::pageable) {
      parts.to_device.push_back({item.dst, item.src, size});
    } else if (small) {
      size = std::min(size, PartLists::part_bytes);
      parts.by_kernel.push_back({dst.device_ptr_of(item.dst), src.device_ptr_of(item.src), size});
    } else {
      for (auto const& [place, at] : {std::pair(&dst, item.dst), std::pair(&src, item.src)}) {
        if (place->piece != 0) size = std::min(size, place->piece - (at - place->start) % place->piece);
      }
      parts.by_engine.push_back({item.dst, item.src, size});
    }
    item = {item.dst + size, item.src + size, item.size - size};
  }
}

/// Sorts a whole batch: `count` items, of `sizes[i * size_step]` bytes each.
inline void sort_batch(Places& dst_places, Places& src_places, Address const* dsts, Address const* srcs,
                       std::uint64_t const* sizes, std::uint64_t size_step, std::uint64_t count,
                       BatchLimits const& limits, Parts& parts) {
  (limits.kernel ? parts.by_kernel : parts.by_engine).reserve(count);
  // Most items lie wholly in the places of the item before: a pool of the host's and one of the device's.
  Place dst{}, src{};
  for (std::uint64_t i = 0; i < count; ++i) {
    Part const item{dsts[i], srcs[i], sizes[i * size_step]};
    if (limits.kernel && item.size - 1 < PartLists::part_bytes && dst.holds(item.dst, item.size) &&
        src.holds(item.src, item.size)) {
      parts.by_kernel.push_back({dst.device_ptr_of(item.dst), src.device_ptr_of(item.src), item.size});
      parts.bytes += item.size;
      continue;
    }
    sort_item(dst_places, src_places, i, item, limits, parts);
    dst = dst_places.last(), src = src_places.last();
    bool const one_is_device = dst.kind == Place::Kind::device || src.kind == Place::Kind::device;
    bool const none_is_pageable = dst.kind != Place::Kind::pageable && src.kind != Place::Kind::pageable;
    if (!one_is_device || !none_is_pageable) dst = {};
  }
}

}  // namespace pinning
