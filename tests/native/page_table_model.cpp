// SPDX-License-Identifier: Apache-2.0
// Random operations checked against a std::map, while memory runs out at every point:
// page_table_model [SECONDS] [SEED] [LIMIT_BYTES], where LIMIT_BYTES limits the address space (RLIMIT_AS).
#include <sys/mman.h>
#include <sys/resource.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <new>

namespace {

/// Memory that runs out: while armed, requests are granted `grants` times and then refused.
struct Memory {
  bool armed = false;
  std::uint64_t grants = 0, refused_commits = 0, refused_news = 0;

  bool grant(std::uint64_t& refused) {
    if (!armed) return true;
    if (grants > 0) {
      --grants;
      return true;
    }
    ++refused;
    return false;
  }
} memory;

class Shortage {
 public:
  explicit Shortage(std::uint64_t grants) {
    memory.grants = grants;
    memory.armed = true;
  }
  ~Shortage() { memory.armed = false; }
};

int scarce_mprotect(void* address, std::size_t length, int protection) {
  return memory.grant(memory.refused_commits) ? mprotect(address, length, protection) : -1;
}

}  // namespace

[[gnu::noinline]] void* operator new(std::size_t size) {
  void* const block = memory.grant(memory.refused_news) ? std::malloc(size) : nullptr;
  if (block == nullptr) throw std::bad_alloc();
  return block;
}
[[gnu::noinline]] void operator delete(void* block) noexcept { std::free(block); }
[[gnu::noinline]] void operator delete(void* block, std::size_t) noexcept { std::free(block); }

#define mprotect scarce_mprotect  // with which the page table commits memory
#include "churn.hpp"

namespace {

using churn::Address;
using churn::Random;
using churn::Range;
using churn::Region;

std::string context;

void require(bool right, char const* what, Address address = 0, std::uint64_t size = 0) {
  if (right) return;
  std::printf("VIOLATION, %s: %s at [%#zx, +%#zx)\n", context.c_str(), what, std::size_t{address}, std::size_t{size});
  std::fflush(stdout);
  std::_Exit(1);
}

constexpr std::uint64_t unlimited = ~std::uint64_t{0};

/// A table and a model of its contents.
template <class Value>
class World {
 public:
  World(bool flat, Address origin, std::uint64_t seed) : table_(flat), origin_(origin), seed_(seed), spread_(seed % 3 == 0 ? 14 : 34), random_(seed) {}

  void live(int operations, std::uint64_t grants) {
    for (int i = 0; i < operations; ++i) {
      switch (random_.below(8)) {
        case 0:
        case 1:
        case 2:
        case 3:
          insert(some_range(), grants);
          break;
        case 4:
        case 5:
          remove(model_.empty() ? origin_ : some_region().start);
          break;
        case 6:
          remove(some_address());
          break;
        default:
          check_ranges(some_range());
      }
      check_around(some_address());
      if (random_.below(64) == 0) check_all();
    }
  }

  /// Repeat `live` in the emptied table, which needs no more memory for it.
  void live_again(int operations) {
    random_ = Random(seed_);
    again_ = true;
    live(operations, 0);
  }

  /// Use up the pool's committed memory with a chain of regions that share their pages, which takes one line per page.
  /// Then free a little, so that later operations fail at varying points.
  void starve() {
    Address const first = 0x1234'0000'0800;
    try {
      for (;; ++chained_) {
        Shortage const soon_none_left(chained_ < 100 ? 100 : 0);
        table_.insert(first + chained_ * 4096, 4096, [](Value& value) { churn::fill(value, {0, 0}); });
      }
    } catch (std::bad_alloc const&) {
    }
    for (std::uint64_t spare = random_.below(8); spare > 0; --spare) table_.remove(first + --chained_ * 4096);
    check_all();
  }

  /// Repeat the same operations: as many must fail for lack of memory each time, so no failure keeps any.
  void live_starved(int operations) {
    std::optional<std::uint64_t> first;
    for (int i = 0; i < 6; ++i) {
      random_ = Random(seed_);
      failures_ = 0;
      live(operations, 0);
      empty();
      if (!first) first = failures_;
      require(failures_ == first, "a failure kept memory");
    }
  }

  void empty() {
    while (!model_.empty()) remove(some_region().start);
    check_all();
  }

