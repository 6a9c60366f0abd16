// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <pinning/memory_ranges.hpp>

namespace pinning {

namespace {

/// Questions about one address while others lock and unlock it; then its copy is left to the vendor.
constexpr int most_looks = 16;

/// Whether the owner may have unpinned the region without the map's knowledge.
bool is_of_others(Region const& region) noexcept { return region.external && !region.registered; }

MemoryRange range_of(Region const& region) noexcept {
  return {region.start, region.start + region.size, MemoryRange::Kind::locked, region.device_ptr, region.piece};
}

/// The end of the piece around `ptr` of a region that is growing: no copy may cross it, because one of the pieces may be
/// locked by then.
Address border_after(Region const& region, Address ptr) noexcept {
  return region.start + std::min(region.whole, ((ptr - region.start) / region.piece + 1) * region.piece);
}

}  // namespace

MemoryRanges::~MemoryRanges() {
  for (Hold const& hold : holds_) {
    try {
      map_.unlock(hold);
    } catch (...) {
    }
  }
}

MemoryRange MemoryRanges::of(Address ptr, Address limit) {
  auto const after = std::upper_bound(ranges_.begin(), ranges_.end(), ptr,
                                      [](Address address, MemoryRange const& range) { return address < range.start; });
  if (after != ranges_.begin() && std::prev(after)->holds(ptr)) return *std::prev(after);
  if (auto const range = locked(ptr)) return *ranges_.insert(after, *range);
  map_.drain_invalidations();  // otherwise the vendor may still report memory as locked that is gone
  Gap const unlocked = gap(ptr, limit);
  MemoryRange const pageable{ptr, unlocked.end, MemoryRange::Kind::pageable};  // not stored: too many, each of one item
  if (unlocked.in_region) return pageable;
  auto const info = device_.memory_info(ptr);
  if (!info) return pageable;
  if (info->kind != MemoryKind::host) {
    MemoryRange const range{info->base, info->base + info->size, MemoryRange::Kind::device, info->base, info->size};
    return *ranges_.insert(after, range);
  }
  auto const range = pinned(ptr);
  return range ? *ranges_.insert(after, *range) : pageable;
}

MemoryRange MemoryRanges::of_host(Address ptr, Address limit, std::uint64_t ask_from) {
  if (auto const range = locked(ptr)) return *range;
  map_.drain_invalidations();  // otherwise the vendor may still report memory as locked that is gone
  Gap const unlocked = gap(ptr, limit);
  if (!unlocked.in_region && unlocked.end - ptr >= ask_from) {
    if (auto range = pinned(ptr)) {
      range->end = std::min(range->end, unlocked.end);
      return *range;
    }
  }
  return {ptr, unlocked.end, MemoryRange::Kind::pageable};
}

/// Hold the region that contains `ptr`; idle regions too, because the vendor has them locked.
std::optional<MemoryRange> MemoryRanges::locked(Address ptr) {
  while (auto const region = map_.find_registered(ptr)) {
    auto const held = hold(*region, ptr);
    if (held && held->serial == region->serial) return range_of(*region);
    if (!held && is_of_others(*region)) break;  // unpinned since
  }
  return std::nullopt;
}

/// The range around `ptr` that others have pinned, or that this process has just locked. What the vendor has said may
/// be over by the time that the range is held, so the map is asked again.
std::optional<MemoryRange> MemoryRanges::pinned(Address ptr) {
  for (int look = 0; look < most_looks; ++look) {
    auto const pinned = device_.is_pinned(ptr);
    if (!pinned) break;
    std::optional<Hold> held;
    try {
      held = keep([&] { return map_.track(ptr, 1); });
    } catch (std::exception const&) {  // the map refuses to hold it, but the vendor knows that it is pinned
      return MemoryRange{pinned->base, pinned->base + pinned->size, MemoryRange::Kind::locked, pinned->device_ptr,
                         pinned->size};
    }
    if (!held) continue;  // unpinned since
    if (auto const region = map_.find_registered(ptr); region && region->serial == held->serial) return range_of(*region);
  }
  return std::nullopt;
}

/// For `ptr`, which is not locked: the next byte that is, or that a vendor's call may be about to lock.
MemoryRanges::Gap MemoryRanges::gap(Address ptr, Address limit) {
  for (Address from = ptr; from < limit;) {
    auto const regions = map_.overlapping(from, limit - from, true, 1);
    if (regions.empty()) break;
    Region const& region = regions.front();
    Address const after = region.start + region.whole;
    if (region.start > ptr) {
      if (!is_of_others(region) || hold(region, region.start)) return {region.start};
    } else if (ptr - region.start >= region.size) {
      return {std::min(limit, border_after(region, ptr)), true};
    }
    from = after;
  }
  return {limit};
}

/// Hold a region; nothing if it is gone or the map is changing.
std::optional<Hold> MemoryRanges::hold(Region const& region, Address ptr) {
  return keep([&] { return is_of_others(region) ? track(region.start, region.size) : map_.try_lock(ptr, 1); });
}

template <class Take>
std::optional<Hold> MemoryRanges::keep(Take&& take) {
  holds_.reserve(holds_.size() + 1);
  auto const held = take();
  if (held) holds_.push_back(*held);
  return held;
}

/// As `PinnedMap::track`, but nothing if that refuses: then the vendor knows whether the range is pinned.
std::optional<Hold> MemoryRanges::track(Address ptr, std::uint64_t size) {
  try {
    return map_.track(ptr, size);
  } catch (std::exception const&) {
    return std::nullopt;
  }
}

}  // namespace pinning
