// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <new>
#include <set>
#include <shared_mutex>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <vector>

#include <pagetable/page_table.hpp>

#if defined(HAVE_UCX)
extern "C" {
#include <ucs/datastruct/pgtable.h>
}
#endif
#if defined(HAVE_CRITNIB)
#include <critnib.h>
#endif

#include "workload.hpp"

/// The compared indexes, behind one interface:
///
///     Index(ranges)     empty, with room for the records that its user must provide
///     insert(i)         adds ranges[i]
///     remove(i)
///     find(address)     an `Answer`
///     by_value          whether the answer comes with its bounds, or as a pointer to a record that has them
namespace contenders {

using workload::Address;
using workload::Range;

/// A measurement uses what it needs; the compiler drops the other loads.
struct Answer {
  std::uint64_t handle = 0;  // an id, or a pointer; 0: absent
  Range range{};
};

/// Ours. Thread-safe.
class PageTable {
 public:
  static std::string name() { return "pagetable"; }
  static constexpr bool by_value = true;
  explicit PageTable(std::span<Range const> ranges) : ranges_(ranges) {}

  void insert(std::size_t i) { table_.insert(ranges_[i].start, ranges_[i].size); }
  void remove(std::size_t i) { table_.remove(ranges_[i].start); }
  [[gnu::always_inline]] Answer find(Address address) const {
    auto region = table_.find(address);  // gcc would keep a const one in memory
    if (!region) return {};
    return {region->id + std::uint64_t{1}, {region->start, region->size}};
  }

 private:
  std::span<Range const> ranges_;
  pagetable::PageTable<> table_;
};

#if defined(HAVE_UCX)
/// UCX's, as its registration cache uses it. No thread safety of its own; the answer is a pointer.
class Ucx {
 public:
  static std::string name() { return "UCX"; }
  static constexpr bool by_value = false;
  explicit Ucx(std::span<Range const> ranges) : regions_(ranges.size()) {
    for (std::size_t i = 0; i < ranges.size(); ++i) {
      Range const range = workload::inward(ranges[i]);
      regions_[i] = {range.start, range.end()};
    }
    check(ucs_pgtable_init(&table_, allocate, release));
  }
  ~Ucx() {
    ucs_pgtable_purge(&table_, [](ucs_pgtable_t const*, ucs_pgt_region_t*, void*) {}, nullptr);
    ucs_pgtable_cleanup(&table_);
  }
  Ucx(Ucx const&) = delete;

  void insert(std::size_t i) { check(ucs_pgtable_insert(&table_, &regions_[i])); }
  void remove(std::size_t i) { check(ucs_pgtable_remove(&table_, &regions_[i])); }
  [[gnu::always_inline]] Answer find(Address address) const {
    auto const* const region = ucs_pgtable_lookup(&table_, address);
    if (region == nullptr) return {};
    return {reinterpret_cast<std::uintptr_t>(region), {region->start, region->end - region->start}};
  }

 private:
  static ucs_pgt_dir_t* allocate(ucs_pgtable_t const*) {
    void* memory = nullptr;
    if (posix_memalign(&memory, std::max(sizeof(void*), UCS_PGT_ENTRY_MIN_ALIGN), sizeof(ucs_pgt_dir_t)) != 0)
      throw std::bad_alloc();
    return static_cast<ucs_pgt_dir_t*>(memory);
  }
  static void release(ucs_pgtable_t const*, ucs_pgt_dir_t* directory) { std::free(directory); }
  static void check(ucs_status_t status) {
    if (status != UCS_OK) throw std::runtime_error("UCX refused a region");
  }

  std::vector<ucs_pgt_region_t> regions_;
  ucs_pgtable_t table_;
};
#endif

#if defined(HAVE_CRITNIB)
/// The map of UMF and PMDK, as its author packages it for Debian. Readers take no lock; the user keeps the records.
class Critnib {
 public:
  static std::string name() { return "critnib"; }
  static constexpr bool by_value = false;
  explicit Critnib(std::span<Range const> ranges) : records_(ranges.begin(), ranges.end()), map_(critnib_new()) {
    if (map_ == nullptr) throw std::bad_alloc();
  }
  ~Critnib() { critnib_delete(map_); }
  Critnib(Critnib const&) = delete;

