// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cell.hpp"
#include "line.hpp"
#include "reservation.hpp"

namespace pagetable {

/// The levels of cells: 128 TiB, 1 GiB, 2 MiB, 4 KiB, 256 B, 16 B, 1 B.
inline constexpr int levels = 7;
inline constexpr std::array<unsigned, levels> cell_bits = {47, 30, 21, 12, 8, 4, 0};
inline constexpr std::array<unsigned, levels> node_bits = {17, 17, 9, 9, 4, 4, 4};

/// The cells that share a parent.
struct Node {
  int level;
  CellWord* cells;

  std::size_t width() const noexcept { return std::size_t{1} << node_bits[level]; }
  std::size_t index(Address address) const noexcept { return (address >> cell_bits[level]) & (width() - 1); }
  std::uint64_t cell_size() const noexcept { return std::uint64_t{1} << cell_bits[level]; }
  std::uint32_t offset_in_cell(Address address) const noexcept {
    return static_cast<std::uint32_t>(address & (cell_size() - 1));
  }
  Address first_of_cell(Address address) const noexcept { return address & ~(cell_size() - 1); }
  Address last_of_cell(Address address) const noexcept { return address | (cell_size() - 1); }
  /// Whether no cell is occupied; checks first around `index`, where a region was just removed.
  bool empty_around(std::size_t index) const noexcept {
    std::size_t const line = index & ~std::size_t{15};
    return skip_empty(cells, line, line + 15) == line + 16 && skip_empty(cells, 0, width() - 1) == width();
  }
};

/// Storage of the cells. Below 128 TiB the cells of 1 GiB, 2 MiB and 4 KiB are three flat arrays: a reader locates each
/// from the address alone and waits for one cache miss, not for a chain of them. All other nodes (cells inside a page,
/// addresses above, and all nodes if the system refuses the large reservations) come from a pool, and the split cell
/// above refers to them. Lines come from the pool too. Nothing in the pool ever changes its kind.
class Cells {
 public:
  explicit Cells(bool flat) : pool_(std::size_t{1} << 36, std::size_t{1} << 22) {
    if (!pool_) throw NoAddresses();
    pool_base_ = reinterpret_cast<CellWord*>(pool_.base());
    nodes_[0].take(*this, 0);  // the root: place 0
    if (flat) reserve_flat();
    store(pool_base_, split(root(), 0));  // the low 128 TiB are always split, so searches there begin at 1 GiB cells
    lines_.give(lines_.make(*this));      // the spare one, see replace_line()
  }

  /// Returns all memory. The cells must not be used afterwards.
  void abandon() noexcept {
    release_flat();
    pool_.release();
  }

  // ---- readers ----

  struct Found {
    CellWord const* word;
    Cell cell;  // the value of `word`; never split
    int level;
  };

  /// Finds the smallest cell around `address`. Wait-free: at most seven loads.
  Found find(Address address) const noexcept {
    for (Node node = root();;) {
      CellWord const* const word = node.cells + node.index(address);
      Cell const cell = load(word);
      if (!cell.is_split()) return {word, cell, node.level};
      if (node.level + 1 == levels) return {word, Cell(), node.level};  // this node was reused elsewhere, see release
      node = child(node, cell, address);
    }
  }

  /// The same, unrolled, for the three flat levels, where nearly every search ends: returns `answer(level, cell)`, with
  /// a constant `level`, or `otherwise()` if the search does not end there.
  template <class Answer, class Otherwise>
  [[gnu::always_inline]] auto find_flat(Address address, Answer&& answer, Otherwise&& otherwise) const noexcept {
    if (address >= limit_) [[unlikely]] return otherwise();
    Cell cell = load(flat_word(1, address));
    if (!cell.is_split()) return answer(1, cell);
    cell = load(flat_word(2, address));
    if (!cell.is_split()) return answer(2, cell);
    cell = load(flat_word(3, address));
    if (cell.is_split()) [[unlikely]] return otherwise();
    return answer(3, cell);
  }
  CellWord const* flat_word(int level, Address address) const noexcept {
    return flat_[level] + (address >> cell_bits[level]);
  }

  Line const& line(std::uint32_t place) const noexcept { return *line_at(place); }

  // ---- the writer ----

  Node root() const noexcept { return {0, pool_base_}; }

