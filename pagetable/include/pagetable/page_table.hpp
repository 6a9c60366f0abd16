// SPDX-License-Identifier: Apache-2.0
#pragma once

#if __cplusplus < 202002L
#error "pagetable needs C++20: compile with -std=c++20"
#endif

#include <mutex>
#include <optional>
#include <stdexcept>
#include <type_traits>
#include <vector>

#include "cells.hpp"
#include "records.hpp"
#include "region.hpp"

#define PAGETABLE_VERSION "0.1.0"
#define PAGETABLE_VERSION_MAJOR 0
#define PAGETABLE_VERSION_MINOR 1
#define PAGETABLE_VERSION_PATCH 0

namespace pagetable {

/// A range of size 0, or one that wraps past the top of the address space.
class InvalidRange : public std::invalid_argument {
 public:
  InvalidRange() : std::invalid_argument("a range needs at least one byte and must end by 2^64") {}
};

/// A range that shares bytes with a region already in the table.
class Overlap : public std::invalid_argument {
 public:
  explicit Overlap(Region region) : std::invalid_argument("the range overlaps a region of the table"), region(region) {}
  Region region;  // the first region that the range overlaps
};

// Note [PageTable design]
// ~~~~~~~~~~~~~~~~~~~~~~~
// Structures
//   Cell     an aligned address range (128 TiB, 1 GiB, 2 MiB, 4 KiB, 256 B, 16 B or 1 B), as a word of four bytes. The
//            word is 0 if no region overlaps the cell, the region's id if one does, and a reference to a line if two to
//            seven do; if more do, the cell is split into the cells one level down.
//   Line     one cache line: the regions of such a cell, by where they begin.
//   Record   the bounds of a region, a version that is odd while the region is in the table, and the user's `Value`.
//   Below 128 TiB the cells of the three large sizes are flat arrays in reserved address space, located by the address
//   alone; smaller cells and lines come from a pool.
//
// One mutex, for writers: `mutex_` guards all changes. Every structure is made of atomics that readers load.
//
// The life of a region
//   insert   A record is filled. Cells name it, which changes no answer as long as its version is even. The version
//            turns odd: in that instant the region is in the table for every reader.
//   erase    The version turns even: the region has gone. Cells drop it; the record goes to the free list.
//   A region that is exactly one cell ("whole", in tables without values) appears and disappears with the store of that
//   cell: its record's version turns after the cell is stored, and after the cell is cleared.
//
// Why readers need no lock: memory is type-stable (records, lines and nodes are reused only as the same kind, and never
// returned while the table exists), so a stale id or place always leads to something of its kind, and everything read
// there is verified. A record's version is loaded before and after its bounds. If both loads are equal and odd and the
// bounds contain the address, "present" is correct; if the version changed, the region left in that instant, and
// "absent" is correct. Cells and nodes change only so that every region in the table can still be found from wherever a
// reader is. Only a line can be replaced under a reader: a miss there counts only if the cell still names the line and
// the line's version has not changed. So readers write no shared cache line, wait for no writer, and retry only for a
// line; and a writer never waits for readers. In return, a table keeps the memory of its largest size.

/// Finds the region that holds an address: disjoint half-open byte ranges, from one byte to the whole address space.
///
/// `find` and `find_range` take no lock, write nothing, and are correct as of one instant during the call. All other
/// calls but `contains`, `size` and `value` take the table's mutex. A region appears and disappears in one instant for
/// all readers.
///
/// `Value` is what a user keeps with each region: a trivially destructible struct of atomics, at most 40 bytes.
template <class Value = Nothing>
class PageTable {
 public:
  /// `flat = false` omits the large reservations of address space (128 GiB, none of it memory). Tables that would leave
  /// too little of it to the program omit them too.
  explicit PageTable(bool flat = true) : cells_(flat) {}
  PageTable(PageTable const&) = delete;
  PageTable& operator=(PageTable const&) = delete;

  /// Unmaps the table's memory; for a forked child, if other threads of the parent may have been changing the table. It
  /// must not be used afterwards, and need not be destroyed.
  void abandon() noexcept {
    cells_.abandon();
    records_.abandon();
  }

  // ---- readers: no lock, no write ----

  /// The region that holds `address`.
  [[gnu::always_inline]] std::optional<Region> find(Address address) const noexcept {
    return find(address, [](Value const&) {});
  }

