// SPDX-License-Identifier: Apache-2.0
// Objects of which the process has one, and what a forked child does with them.
//
// Nothing is called, and no lock is taken, before a fork: handlers of other libraries that run then may wait for their
// own threads, which may be about to take that lock. So a child begins with the state of that instant, in which another
// thread may have been in the middle of any change. What the child needs from its parent is published in one step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <pinning/generation.hpp>

namespace pinning {

/// What is restarted in a child, in this order.
enum class Subsystem : std::uint8_t { status, budget, watch, devices, maps, copies, queues };
inline constexpr std::size_t subsystems = 7;

/// Have `begin_anew` called in the child of each fork from now on; each subsystem has one function, which may be set
/// again. It must not rely on any lock being free, nor on a structure that a lock guards being consistent.
void at_fork(Subsystem subsystem, void (*begin_anew)()) noexcept;

/// One object that is made when first needed, and never destroyed. No thread waits for another that is making it,
/// because a child without that thread would wait forever: if several threads make one, the first to finish sets it.
template <class T>
class Only {
 public:
  T* if_made() const noexcept { return made_.load(std::memory_order_acquire); }

  /// `make` returns a std::unique_ptr; what it throws reaches the caller, and the next call tries again.
  template <class Make>
  T& get(Make&& make) {
    if (T* const known = if_made()) return *known;
    auto one = make();
    T* first = nullptr;
    return made_.compare_exchange_strong(first, one.get()) ? *one.release() : *first;
  }

  /// Forget the object, in a child that has no use for that of its parent.
  void forget() noexcept { made_.store(nullptr); }

 private:
  std::atomic<T*> made_ = nullptr;
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
