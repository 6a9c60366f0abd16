// SPDX-License-Identifier: Apache-2.0
// Queues of two vendors that wait for each other at gates: gate_stress [SECONDS] [SEED]
//
// Each of the queues is a thread. In every round it writes what only it may write, opens its gate, waits at those of
// the others, and reads what they wrote before. The gates of a round are destroyed as soon as all have passed.
#include <pinning/gate.hpp>

#include <array>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t queues = 4;

struct Round {
  std::array<pinning::Gate, queues> gates;
  std::array<std::uint64_t, queues> written{};  // plain memory: only the gates order it
};

[[noreturn]] void violation(char const* what) {
  std::printf("VIOLATION: %s\n", what);
  std::fflush(stdout);
  std::_Exit(1);
}

}  // namespace

int main(int count, char** arguments) {
  double const seconds = count > 1 ? std::atof(arguments[1]) : 2;
  auto const seed = static_cast<std::uint64_t>(count > 2 ? std::atoll(arguments[2]) : 1);
  auto const end = Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));

  auto round = std::make_unique<Round>();
  std::uint64_t number = 0;
  bool more = true;
  std::barrier next(queues, [&]() noexcept {
    round = std::make_unique<Round>();
    ++number;
    more = Clock::now() < end;
  });
  auto const run = [&](std::size_t mine) {
    std::mt19937_64 random(seed * queues + mine);
    while (more) {
      for (auto pause = random() % 200; pause > 0; --pause) std::atomic_signal_fence(std::memory_order_seq_cst);
      if (random() % 8 == 0) std::this_thread::yield();
      round->written[mine] = number + 1;
      round->gates[mine].open();
      if (random() % 4 == 0) round->gates[mine].open();  // again: nothing
      for (std::size_t i = 1; i < queues; ++i) {
        std::size_t const other = (mine + i) % queues;
        pinning::Gate::pass(&round->gates[other]);
        if (!round->gates[other].is_open()) violation("someone passed a gate that is shut");
        if (round->written[other] != number + 1) violation("someone passed a gate too early");
      }
      next.arrive_and_wait();
    }
  };
  std::vector<std::jthread> threads;
  for (std::size_t mine = 0; mine < queues; ++mine) threads.emplace_back(run, mine);
  threads.clear();
  if (number < 10) violation("hardly anybody passed");
  std::printf("all right: %llu rounds of %zu queues\n", static_cast<unsigned long long>(number), queues);
}