  /// `find`, and `look(value)` of that region as of the same instant (it must load the value's atomics with acquire).
  template <class Look>
  [[gnu::always_inline]] std::optional<Region> find(Address address, Look&& look) const noexcept {
    // Three words and a verdict, not an optional, so that everything stays in registers.
    Address start = 0;
    std::uint64_t size = 0;
    Id id = 0;
    Verdict const verdict = cells_.find_flat(
        address,
        [&](int level, Cell cell) __attribute__((always_inline)) {
          return judge(level, cell, address, start, size, id, look);
        },
        [] { return Verdict::unsure; });
    if (verdict == Verdict::present) return Region{start, size, id};
    if (verdict == Verdict::absent) return std::nullopt;
    auto const region = find_anywhere(address, look);
    if (!region) return std::nullopt;
    return Region{region->start, region->size, region->id};
  }

  /// The region that holds every byte of [start, start + size); none if size is 0.
  std::optional<Region> find_range(Address start, std::uint64_t size) const noexcept {
    auto region = find(start);  // gcc keeps a const optional in memory
    return region && size != 0 && region->contains(start, size) ? region : std::nullopt;
  }

  [[gnu::always_inline]] bool contains(Address address) const noexcept { return find(address).has_value(); }

  std::size_t size() const noexcept { return size_.load(std::memory_order_relaxed); }

  /// The value of a region that stays in the table while the caller uses it.
  Value& value(Id id) noexcept { return records_.value(id); }

  // ---- under the mutex ----

