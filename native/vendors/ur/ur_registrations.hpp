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
  /// The whole pages that [ptr, ptr + size) overlaps.
  static Pages of(Address ptr, std::uint64_t size) noexcept;

  bool meets(Pages const& other) const noexcept { return start < other.end && other.start < end; }
  friend bool operator==(Pages const&, Pages const&) = default;

  Address start, end;
};

/// The registrations of one context, shared by its devices.
///
/// A context registers whole pages, and each of them once. A lock is one registration if no other lock holds any of its
/// pages. If a neighbour holds the page at its border, that page stays in the neighbour's registration, used by both. A
/// registration cannot shrink, so when the neighbour is unlocked first, its registration is removed, and the page at
/// the border is registered alone. Between those two calls that page is not registered, so memory should not be
/// unlocked while a device uses other memory in the page at its border. Splitting every lock at its borders instead
/// would make every copy of a whole buffer cross registrations, which adapters treat as unregistered memory or refuse.
///
/// A change of a range waits only for changes of the same pages. The adapter is called without the mutex.
class Registrations {
 public:
  explicit Registrations(Context& context) : context_(context) {}

  /// Registers those of the `pages` that are not registered yet, after `check` of them, which throws if they must not
  /// be registered. `writable`: they are known to be; else this is looked up. If it throws, nothing has changed.
  void lock(Pages pages, std::function<void(std::vector<Pages> const&)> const& check, bool writable);

  /// Undoes one `lock` of the same pages; those that other locks need stay registered. If it throws, the previous
  /// registrations are restored, as far as the adapter allows.
  void unlock(Pages pages);

  /// Whether the page at `address` is registered here, or being changed.
  bool holds(Address address);

 private:
  /// Pages registered by one call, and the pages of every lock that needs some of them.
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
