// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "locker.hpp"

namespace pinning {

/// What a map knows of one region, as of one instant.
struct Region {
  Address start;
  std::uint64_t size;        // bytes that are locked
  std::uint64_t whole;       // bytes of the whole lock: `size`, unless the region grows or was cut short
  Address device_ptr;        // of `start`
  std::uint64_t piece;       // vendor calls have locked multiples of so many bytes; `size` if one has locked it all
  std::uint32_t references;  // locks held; 0 while it is idle
  bool external;             // pinned by another owner: never unlocked by this map
  bool registered;           // by `register_pinned`; external as well
  bool watched;              // the kernel reports when its memory goes away
  bool idle;                 // without a lock, but still registered with the vendor
  Coherence coherence;
  std::uint64_t serial;      // of this entry of the map only, now and ever; a new one when it becomes idle

  Address device_ptr_of(Address ptr) const noexcept { return device_ptr + (ptr - start); }

  /// Whether no border between two pieces can be inside this range of its bytes.
  bool in_one_piece(Address ptr, std::uint64_t bytes) const noexcept {
    return (ptr - start) / piece == (ptr - start + (bytes - 1)) / piece;
  }
};

/// One lock that a map has counted, and by which it is released, whatever has happened to the region meanwhile.
struct Hold {
  Address ptr;
  Address device_ptr;    // of `ptr`
  std::uint64_t serial;  // of the region

  friend bool operator==(Hold const&, Hold const&) = default;
};

/// The pages [first, end), counted from the one in which a region starts: a record has no room for more.
struct Pages {
  static constexpr unsigned page_bits = 12;
  std::uint32_t first, end;

  /// The pages of a region that are wholly in [start, end): a page that is gone only in part still exists.
  static Pages of(Address region, std::uint64_t size, Address start, Address end) noexcept {
    Address const base = region >> page_bits, last = (region + (size - 1)) >> page_bits;
    Address const after = std::min(((end - 1) >> page_bits) + (end % (1 << page_bits) == 0), last + 1);
    Address const before = std::min(std::max((start + ((1 << page_bits) - 1)) >> page_bits, base), after);
    return {number(before - base), number(after - base)};
  }
  static Pages unpack(std::uint64_t word) noexcept {
    return {static_cast<std::uint32_t>(word), static_cast<std::uint32_t>(word >> 32)};
  }
  std::uint64_t pack() const noexcept { return std::uint64_t{end} << 32 | first; }
  /// The union; of parts that do not touch, the larger one, because what is between them still exists.
  Pages with(Pages other) const noexcept {
    if (other.end < first || end < other.first) return end - first < other.end - other.first ? other : *this;
    return {std::min(first, other.first), std::max(end, other.end)};
  }
  Span of_region(Address region) const noexcept {
    Address const base = region >> page_bits;
    return {(base + first) << page_bits, (base + end) << page_bits};
  }

 private:
  static std::uint32_t number(std::uint64_t pages) noexcept {
    return static_cast<std::uint32_t>(std::min<std::uint64_t>(pages, ~std::uint32_t{0}));
  }
};

/// What a map's page table stores with each region. It changes under the map's mutex; `read` needs none.
struct Record {
  /// Growing: the first `held` bytes are locked, found and counted, while the thread that entered it locks the rest.
  /// Invalidated: the memory is gone, and the vendor has yet to unlock it.
  enum class State : std::uint8_t { entering, growing, locked, leaving, half_unlocked, invalidated, idle };
  static constexpr std::uint8_t external = 1;
  static constexpr std::uint8_t registered = 2;
  static constexpr std::uint8_t invalidated = 4;  // some or all of it is gone; `held` has the `Pages`
  static constexpr std::uint8_t ending = 8;       // no more pieces are to be locked
  static constexpr std::uint8_t watched = 16;     // the map's watcher reports when memory goes away
  static constexpr std::uint8_t kept = 32;        // the last unlock makes it idle

  std::atomic<Address> device_ptr;
  std::atomic<std::uint64_t> piece;  // 0: one call
  std::atomic<std::uint64_t> held;   // bytes from the start that lookups find: all, unless it grows or was cut short
  std::atomic<std::uint64_t> serial;
  std::atomic<std::uint32_t> references;
  std::atomic<State> state;
  std::atomic<std::uint8_t> flags;
  std::atomic<Coherence> coherence;

  bool has(std::uint8_t flag) const noexcept { return (flags.load(std::memory_order_relaxed) & flag) != 0; }
  void set(std::uint8_t flag) noexcept {
    flags.store(flags.load(std::memory_order_relaxed) | flag, std::memory_order_release);
  }

  /// Whether a vendor call is in progress for it.
  bool in_transit() const noexcept {
    State const now = state.load(std::memory_order_relaxed);
    return now == State::entering || now == State::growing || now == State::leaving;
  }
  bool is_invalidated() const noexcept { return has(invalidated); }
  bool is_growing() const noexcept { return state.load(std::memory_order_relaxed) == State::growing; }
  /// Whether locks may be counted in it, and lookups find it.
  static constexpr bool is_shown(State state) noexcept { return state == State::locked || state == State::growing; }
  /// Whether it is registered without a lock: an idle region, or what a refused unlock has left of one.
  bool is_idle() const noexcept {
    State const now = state.load(std::memory_order_relaxed);
    return now == State::idle || (now == State::half_unlocked && references.load(std::memory_order_relaxed) == 0);
  }
  /// Whether its owner may have unpinned it without the map's knowing.
  bool of_others() const noexcept { return flags.load(std::memory_order_relaxed) == external; }
  /// Copy everything but the bounds of the entry; returns whether lookups find the region, `idle_too`: also an idle
  /// one. The state is read first, so that what the map stores before it is seen as well, and again at the end: if the
  /// region has ceased to be shown, `held` may have the pages that are gone, and the count may be that of no lock.
  bool read(Region& region, bool idle_too = false) const noexcept {
    auto const is_wanted = [&](State now) { return is_shown(now) || (idle_too && now == State::idle); };
    bool const found = is_wanted(state.load(std::memory_order_acquire));
    region.size = held.load(std::memory_order_acquire);
    region.device_ptr = device_ptr.load(std::memory_order_acquire);
    region.piece = piece.load(std::memory_order_acquire);
    region.references = references.load(std::memory_order_acquire);
    std::uint8_t const what = flags.load(std::memory_order_acquire);
    region.external = (what & external) != 0;
    region.registered = (what & registered) != 0;
    region.watched = (what & watched) != 0;
    region.coherence = coherence.load(std::memory_order_acquire);
    region.serial = serial.load(std::memory_order_acquire);
    State const now = state.load(std::memory_order_acquire);
    region.idle = now == State::idle;
    if (region.idle) region.references = 0;
    return found && is_wanted(now);
  }
};

}  // namespace pinning