  /// Adds [start, start + size); `fill(value)` sets its value (by release stores) before readers can find the region.
  /// Throws InvalidRange, Overlap or std::bad_alloc, with the table unchanged.
  template <class Fill>
  Region insert(Address start, std::uint64_t size, Fill&& fill) {
    check(start, size);
    Address const last = start + (size - 1);
    std::lock_guard const guard(mutex_);
    Node const node = descend(start, last);
    if (auto const region = next(node, start, last)) throw Overlap(*region);
    Id const id = records_.acquire(start, size);
    try {
      fill(records_.value(id));
      add(node, start, last, id);
    } catch (...) {
      drop(cells_.root(), start, last, id);
      records_.release(id);
      throw;
    }
    records_.flip(id);
    size_.store(size_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
    return {start, size, id};
  }
  Region insert(Address start, std::uint64_t size) {
    return insert(start, size, [](Value&) {});
  }

  /// Removes the region that starts at `start` and returns it; none if no region starts there.
  std::optional<Region> remove(Address start) {
    std::lock_guard const guard(mutex_);
    auto const region = find(start);
    if (!region || region->start != start) return std::nullopt;
    erase(*region);
    return region;
  }

  /// The first `most` regions that share a byte with [start, start + size), ascending.
  std::vector<Region> overlapping(Address start, std::uint64_t size, std::size_t most = ~std::size_t{0}) const {
    check(start, size);
    std::vector<Region> found;
    std::lock_guard const guard(mutex_);
    collect(start, start + (size - 1), most, found);
    return found;
  }

  /// Calls `look` with each of these regions, under the table's mutex: `look` must neither wait nor call the table.
  /// Neither allocates nor frees. Returns false, without a call, if another thread has the mutex.
  template <class Look>
  bool try_visit(Address start, std::uint64_t size, Look&& look) const {
    check(start, size);
    std::unique_lock const guard(mutex_, std::try_to_lock);
    if (!guard) return false;
    for (Address const last = start + (size - 1);;) {
      auto const region = next(cells_.root(), start, last);
      if (!region) return true;
      look(*region);
      if (region->last() >= last) return true;
      start = region->last() + 1;
    }
  }

  /// All regions, ascending, as of one instant.
  std::vector<Region> regions() const {
    std::vector<Region> found;
    std::lock_guard const guard(mutex_);
    found.reserve(size());
    collect(0, ~Address{0}, ~std::size_t{0}, found);
    return found;
  }

 private:
  // A value is in the record, so only tables without values can answer from the cell.
  static constexpr bool wholes = std::is_empty_v<Value>;

  static void check(Address start, std::uint64_t size) {
    if (size == 0 || start + (size - 1) < start) throw InvalidRange();
  }

  enum class Verdict { absent, present, unsure };

  /// The answer of a cell that is not split for `address`; unsure if a line does not have it.
  template <class Look>
  [[gnu::always_inline]] Verdict judge(int level, Cell cell, Address address, Address& start, std::uint64_t& size,
                                       Id& id, Look&& look) const noexcept {
    std::uint64_t const cell_size = std::uint64_t{1} << cell_bits[level];
    if (wholes && cell.is_whole()) {
      start = address & ~(cell_size - 1);
      size = cell_size;
      id = cell.id();
      return Verdict::present;
    }
    if (cell.is_region()) {
      id = cell.id();
      return records_.holds(id, address, start, size, look) ? Verdict::present : Verdict::absent;
    }
    if (cell.is_empty()) return Verdict::absent;
    id = cells_.line(cell.place()).candidate(static_cast<std::uint32_t>(address & (cell_size - 1)));
    return records_.holds(id, address, start, size, look) ? Verdict::present : Verdict::unsure;
  }

  template <class Look>
  [[gnu::noinline]] std::optional<Region> find_anywhere(Address address, Look&& look) const noexcept {
    for (;;) {
      auto const [word, cell, level] = cells_.find(address);
      Line const& line = cells_.line(cell.is_line() ? cell.place() : 0);
      std::uint64_t const version = line.version();
      Region region;
      Verdict const verdict = judge(level, cell, address, region.start, region.size, region.id, look);
      if (verdict == Verdict::present) return region;
      if (verdict == Verdict::absent) return std::nullopt;
      // Not on this line: correct if the cell still names the line, and it was not written during the read.
      if (load(word) == cell && version % 2 == 0 && line.version() == version) return std::nullopt;
    }
  }

  /// The lowest node whose cells cover [start, last]: the range overlaps several of them, or one that is not split.
  Node descend(Address start, Address last) const noexcept {
    for (Node node = cells_.root();;) {
      std::size_t const index = node.index(start);
      Cell const cell(node.cells[index]);
      if (index != node.index(last) || !cell.is_split()) return node;
      node = cells_.child(node, cell, start);
    }
  }

  /// The first region with a byte in [start, last], a range within `node`.
  std::optional<Region> next(Node node, Address start, Address last) const noexcept {
    std::size_t const first = node.index(start), end = node.index(last);
    for (std::size_t i = first; (i = skip_empty(node.cells, i, end)) <= end; ++i) {
      Cell const cell(node.cells[i]);
      Address const from = i == first ? start : node.first_of_cell(start) + (i - first) * node.cell_size();
      Address const to = i == end ? last : node.last_of_cell(from);
      if (cell.is_split()) {
        if (auto const region = next(cells_.child(node, cell, from), from, to)) return region;
      } else {
        Line::Entries const tenants = tenants_of(node, cell, from);
        for (std::size_t k = 0; k < tenants.count; ++k) {
          Region const region = records_.bounds(tenants.ids[k]);
          if (region.start <= to && region.last() >= from) return region;
        }
      }
    }
    return std::nullopt;
  }

  void collect(Address start, Address last, std::size_t most, std::vector<Region>& found) const {
    while (found.size() < most) {
      auto const region = next(cells_.root(), start, last);
      if (!region) return;
      found.push_back(*region);
      if (region->last() >= last) return;
      start = region->last() + 1;
    }
  }

  /// The regions in a cell that is neither empty nor split. `address` is any address in the cell.
  Line::Entries tenants_of(Node node, Cell cell, Address address) const noexcept {
    if (cell.is_line()) return cells_.line(cell.place()).entries();
    Line::Entries tenants;
    Address const start = records_.bounds(cell.id()).start, low = node.first_of_cell(address);
    tenants.insert(start > low ? node.offset_in_cell(start) : 0, cell.id());
    return tenants;
  }

  /// Enters `id` in the cells of [start, last], the part of its region within `node`. This changes no answer until the
  /// record is live (or a whole cell is stored). Throws std::bad_alloc with part of it done, which `drop` undoes.
  void add(Node node, Address start, Address last, Id id) {
    std::size_t first = node.index(start), end = node.index(last);
    if (node.cells[first] != 0) {
      add_to_cell(node, start, first == end ? last : node.last_of_cell(start), id);
      if (first++ == end) return;
    }
    if (node.cells[end] != 0) {
      add_to_cell(node, node.first_of_cell(last), last, id);
      if (end-- == first) return;
    }
    Region const region = records_.bounds(id);  // not [start, last], which may be only a part of it
    if (wholes && region.start == node.first_of_cell(region.start) && region.size == node.cell_size() &&
        cells_.may_be_whole(node.level, start)) {
      store(node.cells + first, Cell::whole(id));
    } else {
      store_run(node.cells, first, end, Cell::region(id));
    }
  }

  /// The same for one cell that already has other regions.
  void add_to_cell(Node node, Address start, Address last, Id id) {
    CellWord* const word = node.cells + node.index(start);
    Cell cell(*word);
    if (!cell.is_split()) {
      Line::Entries tenants = tenants_of(node, cell, start);
      if (!tenants.full() && node.level > 0) {
        tenants.insert(node.offset_in_cell(start), id);
        store(word, cells_.make_line(tenants));
        if (cell.is_line()) cells_.release_line(cell);
        return;
      }
      Cell const divided = split(node, start, tenants);
      store(word, divided);  // only now, so that readers see the level below complete
      if (cell.is_line()) cells_.release_line(cell);
      cell = divided;
    }
    add(cells_.child(node, cell, start), start, last, id);
  }

  /// Makes a node, with these tenants, below the cell around `address`. Throws std::bad_alloc with nothing changed.
  Cell split(Node node, Address address, Line::Entries const& tenants) {
    Cell const divided = cells_.split(node, address);
    Node const below = cells_.child(node, divided, address);
    auto const each_tenant = [&](auto&& act) {
      for (std::size_t k = 0; k < tenants.count; ++k) {
        Region const tenant = records_.bounds(tenants.ids[k]);
        Address const low = node.first_of_cell(address), high = node.last_of_cell(address);
        act(tenant.start > low ? tenant.start : low, tenant.last() < high ? tenant.last() : high, tenant.id);
      }
    };
    try {
      each_tenant([&](Address start, Address last, Id id) { add(below, start, last, id); });
    } catch (...) {
      each_tenant([&](Address start, Address last, Id id) { drop(below, start, last, id); });
      cells_.release(below, divided, address);
      throw;
    }
    return divided;
  }

  /// Takes `id` out of those cells of [start, last] that have it, and frees the nodes and lines that become unused.
  void drop(Node node, Address start, Address last, Id id) noexcept {
    std::size_t const first = node.index(start), end = node.index(last);
    drop_from_cell(node, start, first == end ? last : node.last_of_cell(start), id);
    if (first == end) return;
    drop_from_cell(node, node.first_of_cell(last), last, id);
    if (first + 1 < end) store_run(node.cells, first + 1, end - 1, Cell());
  }

  void drop_from_cell(Node node, Address start, Address last, Id id) noexcept {
    CellWord* const word = node.cells + node.index(start);
    Cell const cell(*word);
    if (cell.is_split()) {
      Node const below = cells_.child(node, cell, start);
      drop(below, start, last, id);
      if ((below.level > 1 || word != cells_.root().cells) && below.empty_around(below.index(start))) {
        store(word, Cell());
        cells_.release(below, cell, start);
      }
    } else if (cell.is_line()) {
      Line::Entries tenants = cells_.line(cell.place()).entries();
      if (!tenants.erase(id)) return;
      store(word, tenants.count == 1 ? Cell::region(tenants.ids[0]) : cells_.replace_line(tenants));
      cells_.release_line(cell);
    } else if (cell.is_region() && cell.id() == id) {
      store(word, Cell());
    }
  }

  void erase(Region const& region) noexcept {
    // A whole cell is itself the answer, so it is cleared before its record flips; `insert` too stores it before. A
    // reader with an older value of the cell sees only the record; after the flip, the cell must not say "present".
    bool const whole = cells_.find(region.start).cell.is_whole();
    if (!whole) records_.flip(region.id);
    drop(cells_.root(), region.start, region.last(), region.id);
    if (whole) records_.flip(region.id);
    records_.release(region.id);
    size_.store(size_.load(std::memory_order_relaxed) - 1, std::memory_order_relaxed);
  }

  Cells cells_;
  Records<Value> records_;
  alignas(64) mutable std::mutex mutex_;  // one writer at a time
  std::atomic<std::size_t> size_ = 0;
};

}  // namespace pagetable
