// SPDX-License-Identifier: Apache-2.0
// Looking up addresses while another thread inserts and removes without pause: `writer ROUNDS MOST_REGIONS`.
#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "contenders.hpp"
#include "rounds.hpp"
#include "workload.hpp"

using workload::Address;
using workload::Range;

namespace {

/// Nanoseconds per lookup, over 40 ms. For regions that come and go, either answer is right.
template <class Index>
double time_reader(Index const& index, std::vector<Address> const& queries) {
  std::size_t done = 0;
  double const begin = rounds::now();
  double elapsed = 0;
  for (std::size_t at = 0; elapsed < 40e6; elapsed = rounds::now() - begin) {
    std::uint64_t sum = 0;
    for (std::size_t i = 0; i < 64; ++i) sum += index.find(queries[at + i]).handle;
    rounds::keep(sum);
    done += 64;
    at = (at + 64) % queries.size();
  }
  return elapsed / static_cast<double>(done);
}

/// A thread on its own CPU that removes a random region and inserts it again, for as long as this lives.
template <class Index>
class Writer {
 public:
  Writer(Index& index, std::size_t regions, int cpu)
      : thread_([this, &index, regions, cpu] {
          rounds::stay_on(cpu);
          workload::Random random(regions);
          while (!stop_.load(std::memory_order_relaxed)) {
            std::size_t const i = random() % regions;
            index.remove(i);
            index.insert(i);
            pairs_.store(pairs_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
          }
        }) {
    while (pairs() < 100) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  ~Writer() {
    stop_.store(true);
    thread_.join();
  }
  std::uint64_t pairs() const { return pairs_.load(std::memory_order_relaxed); }

 private:
  // The reader's thread accesses these only before and after a measurement.
  alignas(64) std::atomic<bool> stop_ = false;
  alignas(64) std::atomic<std::uint64_t> pairs_ = 0;
  alignas(64) std::thread thread_;
};

template <class Index>
void turn(Index& index, std::size_t regions, int writers_cpu, std::vector<Address> const& queries,
          rounds::Case& figures) {
  double const alone = time_reader(index, queries);
  double beside = 0, pair = 0;
  {
    Writer<Index> const writer(index, regions, writers_cpu);
    std::uint64_t const pairs = writer.pairs();
    double const begin = rounds::now();
    beside = time_reader(index, queries);
    pair = (rounds::now() - begin) / static_cast<double>(writer.pairs() - pairs);
  }
  figures.add("find alone", "ns", Index::name(), alone);
  figures.add("find beside a writer", "ns", Index::name(), beside);
  figures.add("slowdown", "x", Index::name(), beside / alone);
  figures.add("the writer's remove + insert", "ns", Index::name(), pair);
}

void measure(workload::Kind const& kind, std::size_t count, int writers_cpu, std::size_t total_rounds) {
  workload::Random random(count);
  auto const ranges = kind.make(count, random);
  std::vector<Address> queries(1 << 18);
  for (Address& address : queries) address = workload::present(ranges, random);

  rounds::Case figures("writer", kind.name, count);
  std::vector<std::function<void()>> turns;
  contenders::for_each(contenders::ThreadSafe(), [&]<class Index>(std::type_identity<Index>) {
    auto const index = std::make_shared<Index>(ranges);
    for (std::size_t i = 0; i < count; ++i) index->insert(i);
    turns.push_back([&, index] {
      turn(*index, count, writers_cpu, queries, figures);
      contenders::verify(*index, ranges, random);
    });
  });
  rounds::take_turns(total_rounds, turns);
  figures.print();
}

}  // namespace

int main(int, char** arguments) {
  std::size_t const total_rounds = std::stoul(arguments[1]), most = std::stoul(arguments[2]);
  auto const cpus = rounds::cpus();
  if (cpus.size() < 2) {
    std::fprintf(stderr, "a reader beside a writer needs two CPUs; this process may use one\n");
    return 77;
  }
  rounds::stay_on(cpus.front());
  for (auto const& kind : workload::kinds)
    for (std::size_t const count : {8, 100, 10'000, 100'000})
      if (count <= std::min(most, kind.most)) measure(kind, count, cpus.back(), total_rounds);
}
