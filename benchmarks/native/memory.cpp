// SPDX-License-Identifier: Apache-2.0
// Resident memory of an index: `memory ROUNDS MOST_REGIONS`.
#include <malloc.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <memory>

#include "contenders.hpp"
#include "rounds.hpp"
#include "workload.hpp"

using workload::Range;

namespace {

/// Resident bytes of this process, and bytes of the kernel's page tables for it.
struct Usage {
  double resident = 0, tables = 0;
};

Usage usage() {
  Usage usage;
  auto const kib = [](char const* file, std::string const& key) {
    std::ifstream lines(file);
    double value = 0;
    for (std::string line; std::getline(lines, line);)
      if (line.starts_with(key)) value = std::stod(line.substr(key.size()));
    return value * 1024;
  };
  usage.resident = kib("/proc/self/smaps_rollup", "Rss:");  // exact; statm lags behind by some pages per thread
  usage.tables = kib("/proc/self/status", "VmPTE:");
  return usage;
}

/// The memory that an index with `ranges` adds to a process; in a child, so that each starts from the same state.
template <class Index>
Usage added(std::vector<Range> const& ranges, std::vector<std::size_t> const& order) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("pipe failed");
  pid_t const child = fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    malloc_trim(0);  // or the index would reuse memory freed when the ranges were made
    Usage const before = usage();
    Index index(ranges);
    for (std::size_t const i : order) index.insert(i);
    Usage const after = usage();
    Usage const difference{after.resident - before.resident, after.tables - before.tables};
    _exit(write(ends[1], &difference, sizeof difference) == sizeof difference ? 0 : 1);
  }
  close(ends[1]);
  Usage difference;
  bool const whole = read(ends[0], &difference, sizeof difference) == sizeof difference;
  close(ends[0]);
  waitpid(child, nullptr, 0);
  if (!whole) throw std::runtime_error("measuring the memory of " + Index::name() + " failed");
  return difference;
}

void measure(std::string const& kind, std::vector<Range> const& ranges, std::size_t total_rounds) {
  workload::Random random(1);
  auto const order = workload::shuffled(ranges.size(), random);
  rounds::Case figures("memory", kind, ranges.size());
  std::vector<std::function<void()>> turns;
  contenders::for_each(contenders::AsTheyCome(), [&]<class Index>(std::type_identity<Index>) {
    turns.push_back([&] {
      std::vector<Range> const one(ranges.begin(), ranges.begin() + 1);
      Usage const fixed = added<Index>(one, {0}), all = added<Index>(ranges, order);
      auto const each = [&](double bytes) { return bytes / static_cast<double>(ranges.size()); };
      figures.add("fixed", "KiB", Index::name(), fixed.resident / 1024);
      figures.add("each region", "B", Index::name(), each(all.resident - fixed.resident));
      figures.add("kernel page tables, each region", "B", Index::name(), each(all.tables - fixed.tables));
    });
  });
  rounds::take_turns(total_rounds, turns);
  figures.print();
}

}  // namespace

int main(int, char** arguments) {
  std::size_t const total_rounds = std::stoul(arguments[1]), most = std::stoul(arguments[2]);
  workload::Random random(1);
  for (auto const& kind : workload::kinds) {
    std::size_t const count = std::min(most, kind.most);
    measure(kind.name, kind.make(count, random), total_rounds);
  }
  // The largest size of which 800 000 fit below 2^47.
  measure("64 MiB unaligned", workload::of_size(std::min<std::size_t>(most, 800'000), 64 << 20, 1, random),
          total_rounds);
}
