// SPDX-License-Identifier: Apache-2.0
// Host memory registered in one context, page by page, for locks that begin and end anywhere.
#pragma once

#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>

#include "ur_context.hpp"

namespace pinning::ur {

/// A half-open range of addresses, both multiples of the page size.
struct Pages {
  /// The whole pages that [ptr, ptr + size) touches.
  static Pages of(Address ptr, std::uint64_t size) noexcept;

  bool meets(Pages const& other) const noexcept { return start < other.end && other.start < end; }
  friend bool operator==(Pages const&, Pages const&) = default;

  Address start, end;
};

/// All that is registered in one context, shared by its devices.
///
/// A context registers whole pages, and each of them once. A lock is one registration where nothing else holds a page of
/// it; where a neighbour holds the page at its border, that page stays the neighbour's registration, used by both. A
/// registration cannot shrink, so when the neighbour goes first, its registration goes too and the page at the border is
/// registered alone. Between those two calls that page is not registered, so a lock should not go while a device is at
/// work on memory in the page of its border. Splitting every lock at its borders instead would make every copy of a
/// whole buffer cross from one registration into another, which adapters treat as unregistered memory or refuse.
///
/// A change of a range waits for a change of the same pages to end, and for no other. The adapter is called without the
/// mutex.
class Registrations {
 public:
  explicit Registrations(Context& context) : context_(context) {}

  /// Registers those of the `pages` that are not registered yet. `check` is given them, and throws where they are not to
  /// be registered. `writable`: they are known to be; else it is looked up. When it throws, nothing has changed.
  void lock(Pages pages, std::function<void(std::vector<Pages> const&)> const& check, bool writable);

  /// Undoes one `lock` of the same pages; those that other locks need stay registered. When it throws, everything is as
  /// it was.
  void unlock(Pages pages);

  /// Whether the page at `address` is registered here, or just changing.
  bool holds(Address address);

 private:
  /// Pages that one call has registered, with the pages of every lock that needs some of them.
  struct Registration {
    Pages pages;
    std::vector<Pages> users;
    bool imported;
  };
  class Alone;

  Registration& add(Loader const& loader, Pages pages, std::vector<Pages> users, bool writable);
  void remove(Loader const& loader, Registration const& registration);
  void release(Loader const& loader, Registration& registration, Pages pages, std::vector<std::function<void()>>& undo);
  std::vector<Registration*> touching(Pages pages);
  std::vector<Registration*> overlapping(Pages pages);
  Pages span(Pages pages);

  Context& context_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Pages> changing_;
  std::map<Address, Registration> registered_;  // by the first page; they are disjoint
};

}  // namespace pinning::ur
