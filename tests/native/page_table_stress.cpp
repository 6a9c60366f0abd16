// SPDX-License-Identifier: Apache-2.0
// Readers that check every answer while writers insert and remove without pause: page_table_stress [SECONDS] [SEED]
#include <chrono>
#include <cstdlib>
#include <thread>

#include "churn.hpp"
#include "expect.hpp"

namespace {

using Clock = std::chrono::steady_clock;

/// Play one scene for `time`; returns how many answers were checked.
template <class Value>
std::uint64_t play(churn::Scene const& scene, bool flat, std::uint64_t seed, Clock::duration time) {
  pagetable::PageTable<Value> table(flat);
  auto const steady = churn::insert_steady(table, scene);
  std::array<churn::Progress, 2> progress;
  std::array<std::uint64_t, 2> answers{};
  std::atomic<bool> stop = false;
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 2; ++i) {
      threads.emplace_back([&, i] {
        churn::Writer writer(table, scene, i, seed, progress[i]);
        while (!writer.idle() && !stop.load(std::memory_order_relaxed)) {
          if (auto const wrong = writer.step(); !wrong.empty()) fail(churn::name_of<Value>(scene, flat, seed) + ": " + wrong);
        }
      });
      threads.emplace_back([&, i] {
        churn::Reader reader(table, scene, steady, seed, progress, seed + 100 + i);
        while (!stop.load(std::memory_order_relaxed)) {
          if (auto const wrong = reader.step(); !wrong.empty()) fail(churn::name_of<Value>(scene, flat, seed) + ": " + wrong);
        }
        answers[i] = reader.answers();
      });
    }
    std::this_thread::sleep_for(time);
    stop = true;
  }
  return answers[0] + answers[1];
}

}  // namespace

int main(int argc, char** argv) {
  double const seconds = argc > 1 ? std::atof(argv[1]) : 10;
  std::uint64_t const seed = argc > 2 ? std::strtoull(argv[2], nullptr, 0) : 1;
  // Below 2^47 a table may be flat; above, all of it is pooled.
  auto const low = churn::scenes(0x7f00'4000'0000), high = churn::scenes(0xffff'8000'4000'0000);
  auto const time = std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds / (5 * low.size())));
  std::uint64_t answers = 0;
  for (std::size_t i = 0; i < low.size(); ++i) {
    for (bool flat : {true, false}) {
      answers += play<pagetable::Nothing>(low[i], flat, seed + i, time);
      answers += play<churn::Stamp>(low[i], flat, seed + i, time);
    }
    answers += play<pagetable::Nothing>(high[i], true, seed + i, time);
  }
  std::printf("%llu answers, all right\n", static_cast<unsigned long long>(answers));
}