 private:
  /// A cell of any size, a part or a multiple of one, or such a range near a region's border; some wrap.
  Range some_range() {
    static constexpr std::array<unsigned, 7> scales = {0, 4, 8, 12, 21, 30, 36};
    unsigned bits = scales[random_.below(scales.size())];
    if (bits >= spread_) bits = 0;
    std::uint64_t const cell = std::uint64_t{1} << bits;
    Address start = some_address();
    switch (random_.below(4)) {
      case 0:
        start &= ~(cell - 1);
        break;
      case 1:
        start = (start & ~(cell - 1)) + cell / 2;
        break;
      default:
        break;
    }
    std::array<std::uint64_t, 6> const sizes = {
        cell, cell * (1 + random_.below(20)), 1 + random_.below(2 * cell), 1, cell - 1, std::uint64_t{1} << random_.below(spread_ - 7)};
    if (random_.below(60) == 0) return {random_.below(2) * random_.below(1 << 20), ~std::uint64_t{0} - random_.below(2) * random_.below(1 << 30)};
    return {start, sizes[random_.below(sizes.size())]};
  }

  Address some_address() {
    if (!model_.empty() && random_.below(2) == 0) {
      Region const region = some_region();
      return random_.below(2) == 0 ? region.end() + random_.below(3) - 1 : region.start + random_.below(3) - 1;
    }
    unsigned const bits = static_cast<unsigned>(random_.below(spread_));
    return origin_ + random_.below(std::uint64_t{2} << bits) - random_.below(2) * (std::uint64_t{1} << bits);
  }

  Region some_region() {
    auto at = model_.lower_bound(origin_ + random_.below(std::uint64_t{1} << 32) - (std::uint64_t{1} << 31));
    if (at == model_.end()) at = model_.begin();
    std::advance(at, random_.below(std::min<std::size_t>(model_.size(), 4)) % (std::distance(at, model_.end())));
    return at->second;
  }

  std::optional<Region> expected(Address address) const {
    auto at = model_.upper_bound(address);
    if (at == model_.begin()) return std::nullopt;
    --at;
    return at->second.contains(address) ? std::optional(at->second) : std::nullopt;
  }

  std::vector<Region> expected_overlap(Range range) const {
    std::vector<Region> found;
    for (auto const& [start, region] : model_) {
      if (range.overlaps({region.start, region.size})) found.push_back(region);
    }
    return found;
  }

  void insert(Range range, std::uint64_t grants) {
    bool const valid = range.size != 0 && range.last() >= range.start;
    auto const in_the_way = valid ? expected_overlap(range) : std::vector<Region>{};
    auto const fill = [&](Value& value) { churn::fill(value, range); };
    if (valid && in_the_way.empty() && in_chain(range)) return;
    for (std::uint64_t granted = grants;; ++granted) {
      try {
        Region const region = [&] {
          if (granted == unlimited) return table_.insert(range.start, range.size, fill);
          Shortage const shortage(granted);
          return table_.insert(range.start, range.size, fill);
        }();
        require(valid && in_the_way.empty(), "inserted what must be refused", range.start, range.size);
        require(region.start == range.start && region.size == range.size, "inserted other bounds", range.start, range.size);
        for (auto const& [start, other] : model_) require(other.id != region.id, "an id used twice", range.start, range.size);
        model_[range.start] = region;
        most_ = std::max(most_, model_.size());
        require(region.id < most_ + chained_ + 1, "an id larger than need be", range.start, range.size);
        break;
      } catch (pagetable::Overlap const& overlap) {
        require(!in_the_way.empty() && overlap.region == in_the_way.front(), "wrong Overlap", range.start, range.size);
        break;
      } catch (pagetable::InvalidRange const&) {
        require(!valid, "wrong InvalidRange", range.start, range.size);
        break;
      } catch (std::bad_alloc const&) {
        require(granted != unlimited, "no memory", range.start, range.size);
        require(!again_ || !valid || !in_the_way.empty(), "not all memory came back", range.start, range.size);
        check_all();
        if (chained_ != 0) {  // starved for good
          ++failures_;
          break;
        }
      }
    }
    check_around(range.start);
    check_around(range.last());
    check_around(range.start + range.size / 2);
  }

  void remove(Address start) {
    auto const at = model_.find(start);
    auto const region = [&] {
      Shortage const none_left(0);
      return table_.remove(start);
    }();
    require(region == (at == model_.end() ? std::nullopt : std::optional(at->second)), "removed wrongly", start);
    if (!region) return;
    model_.erase(at);
    check_around(region->start);
    check_around(region->last());
    check_around(region->start + region->size / 2);
  }