  /// The node below a split cell of `parent`.
  Node child(Node parent, Cell cell, Address address) const noexcept {
    int const level = parent.level + 1;
    if (is_flat(level, address)) return {level, flat_[level] + first_in_node(level, address)};
    return {level, pool_base_ + cell.place() * granule};
  }

  /// Makes an empty node below a cell of `parent`, and returns the value that splits that cell. Throws std::bad_alloc.
  Cell split(Node parent, Address address) {
    int const level = parent.level + 1;
    if (!is_flat(level, address)) return Cell::split(nodes_[level].take(*this, level));
    reserved_[level].commit(first_in_node(level, address) * sizeof(CellWord), sizeof(CellWord) << node_bits[level]);
    return Cell::split(0);
  }

  /// Frees an empty node to which no cell refers any more. A reader that is still in it finds empty cells or, after the
  /// node is reused, cells of another place, whose regions do not contain its address: both give "absent", correctly.
  void release(Node node, Cell cell, Address address) noexcept {
    if (!is_flat(node.level, address)) nodes_[node.level].give(cell.place());
  }

  /// Makes a line of these entries. Throws std::bad_alloc.
  Cell make_line(Line::Entries const& entries) {
    if (lines_.free.size() < 2) lines_.give(lines_.make(*this));
    return replace_line(entries);
  }
  /// The same, from the spare line that is always kept, for callers that then free another: removal needs no memory.
  Cell replace_line(Line::Entries const& entries) noexcept {
    std::uint32_t const place = lines_.free.back();
    lines_.free.pop_back();
    line_at(place)->write(entries);
    return Cell::line(place);
  }
  void release_line(Cell cell) noexcept { lines_.give(cell.place()); }

  /// Whether a cell of this level may be `whole`: only if its location determines its address. A reader may still be in
  /// a pooled node that has been reused elsewhere, and must then compare bounds.
  bool may_be_whole(int level, Address address) const noexcept { return is_flat(level, address); }

 private:
  static constexpr std::size_t granule = 16;  // cells: the smallest node, and a line
  static constexpr unsigned flat_bits = cell_bits[0];

  /// Allocator of nodes of one size, or of lines, from the pool.
  struct Supply {
    std::vector<std::uint32_t> free;  // a list linked through the nodes would not leave them empty
    std::size_t made = 0;
    std::size_t granules = 1;

    std::uint32_t make(Cells& cells) {
      free.reserve(std::bit_ceil(made + 1));  // so that `give` never throws
      std::size_t const place = cells.used_;
      cells.pool_.commit(place * granule * sizeof(CellWord), granules * granule * sizeof(CellWord));
      cells.used_ += granules;
      made += 1;
      return static_cast<std::uint32_t>(place);
    }
    std::uint32_t take(Cells& cells, int level) {
      granules = (std::size_t{1} << node_bits[level]) / granule;
      if (free.empty()) return make(cells);
      std::uint32_t const place = free.back();
      free.pop_back();
      return place;
    }
    void give(std::uint32_t place) noexcept { free.push_back(place); }
  };

  static std::size_t first_in_node(int level, Address address) noexcept {
    return (address >> cell_bits[level]) & ~((std::size_t{1} << node_bits[level]) - 1);
  }
  bool is_flat(int level, Address address) const noexcept { return level <= 3 && address < limit_; }
  Line* line_at(std::size_t place) const noexcept { return reinterpret_cast<Line*>(pool_base_ + place * granule); }

  void reserve_flat() {
    for (int level = 3; level >= 1; --level) {  // the largest first: only that one may be unavailable
      std::size_t const bytes = sizeof(CellWord) << (flat_bits - cell_bits[level]);
      reserved_[level] = Reservation(bytes, bytes);
      if (!reserved_[level]) return release_flat();
      flat_[level] = reinterpret_cast<CellWord*>(reserved_[level].base());
    }
    limit_ = Address{1} << flat_bits;
  }
  void release_flat() noexcept {
    for (Reservation& each : reserved_) each.release();
  }

  // Fields that readers use, on a cache line that is never written.
  alignas(64) Address limit_ = 0;  // lower addresses are in the flat arrays
  std::array<CellWord*, 4> flat_{};
  CellWord* pool_base_;

  alignas(64) Reservation pool_;
  std::array<Reservation, 4> reserved_;
  std::array<Supply, levels> nodes_;
  Supply lines_;
  std::size_t used_ = 0;  // granules of the pool
};

}  // namespace pagetable
