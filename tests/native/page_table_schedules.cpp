// SPDX-License-Identifier: Apache-2.0
// The stress test on a simulated machine with weak memory: page_table_schedules [SECONDS] [SEED] [SCENES]
#include <algorithm>
#include <array>
#include <bit>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <pagetable/reservation.hpp>  // with real atomics: no reader reads its count
#include <stdexcept>
#include <string>
#include <vector>

#include "weak_machine.hpp"
//
#include "churn.hpp"
#include "expect.hpp"

namespace {

template <class Value>
std::uint64_t play(churn::Scene const& scene, bool flat, std::uint64_t seed) {
  pagetable::PageTable<Value> table(flat);
  auto const steady = churn::insert_steady(table, scene);
  std::array<churn::Progress, 2> progress;
  std::array writers = {churn::Writer(table, scene, 0, seed, progress[0]), churn::Writer(table, scene, 1, seed, progress[1])};
  std::array readers = {churn::Reader(table, scene, steady, seed, progress, seed + 100),
                        churn::Reader(table, scene, steady, seed, progress, seed + 101)};
  churn::Random turns(seed);
  machine::run(seed, 100'000, [&](int thread) {
    auto const wrong = thread == 0 ? writers[writers[1].idle() ? 0 : turns.below(2)].step() : readers[thread - 1].step();
    if (!wrong.empty()) fail(churn::name_of<Value>(scene, flat, seed) + ": " + wrong);
  });
  return readers[0].answers() + readers[1].answers();
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 10;
  std::uint64_t seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  std::string const only = argc > 3 ? argv[3] : "";  // part of a scene's name
  auto const low = churn::scenes(0x7f00'4000'0000), high = churn::scenes(0xffff'8000'4000'0000);
  auto const end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds);
  std::uint64_t answers = 0, rounds = 0;
  for (; rounds == 0 || std::chrono::steady_clock::now() < end; ++rounds, ++seed) {
    for (std::size_t i = 0; i < low.size(); ++i) {
      if (low[i].name.find(only) == std::string::npos) continue;
      for (bool flat : {true, false}) {
        answers += play<pagetable::Nothing>(low[i], flat, seed);
        answers += play<churn::Stamp>(low[i], flat, seed);
      }
      answers += play<pagetable::Nothing>(high[i], true, seed);
    }
  }
  std::printf("%llu answers in %llu rounds, all right\n", static_cast<unsigned long long>(answers),
              static_cast<unsigned long long>(rounds));
}