  void check_around(Address address) const {
    for (Address at : {address - 1, address, address + 1}) {
      if (in_chain({at, 1})) continue;
      churn::Seen seen;
      auto const region = table_.find(at, [&](Value const& value) { churn::look(value, seen); });
      require(region == expected(at), "found wrongly", at);
      require(table_.find(at) == region && table_.contains(at) == region.has_value(), "find and contains differ", at);
      require(!region || churn::fits(static_cast<Value const*>(nullptr), seen, *region), "another's value", at);
    }
  }

  void check_ranges(Range range) const {
    if (range.size == 0 || range.last() < range.start) {
      require(!table_.find_range(range.start, range.size), "an impossible range found", range.start, range.size);
      bool refused = false;
      try {
        table_.overlapping(range.start, range.size);
      } catch (pagetable::InvalidRange const&) {
        refused = true;
      }
      require(refused, "overlapping took an impossible range", range.start, range.size);
      return;
    }
    if (in_chain(range)) return;
    auto const found = table_.find_range(range.start, range.size);
    auto const around = expected(range.start);
    bool const inside = around && around->last() >= range.last();
    require(found == (inside ? around : std::nullopt), "find_range", range.start, range.size);
    require(table_.overlapping(range.start, range.size) == expected_overlap(range), "overlapping", range.start, range.size);
  }

  void check_all() const {
    require(table_.size() == model_.size() + chained_, "size");
    std::vector<Region> all;
    for (auto const& [start, region] : model_) all.push_back(region);
    auto regions = table_.regions();
    std::erase_if(regions, [&](Region const& region) { return in_chain({region.start, region.size}); });
    require(regions == all, "regions");
    for (Region const& region : all) {
      check_around(region.start);
      check_around(region.last());
      check_ranges({region.start, region.size});
    }
  }

  bool in_chain(Range range) const {
    return chained_ != 0 && range.overlaps({0x1234'0000'0800, (chained_ + 60) * 4096});
  }

  pagetable::PageTable<Value> table_;
  std::map<Address, Region> model_;
  Address origin_;
  std::uint64_t seed_;
  unsigned spread_;  // log2 of the largest distance and size of regions
  Random random_;
  std::size_t most_ = 0, chained_ = 0;
  std::uint64_t failures_ = 0;
  bool again_ = false;
};

std::uint64_t address_space() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

/// A table whose construction fails must keep no address space.
void fail_to_construct(bool flat) {
  std::uint64_t const before = address_space();
  for (std::uint64_t grants = 0;; ++grants) {
    try {
      Shortage const shortage(grants);
      pagetable::PageTable<> const table(flat);
      require(grants > 0, "nothing was refused");
      break;
    } catch (std::bad_alloc const&) {
    }
  }
  require(address_space() < before + (std::uint64_t{64} << 20), "a table that could not be made kept its address space");
}

template <class Value>
void play(bool flat, std::uint64_t seed) {
  static constexpr std::array<Address, 7> origins = {
      0, 0x7f00'4000'0000, (Address{1} << 47) - 0x5000, Address{1} << 47, 0xffff'8000'0000'0000, ~Address{0} - 0x5000, ~Address{0}};
  for (Address origin : origins) {
    char text[100];
    std::snprintf(text, sizeof text, "%s%s around %#zx, seed %zu", flat ? "flat" : "pooled",
                  std::is_empty_v<Value> ? "" : ", with values", std::size_t{origin}, std::size_t{seed});
    context = text;
    World<Value> plenty(flat, origin, seed);
    plenty.live(400, unlimited);
    plenty.empty();
    plenty.live_again(400);
    World<Value> failing(flat, origin, seed + 1);
    failing.live(200, 0);
    failing.empty();
    World<Value> starved(flat, origin, seed + 2);
    starved.live(static_cast<int>(seed % 200), unlimited);
    starved.empty();
    starved.starve();
    starved.live_starved(200);
  }
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 10;
  std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  if (argc > 3) {
    rlim_t const bytes = std::strtoull(argv[3], nullptr, 0);
    rlimit const limit{bytes, bytes};
    require(setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
  }
  auto const end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t rounds = 0;
  for (; rounds == 0 || std::chrono::steady_clock::now() < end; ++rounds, ++seed) {
    for (bool flat : {true, false}) {
      play<pagetable::Nothing>(flat, seed);
      play<churn::Stamp>(flat, seed);
    }
  }
  for (bool flat : {true, false}) fail_to_construct(flat);
  require(memory.refused_commits > 0 && memory.refused_news > 0, "memory never ran out");
  std::printf("%zu rounds, %zu commits and %zu allocations refused, all right\n", std::size_t{rounds},
              std::size_t{memory.refused_commits}, std::size_t{memory.refused_news});
}
