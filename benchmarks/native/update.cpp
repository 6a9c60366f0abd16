// SPDX-License-Identifier: Apache-2.0
// Inserting and removing regions, one thread: `update ROUNDS MOST_REGIONS`.
#include <memory>

#include "contenders.hpp"
#include "rounds.hpp"
#include "workload.hpp"

using workload::Range;

namespace {

constexpr std::uint64_t KiB = 1 << 10, MiB = 1 << 20, GiB = 1 << 30;

/// Removes and inserts a tenth of the regions at a time, in random order, until each was replaced once.
template <class Index>
void turn(Index& index, std::vector<std::size_t> const& order, rounds::Case& figures) {
  std::size_t const batch = std::max<std::size_t>(order.size() / 10, 1);
  double removing = 0, inserting = 0;
  for (std::size_t at = 0; at < order.size(); at += batch) {
    std::span<std::size_t const> const some = std::span(order).subspan(at, std::min(batch, order.size() - at));
    double const begin = rounds::now();
    for (std::size_t const i : some) index.remove(i);
    double const middle = rounds::now();
    for (std::size_t const i : some) index.insert(i);
    double const end = rounds::now();
    removing += middle - begin;
    inserting += end - middle;
  }
  figures.add("insert", "ns", Index::name(), inserting / static_cast<double>(order.size()));
  figures.add("remove", "ns", Index::name(), removing / static_cast<double>(order.size()));
}

void measure(std::string const& kind, std::vector<Range> const& ranges, std::size_t total_rounds) {
  workload::Random random(ranges.size());
  rounds::Case figures("update", kind, ranges.size());
  std::vector<std::size_t> order = workload::shuffled(ranges.size(), random);
  std::vector<std::function<void()>> turns;
  contenders::for_each(contenders::AsTheyCome(), [&]<class Index>(std::type_identity<Index>) {
    auto const index = std::make_shared<Index>(ranges);
    for (std::size_t const i : order) index->insert(i);
    turns.push_back([&, index] {
      turn(*index, order, figures);
      contenders::verify(*index, ranges, random);
    });
  });
  // In a table in long use, regions lie in no order in memory; and the first round only warms the caches.
  rounds::take_turns(1, turns);
  figures = rounds::Case("update", kind, ranges.size());
  rounds::take_turns(total_rounds, turns, [&] { order = workload::shuffled(ranges.size(), random); });
  figures.print();
}

/// The first insert into a new index, which has to get memory from the system.
void measure_first(std::string const& kind, std::vector<Range> const& ranges, std::size_t total_rounds) {
  rounds::Case figures("update", kind, 1);
  std::vector<std::function<void()>> turns;
  contenders::for_each(contenders::AsTheyCome(), [&]<class Index>(std::type_identity<Index>) {
    turns.push_back([&] {
      Index index(ranges);
      double const begin = rounds::now();
      index.insert(0);
      figures.add("first insert", "ns", Index::name(), rounds::now() - begin);
    });
  });
  rounds::take_turns(total_rounds, turns);
  figures.print();
}

}  // namespace

int main(int, char** arguments) {
  std::size_t const total_rounds = std::stoul(arguments[1]), most = std::stoul(arguments[2]);
  rounds::stay_on(rounds::cpus().front());
  workload::Random random(1);

  struct Size {
    char const* name;
    std::uint64_t bytes;
  };
  for (auto const [name, bytes] : {Size{"4 KiB", 4 * KiB}, Size{"64 KiB", 64 * KiB}, Size{"1 MiB", MiB},
                                   Size{"16 MiB", 16 * MiB}, Size{"256 MiB", 256 * MiB}, Size{"1 GiB", GiB}}) {
    auto const sized = [&](char const* alignment_name, std::uint64_t alignment) {
      measure(std::string(name) + alignment_name, workload::of_size(1'000, bytes, alignment, random), total_rounds);
    };
    sized(" aligned", bytes);
    if (bytes > 4 * KiB) sized(" page-aligned", 4 * KiB);
    sized(" unaligned", 1);
  }
  measure("64 GiB unaligned", workload::of_size(100, 64 * GiB, 1, random), total_rounds);
  measure_first("64 GiB unaligned", workload::of_size(1, 64 * GiB, 1, random), total_rounds);
  measure_first("4 KiB", workload::pages(1), total_rounds);
  for (auto const& kind : workload::kinds)
    for (std::size_t const count : {std::size_t{10'000}, std::size_t{100'000}})
      if (count <= std::min(most, kind.most)) measure(kind.name, kind.make(count, random), total_rounds);
}
