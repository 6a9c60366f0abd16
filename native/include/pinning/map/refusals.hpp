// SPDX-License-Identifier: Apache-2.0
// Why a map refuses a range. A part of pinned_map.hpp, which includes it.
#pragma once

namespace pinning {

inline void PinnedMap::check(Address ptr, std::uint64_t size) {
  if (ptr == 0) throw InvalidRange("the range begins at the null pointer, where no memory is");
  if (size == 0) throw InvalidRange("the range at " + describe(ptr) + " has 0 bytes; give at least one");
  if (ptr + (size - 1) < ptr) {
    throw InvalidRange("the range of " + std::to_string(size) + " bytes at " + describe(ptr) +
                       " runs past the top of the address space");
  }
}

inline StillLocked PinnedMap::not_fine(Address start, std::uint64_t size, Coherence coherence) {
  return StillLocked("the region " + describe(start, size) +
                     (coherence == Coherence::coarse
                          ? " is locked coarse-grained, so that a lock inside it cannot be coherent; unlock it "
                            "first, or lock with coherent=None"
                          : " is pinned by someone else, and nobody knows whether it is coherent; lock with "
                            "coherent=None, or have its owner unpin it first"));
}

/// If the region is `locked`, throw why `count_existing` refused a lock inside it.
inline void PinnedMap::refuse_inside(pagetable::Region const& region) {
  Record const& record = table_.value(region.id);
  if (record.state.load(std::memory_order_relaxed) != State::locked) return;
  if (std::uint64_t const held = record.held.load(std::memory_order_relaxed); held < region.size) {
    throw StillLocked("the region " + describe(region.start, region.size) +
                      " was cut short, for others hold locks in " + "the first " + std::to_string(held) +
                      " bytes of it; unlock these first");
  }
  if (record.references.load(std::memory_order_relaxed) == most_references) {
    throw LockLimit("the region " + describe(region.start, region.size) + " has " + std::to_string(most_references) +
                    " locks, and no more are counted; unlock some");
  }
  throw not_fine(region.start, region.size, record.coherence.load(std::memory_order_relaxed));
}

/// Throw why the region, which no thread is changing, forbids a lock or a registration of the range.
inline void PinnedMap::refuse(Address ptr, std::uint64_t size, pagetable::Region const& region) {
  Record const& record = table_.value(region.id);
  if (record.state.load(std::memory_order_relaxed) == State::half_unlocked) {
    throw StillLocked("the region " + describe(region.start, region.size) +
                      " is half unlocked, because the vendor refused; unlock it again first");
  }
  Span const wanted{ptr, ptr + size}, named{region.start, region.end()};
  Span all = covering(wanted, named);
  std::size_t more = 0;
  for (auto const& other : table_.overlapping(ptr, size)) {
    Record const& met = table_.value(other.id);
    if (other.id == region.id || met.is_idle() || met.of_others()) continue;
    all = covering(all, {other.start, other.end()});
    ++more;
  }
  By const by = record.of_others() ? By::others : record.has(Record::registered) ? By::owner : By::locks;
  throw PartialOverlap(wanted, named, by, all, more);
}

}  // namespace pinning
