// SPDX-License-Identifier: Apache-2.0
// Memory that others have pinned. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

inline void PinnedMap::register_pinned(Address ptr, std::uint64_t size, Address device_ptr) {
  check(ptr, size);
  if (device_ptr + (size - 1) < device_ptr) throw InvalidRange("the device's range " + describe(device_ptr, size) + " passes 2^64");
  await_invalidations(ptr, size);
  Watching watching(*this, ptr, size);
  std::unique_lock guard(mutex_);
  for (;;) {
    if (!await_outcomes(guard, ptr, size)) continue;
    auto const first = first_overlapping(ptr, size);
    if (!first) break;
    if (!evict(guard, *first)) refuse(ptr, size, *first);
  }
  Id const id = enter(ptr, size, 0);
  watching.becomes(id);
  publish(id, {.device_ptr = device_ptr, .flags = external | registered, .coherence = external_coherence()}, size);
}

inline void PinnedMap::unregister(Address ptr) {
  if (is_parents()) return;
  await_invalidations();
  std::unique_lock guard(mutex_);
  while (!await_outcomes(guard, ptr, 1)) {  // another thread may be removing it
  }
  auto region = table_.find(ptr);
  if (!region || !table_.value(region->id).has(registered) || table_.value(region->id).is_invalidated()) {
    throw NotLocked("no registered region holds " + describe(ptr));
  }
  Record const& record = table_.value(region->id);
  std::uint32_t const held = record.references.load(std::memory_order_relaxed);
  if (held != 0) {
    throw StillLocked("the registered region " + describe(region->start, region->size) + " is still locked " +
                      std::to_string(held) + " time(s); unlock it first");
  }
  leave(guard, *region);
}

inline std::vector<Region> PinnedMap::refresh() {
  std::vector<Region> gone = regions();
  std::erase_if(gone, [&](Region const& region) {
    if (!region.external || region.registered) return true;
    return locker_.is_pinned(region.start) == Pinned{region.start, region.size, region.device_ptr};
  });
  std::unique_lock guard(mutex_);
  std::erase_if(gone, [&](Region const& region) { return !drop(guard, region.start, region.serial); });
  return gone;
}

/// If a region is of others and not the `confirmed` one, ask the vendor, with the mutex released, whether it is still
/// pinned: it is removed, or becomes the confirmed one. False if there was nothing to ask.
inline bool PinnedMap::confirm(std::unique_lock<std::mutex>& guard, pagetable::Region const& region,
                               std::uint64_t& confirmed) {
  Record const& record = table_.value(region.id);
  std::uint64_t const serial = serial_of(region);
  if (!record.of_others() || serial == confirmed) return false;
  Pinned const entered{region.start, region.size, record.device_ptr.load(std::memory_order_relaxed)};
  guard.unlock();
  bool const still = locker_.is_pinned(region.start) == entered;
  guard.lock();
  if (!still) drop(guard, region.start, serial);
  confirmed = serial;
  return true;
}

/// Remove a region of others, whatever its count; false if it no longer exists, or another thread is removing it.
inline bool PinnedMap::drop(std::unique_lock<std::mutex>& guard, Address start, std::uint64_t serial) noexcept {
  auto const region = table_.find(start);
  if (!region || serial_of(*region) != serial || table_.value(region->id).in_transit()) return false;
  leave(guard, *region);
  return true;
}

/// The pinned range of another owner around the start or the end of this one.
inline std::optional<Pinned> PinnedMap::pinned_by_others(Address ptr, std::uint64_t size) {
  auto const pinned = locker_.is_pinned(ptr);
  return pinned ? pinned : locker_.is_pinned(ptr + (size - 1));
}

}  // namespace pinning
