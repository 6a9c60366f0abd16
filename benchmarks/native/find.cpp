// SPDX-License-Identifier: Apache-2.0
// Looking up addresses, one thread: `find ROUNDS MOST_REGIONS`.
#include <memory>

#include "contenders.hpp"
#include "rounds.hpp"
#include "workload.hpp"

using workload::Address;
using Queries = std::span<Address const>;

namespace {

/// What the loop and the array of queries cost without any index.
class NoIndex {
 public:
  static std::string name() { return "reading the queries"; }
  static constexpr bool by_value = false;
  contenders::Answer find(Address address) const { return {address, {}}; }
};

/// Each lookup is independent of the last, so the processor overlaps them. Uses all that the caller gets.
template <class Index>
[[gnu::noinline]] std::uint64_t independent(Index const& index, Queries queries, std::uint64_t) {
  std::uint64_t sum = 0;
  for (Address const address : queries) {
    auto const [handle, range] = index.find(address);
    sum += Index::by_value ? handle + range.start + range.size : handle;
  }
  return sum;
}

/// Each address needs the last lookup's handle: its id, or its pointer.
template <class Index>
[[gnu::noinline]] std::uint64_t dependent(Index const& index, Queries queries, std::uint64_t zero) {
  std::uint64_t last = 0;
  for (Address const address : queries) last = index.find(address + last).handle & zero;
  return last;
}

/// Each address needs all of the last answer, the bounds in its record too.
template <class Index>
[[gnu::noinline]] std::uint64_t dependent_on_all(Index const& index, Queries queries, std::uint64_t zero) {
  std::uint64_t last = 0;
  for (Address const address : queries) {
    auto const [handle, range] = index.find(address + last);
    last = (handle + range.start + range.size) & zero;
  }
  return last;
}

/// Nanoseconds per query, over all of them or as many as fit in a tenth of a second.
template <class Index>
double time(std::uint64_t (*pass)(Index const&, Queries, std::uint64_t), Index const& index, Queries queries) {
  constexpr std::size_t block = 1 << 14;
  std::uint64_t const zero = rounds::opaque_zero();
  double const begin = rounds::now();
  double elapsed = 0;
  std::size_t done = 0;
  for (; done < queries.size() && elapsed < 1e8; elapsed = rounds::now() - begin) {
    rounds::keep(pass(index, queries.subspan(done, block), zero));
    done += block;
  }
  return elapsed / static_cast<double>(done);
}

/// Queries for a round. Other ones warm the caches, or a table too large for the caches would seem to fit.
struct Round {
  std::vector<Address> warming, present, absent;
};

template <class Index>
void turn(Index const& index, Round const& round, rounds::Case& figures) {
  auto const add = [&](char const* series, auto pass, std::vector<Address> const& queries) {
    time(pass, index, Queries(round.warming));
    figures.add(series, "ns", Index::name(), time(pass, index, Queries(queries)));
  };
  add("throughput", independent<Index>, round.present);
  add("dependent", dependent<Index>, round.present);
  add("dependent on bounds", dependent_on_all<Index>, round.present);
  add("absent", independent<Index>, round.absent);
}

void measure(workload::Kind const& kind, std::size_t count, std::size_t total_rounds) {
  workload::Random random(count);
  auto const ranges = kind.make(count, random);
  auto const order = workload::shuffled(count, random);
  // More than there are regions, and than branch predictors can learn.
  std::size_t const queries = count <= 100'000 ? 1 << 18 : 1 << 20;

  rounds::Case figures("find", kind.name, count);
  Round round;
  std::vector<std::function<void()>> turns;
  contenders::for_each(contenders::AsTheyCome(), [&]<class Index>(std::type_identity<Index>) {
    auto const index = std::make_shared<Index>(ranges);
    for (std::size_t const i : order) index->insert(i);
    contenders::verify(*index, ranges, random);
    turns.push_back([&, index] { turn(*index, round, figures); });
  });
  turns.push_back([&] { turn(NoIndex(), round, figures); });

  rounds::take_turns(total_rounds, turns, [&] {
    auto const draw = [&](auto one) {
      std::vector<Address> addresses(queries);
      for (Address& address : addresses) address = one(ranges, random);
      return addresses;
    };
    round = {draw(workload::present), draw(workload::present), draw(workload::absent)};
  });
  figures.print();
}

}  // namespace

int main(int, char** arguments) {
  std::size_t const total_rounds = std::stoul(arguments[1]), most = std::stoul(arguments[2]);
  rounds::stay_on(rounds::cpus().front());
  for (auto const& kind : workload::kinds)
    for (std::size_t const count : workload::counts)
      if (count <= std::min(most, kind.most)) measure(kind, count, total_rounds);
}
