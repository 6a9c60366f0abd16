// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sched.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

/// How all programs measure: contenders take turns, round by round, so that any other load on the machine affects all
/// of them, and a ratio is taken within a round.
namespace rounds {

inline double now() {  // nanoseconds
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Makes the compiler compute `value`.
inline void keep(std::uint64_t value) { asm volatile("" : : "r"(value) : "memory"); }

/// Zero, which the compiler cannot know.
inline std::uint64_t opaque_zero() {
  std::uint64_t volatile zero = 0;
  return zero;
}

/// The CPUs this process may use.
inline std::vector<int> cpus() {
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof(set), &set) != 0) throw std::runtime_error("sched_getaffinity failed");
  std::vector<int> found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
  return found;
}

/// Keeps the calling thread on one CPU.
inline void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) throw std::runtime_error("sched_setaffinity failed");
}

/// In each round: `prepare()`, then each turn once, starting with another one each time.
inline void take_turns(
    std::size_t rounds, std::vector<std::function<void()>> const& turns, std::function<void()> const& prepare = [] {}) {
  for (std::size_t round = 0; round < rounds; ++round) {
    prepare();
    for (std::size_t i = 0; i < turns.size(); ++i) turns[(round + i) % turns.size()]();
  }
}

/// The figures of one workload, by series (what was done) and contender, one per round. Prints a JSON line per series.
class Case {
 public:
  Case(std::string row, std::string kind, std::size_t regions)
      : row_(std::move(row)), kind_(std::move(kind)), regions_(regions) {}

  void add(std::string const& series, std::string const& unit, std::string const& contender, double value) {
    entry(entry(series_, series, [&] { return Series{unit, {}}; }).contenders, contender, [] {
      return std::vector<double>();
    }).push_back(value);
  }

  void print() const {
    for (auto const& [name, series] : series_) {
      std::printf(R"({"row": "%s", "kind": "%s", "regions": %zu, "series": "%s", "unit": "%s", "rounds": {)",
                  row_.c_str(), kind_.c_str(), regions_, name.c_str(), series.unit.c_str());
      char const* comma = "";
      for (auto const& [contender, values] : series.contenders) {
        std::printf("%s\"%s\": [", std::exchange(comma, ", "), contender.c_str());
        for (std::size_t i = 0; i < values.size(); ++i) std::printf("%s%.6g", i == 0 ? "" : ", ", values[i]);
        std::printf("]");
      }
      std::printf("}}\n");
    }
    std::fflush(stdout);
  }

 private:
  template <class Value>
  using InOrder = std::vector<std::pair<std::string, Value>>;

  struct Series {
    std::string unit;
    InOrder<std::vector<double>> contenders;
  };

  template <class Value, class Make>
  static Value& entry(InOrder<Value>& entries, std::string const& name, Make&& make) {
    for (auto& [key, value] : entries)
      if (key == name) return value;
    return entries.emplace_back(name, make()).second;
  }

  std::string row_, kind_;
  std::size_t regions_;
  InOrder<Series> series_;
};

}  // namespace rounds
