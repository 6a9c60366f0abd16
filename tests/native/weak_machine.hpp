// SPDX-License-Identifier: Apache-2.0
// A simulated machine for one writer and some readers: at every atomic access another thread may continue, and a load
// may return an older value as long as the C++ memory model's release and acquire allow it. Threads are coroutines, so
// a seed always gives the same run, and races that a real machine hits once a year are frequent.
//
// Include every standard header that the code under test needs before this one, because it redefines the names `atomic`
// and `atomic_ref`.
#pragma once

#include <ucontext.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <unordered_map>
#include <utility>
#include <vector>

namespace machine {

inline constexpr int threads = 3;  // 0 writes, the others read

struct Store {
  std::uint64_t value, time;
  bool release;
};
/// The last few stores to one word, and for each thread the time of the store that it read last.
struct Word {
  std::array<Store, 8> stores;
  std::size_t count = 0;
  std::array<std::uint64_t, threads> last = {};

  void add(Store store) {
    if (count == stores.size()) {
      std::move(stores.begin() + 1, stores.end(), stores.begin());
      --count;
    }
    stores[count++] = store;
  }
};

struct State {
  std::mt19937_64 random;
  std::unordered_map<void const*, Word> words;
  std::uint64_t time = 0;
  std::array<std::uint64_t, threads> seen = {};  // stores up to this time are visible to the thread
  std::array<std::uint64_t, threads> patience = {};
  std::uint64_t steps = 0;
  int current = 0;
  bool running = false;
  ucontext_t main;
  std::array<ucontext_t, threads> contexts;
};
inline State state;

/// Perhaps switch to another thread. How long each one runs at a stretch varies by orders of magnitude.
inline void yield() {
  if (!state.running) return;
  if (state.steps-- == 0) {
    state.running = false;
    return;
  }
  if (state.steps % 4096 == 0) {
    for (auto& patience : state.patience) patience = (std::uint64_t{2} << state.random() % 10) - 1;
  }
  if ((state.random() & state.patience[state.current]) != 0) return;
  int const before = std::exchange(state.current, static_cast<int>(state.random() % threads));
  if (before != state.current) swapcontext(&state.contexts[before], &state.contexts[state.current]);
}

template <class T>
T load(T const* word, std::memory_order order) {
  yield();
  auto const at = state.current == 0 ? state.words.end() : state.words.find(word);
  if (at == state.words.end()) return *word;
  Word& history = at->second;
  std::uint64_t& last = history.last[state.current];
  std::uint64_t& seen = state.seen[state.current];
  std::size_t i = history.count - 1;
  while (i > 0 && history.stores[i].time > std::max(last, seen) && state.random() % 4 == 0) --i;
  Store const& store = history.stores[i];
  last = std::max(last, store.time);
  if (order != std::memory_order_relaxed && store.release) seen = std::max(seen, store.time);
  return static_cast<T>(store.value);
}

template <class T>
void store(T* word, T value, std::memory_order order) {
  yield();
  Word& history = state.words[word];
  if (history.count == 0) history.add({*word, 0, false});
  history.add({value, ++state.time, order != std::memory_order_relaxed});
  *word = value;
}

/// Call `body(thread)` repeatedly on every thread until together they have taken `steps` steps.
inline void run(std::uint64_t seed, std::uint64_t steps, std::function<void(int)> const& body) {
  static std::array<std::array<std::byte, 1 << 18>, threads> stacks;
  static std::function<void(int)> const* loop;
  static std::array<bool, threads> finished;
  loop = &body;
  finished.fill(false);
  state.random.seed(seed);
  state.seen.fill(state.time);
  state.steps = steps;
  state.running = true;
  for (int i = 0; i < threads; ++i) {
    getcontext(&state.contexts[i]);
    state.contexts[i].uc_stack.ss_sp = stacks[i].data();
    state.contexts[i].uc_stack.ss_size = stacks[i].size();
    state.contexts[i].uc_link = &state.main;
    makecontext(&state.contexts[i], [] {
      int const self = state.current;
      while (state.running) (*loop)(self);
      finished[self] = true;
    }, 0);
  }
  // The last step stops all switching; then each thread runs to the end of its body.
  for (int i = 0; i < threads; ++i) {
    while (!finished[i]) {
      state.current = i;
      swapcontext(&state.main, &state.contexts[i]);
    }
  }
  state.current = 0;
  state.words.clear();
}

template <class T>
class Atomic {
 public:
  constexpr Atomic() = default;
  constexpr Atomic(T value) : value_(value) {}
  Atomic(Atomic const&) = delete;
  T load(std::memory_order order = std::memory_order_seq_cst) const { return machine::load(&value_, order); }
  void store(T value, std::memory_order order = std::memory_order_seq_cst) { machine::store(&value_, value, order); }

 private:
  T value_ = {};
};

template <class T>
class AtomicRef {
 public:
  explicit AtomicRef(T& value) : value_(&value) {}
  T load(std::memory_order order) const { return machine::load(value_, order); }
  void store(T value, std::memory_order order) const { machine::store(value_, value, order); }

 private:
  T* value_;
};

}  // namespace machine

namespace std {
template <class T>
using simulated_atomic = machine::Atomic<T>;
template <class T>
using simulated_atomic_ref = machine::AtomicRef<T>;
}  // namespace std

#define atomic simulated_atomic
#define atomic_ref simulated_atomic_ref
#define __SANITIZE_THREAD__ 1  // no stores of several words at once: they would bypass the machine
