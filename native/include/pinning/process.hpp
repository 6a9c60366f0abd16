// SPDX-License-Identifier: Apache-2.0
// What a forked child does with the objects of its parent: the one registry of that, and the number of the process.
//
// Nothing is called, and no lock is taken, before a fork: handlers of other libraries that run then may wait for their
// own threads, which may be about to take that lock. So a child begins with the state of that instant, in which another
// thread may have been in the middle of any change. What the child needs from its parent is published in one step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "pinning.h"

namespace pinning {

/// Incremented in the child of each fork, before anything is restarted there.
PINNING_API extern std::atomic<unsigned> forks;

/// The number of this process: of forks between the process that loaded libpinning and this one. It needs no system call,
/// and is correct before the fork handlers of libpinning's users run.
inline unsigned generation() noexcept { return forks.load(std::memory_order_relaxed); }

/// Whether what stores this number was made in another process: a parent, to which it belongs.
inline bool is_parents(unsigned made_in) noexcept { return made_in != generation(); }

/// What is restarted in a child, in this order. Python's part follows, when the child returns to Python: see
/// runtime/process.pyx.
enum class Subsystem : std::uint8_t { status, budget, watch, devices, maps, copies, queues, tool, none };

/// Have `restart` called in the child of each fork from now on; each subsystem has one function, which may be set
/// again. It must not rely on any lock being free, nor on a structure that a lock guards being consistent.
PINNING_API void at_fork(Subsystem subsystem, void (*restart)()) noexcept;

/// The one object of its type, which is made when first needed and never destroyed. With a `subsystem`, a child restarts
/// it by its `restart`, or forgets it if it has none. No thread waits for another that is making it, because a child
/// without that thread would wait forever: if several threads make one, the first to finish sets it.
template <class T, Subsystem subsystem = Subsystem::none>
class Only {
 public:
  static T* if_made() noexcept { return made_.load(std::memory_order_acquire); }

  /// `make` returns a std::unique_ptr; what it throws reaches the caller, and the next call tries again.
  template <class Make>
  static T& get(Make&& make) {
    if (T* const known = if_made()) return *known;
    if constexpr (subsystem != Subsystem::none) at_fork(subsystem, restart);
    auto one = make();
    T* first = nullptr;
    return made_.compare_exchange_strong(first, one.get()) ? *one.release() : *first;
  }

 private:
  static void restart() {
    T* const one = if_made();
    if constexpr (requires { one->restart(); }) {
      if (one != nullptr) one->restart();
    } else {
      made_.store(nullptr);
    }
  }

  static inline constinit std::atomic<T*> made_ = nullptr;
};

/// A list that only grows. It is consistent at any instant, also in a forked child.
template <class T>
class GrowingList {
 public:
  template <class Matches>
  T* find(Matches&& matches) const {
    return find(matches, first_.load(std::memory_order_acquire), nullptr);
  }

  /// Add `item`, unless another thread has added one that matches; returns the one in the list.
  template <class Matches>
  T& add(T item, Matches&& matches) {
    auto node = std::make_unique<Node>(std::move(item), first_.load(std::memory_order_acquire));
    Node* looked_at = nullptr;
    do {
      if (T* const known = find(matches, node->next, looked_at)) return *known;
      looked_at = node->next;
    } while (!first_.compare_exchange_weak(node->next, node.get()));
    return node.release()->item;
  }

  template <class Visit>
  void each(Visit&& visit) const {
    find([&](T& item) { return visit(item), false; });
  }

 private:
  struct Node {
    Node(T made, Node* after) : item(std::move(made)), next(after) {}
    T item;
    Node* next;
  };

  template <class Matches>
  static T* find(Matches& matches, Node* from, Node* to) {
    for (; from != to; from = from->next) {
      if (matches(from->item)) return &from->item;
    }
    return nullptr;
  }

  std::atomic<Node*> first_ = nullptr;
};

}  // namespace pinning
