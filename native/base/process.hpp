// SPDX-License-Identifier: Apache-2.0
// What the process has once, and what a child of fork does with it.
//
// Nothing is called, and no lock is taken, before a fork: the handlers of other libraries that run then may wait for
// threads of theirs, which may be about to lock. So a child begins with all that was the case at that instant, and another
// thread may have been in the middle of any change. What the child needs of its parent's is published in one step.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <pinning/generation.hpp>

namespace pinning {

/// What begins anew in a child, in this order.
enum class Subsystem : std::uint8_t { status, budget, watch, devices, maps, copies };
inline constexpr std::size_t subsystems = 6;

/// Has `begin_anew` called in the child of each fork from now on; each subsystem has one function, which may be given again.
/// It relies on no lock being free and on no structure being whole that is changed under one.
void at_fork(Subsystem subsystem, void (*begin_anew)()) noexcept;

/// One object that is made when it is needed first, and never destroyed. No thread waits for another that makes it, for a
/// child in which that thread is not would wait for ever: where several make one, the first to be done has made it.
template <class T>
class Only {
 public:
  T* if_made() const noexcept { return made_.load(std::memory_order_acquire); }

  /// `make` gives a std::unique_ptr; what it throws goes to the caller, and the next call makes it.
  template <class Make>
  T& get(Make&& make) {
    if (T* const known = if_made()) return *known;
    auto one = make();
    T* first = nullptr;
    return made_.compare_exchange_strong(first, one.get()) ? *one.release() : *first;
  }

  /// In a child that has no use for its parent's.
  void forget() noexcept { made_.store(nullptr); }

 private:
  std::atomic<T*> made_ = nullptr;
};

/// A list that only grows. It is whole at any instant, also for a child.
template <class T>
class GrowingList {
 public:
  template <class Matches>
  T* find(Matches&& matches) const {
    return find(matches, first_.load(std::memory_order_acquire), nullptr);
  }

  /// The item that matches, which is `item` unless another thread was quicker.
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