  void insert(std::size_t i) {
    if (critnib_insert(map_, records_[i].start, &records_[i], 0) != 0)
      throw std::runtime_error("critnib refused a key");
  }
  void remove(std::size_t i) { critnib_remove(map_, records_[i].start); }
  [[gnu::always_inline]] Answer find(Address address) const {
    auto const* const range = static_cast<Range const*>(critnib_find_le(map_, address));
    if (range == nullptr || address - range->start >= range->size) return {};
    return {reinterpret_cast<std::uintptr_t>(range), *range};
  }

 private:
  std::vector<Range> records_;
  critnib* map_;
};
#endif

/// The container in which LLVM's offload runtime keeps its pinned allocations.
class Set {
 public:
  static std::string name() { return "set"; }
  static constexpr bool by_value = true;
  explicit Set(std::span<Range const> ranges) : ranges_(ranges) {}

  void insert(std::size_t i) { set_.insert(ranges_[i]); }
  void remove(std::size_t i) { set_.erase(ranges_[i]); }
  [[gnu::always_inline]] Answer find(Address address) const {
    auto above = set_.upper_bound(Range{address, 0});
    if (above == set_.begin()) return {};
    Range const range = *--above;
    if (address - range.start >= range.size) return {};
    return {range.start, range};
  }

 private:
  struct ByStart {
    bool operator()(Range const& a, Range const& b) const { return a.start < b.start; }
  };

  std::span<Range const> ranges_;
  std::set<Range, ByStart> set_;
};

/// A thread-safe wrapper of an index that is not.
template <class Index>
class Locked {
 public:
  static std::string name() { return Index::name() + " + shared_mutex"; }
  static constexpr bool by_value = Index::by_value;
  explicit Locked(std::span<Range const> ranges) : index_(ranges) {}

  void insert(std::size_t i) {
    std::unique_lock const guard(mutex_);
    index_.insert(i);
  }
  void remove(std::size_t i) {
    std::unique_lock const guard(mutex_);
    index_.remove(i);
  }
  [[gnu::always_inline]] Answer find(Address address) const {
    std::shared_lock const guard(mutex_);
    return index_.find(address);
  }

 private:
  mutable std::shared_mutex mutex_;
  Index index_;
};

template <class... Index>
struct List {};

template <class Act, class... Index>
void for_each(List<Index...>, Act&& act) {
  (act(std::type_identity<Index>()), ...);
}

/// Each as it is: UCX leaves locking to its user.
using AsTheyCome = List<PageTable,
#if defined(HAVE_UCX)
                        Ucx,
#endif
#if defined(HAVE_CRITNIB)
                        Critnib,
#endif
                        Locked<Set>>;

/// Each safe for readers beside a writer.
using ThreadSafe = List<PageTable,
#if defined(HAVE_UCX)
                        Locked<Ucx>,
#endif
#if defined(HAVE_CRITNIB)
                        Critnib,
#endif
                        Locked<Set>>;

/// Throws unless `index`, which holds all of `ranges`, finds them, and nothing in the gaps.
template <class Index>
void verify(Index const& index, std::span<Range const> ranges, workload::Random& random) {
  for (std::size_t k = 0; k < 1000; ++k) {
    Range const& range = ranges[random() % ranges.size()];
    auto const [handle, found] = index.find(workload::present({&range, 1}, random));
    if (handle == 0 || found.start - range.start >= 16 || range.end() - found.end() >= 16)
      throw std::logic_error(Index::name() + " gave a wrong answer");
    if (index.find(workload::absent(ranges, random)).handle != 0)
      throw std::logic_error(Index::name() + " found a region in a gap");
  }
}

}  // namespace contenders
