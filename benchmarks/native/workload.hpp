// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

/// What all programs look up: ranges of addresses that are never dereferenced, and queries on them.
namespace workload {

using Address = std::uint64_t;
using Random = std::mt19937_64;

struct Range {
  Address start;
  std::uint64_t size;
  Address end() const { return start + size; }
};

/// UCX's table takes multiples of 16 bytes only, so it gets every range rounded inward; queries keep to those bytes,
/// so that each is a hit for every contender.
inline Range inward(Range range) {
  Address const start = (range.start + 15) & ~Address{15};
  return {start, (range.end() & ~Address{15}) - start};
}

inline void check_fits(std::vector<Range> const& ranges) {
  if (ranges.back().end() > Address{1} << 47) throw std::length_error("the ranges leave the user's address space");
}

/// 4 KiB every 8 KiB.
inline std::vector<Range> pages(std::size_t count) {
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < count; ++i) ranges.push_back({0x1000'0000'0000 + i * 8192, 4096});
  return ranges;
}

/// Sizes evenly spread in their logarithm from 2^low to 2^high bytes, at any byte, gaps of up to a quarter of the size.
inline std::vector<Range> log_uniform(std::size_t count, double low, double high, Address from, Random& random) {
  std::uniform_real_distribution<double> exponent(low, high);
  std::vector<Range> ranges;
  Address at = from + random() % 4096;
  for (std::size_t i = 0; i < count; ++i) {
    auto const size = static_cast<std::uint64_t>(std::exp2(exponent(random)));
    ranges.push_back({at, size});
    at += size + random() % std::max<std::uint64_t>(size / 4, 64);
  }
  check_fits(ranges);
  return ranges;
}

/// Ranges of one size, one per two sizes of address space. They start at multiples of `alignment` but, unless that is
/// the size, not of any larger power of two.
inline std::vector<Range> of_size(std::size_t count, std::uint64_t size, std::uint64_t alignment, Random& random) {
  std::vector<Range> ranges;
  for (std::size_t i = 0; i < count; ++i) {
    Address const slot = 0x1000'0000'0000 + i * 2 * size;
    std::uint64_t const odd = random() % (size / alignment / 2 + 1) * 2 + 1;
    ranges.push_back({alignment == size ? slot : slot + odd * alignment % size, size});
  }
  check_fits(ranges);
  return ranges;
}

struct Kind {
  std::string name;
  std::size_t most;  // ranges that fit below 2^47
  std::vector<Range> (*make)(std::size_t count, Random& random);
};

inline std::array<Kind, 3> const kinds{{
    {"4 KiB", 1'000'000, [](std::size_t count, Random&) { return pages(count); }},
    {"mixed", 1'000'000,
     [](std::size_t count, Random& random) { return log_uniform(count, 6, 26, 0x1000'0000'0000, random); }},
    {"huge", 10'000,
     [](std::size_t count, Random& random) { return log_uniform(count, 26, 36, 0x100'0000'0000, random); }},
}};

inline std::array<std::size_t, 7> const counts{1, 8, 100, 1'000, 10'000, 100'000, 1'000'000};

/// A random byte of a random range.
inline Address present(std::span<Range const> ranges, Random& random) {
  Range const range = inward(ranges[random() % ranges.size()]);
  return range.start + random() % range.size;
}

/// A random byte of a random gap.
inline Address absent(std::span<Range const> ranges, Random& random) {
  for (;;) {
    std::size_t const i = random() % ranges.size();
    Address const from = ranges[i].end(), to = i + 1 < ranges.size() ? ranges[i + 1].start : from + 64;
    if (from < to) return from + random() % (to - from);
  }
}

inline std::vector<std::size_t> shuffled(std::size_t count, Random& random) {
  std::vector<std::size_t> order(count);
  for (std::size_t i = 0; i < count; ++i) order[i] = i;
  std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace workload
