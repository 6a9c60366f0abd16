// SPDX-License-Identifier: Apache-2.0
// What comes after what.
#pragma once

#include <algorithm>
#include <atomic>
#include <compare>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace pinning {

class Lane;

/// The operations of one in-order lane of a vendor, by position: 1, 2, 3 and so on.
class Timeline {
 public:
  /// `ordered`: each operation comes after all before it. In the lanes of an out-of-order queue they happen to run in
  /// order, but nothing may rely on it.
  explicit Timeline(bool ordered) noexcept : ordered_(ordered) {}
  Timeline(Timeline const&) = delete;

  bool ordered() const noexcept { return ordered_; }
  /// The lane that finds out how far it is, as long as there is one. Set before others see the timeline.
  std::weak_ptr<Lane> lane;

  /// The last position that is known to be over. It only grows, from any thread.
  std::uint64_t reached() const noexcept { return reached_.load(std::memory_order_acquire); }
  void reach(std::uint64_t position) noexcept {
    std::uint64_t known = reached_.load(std::memory_order_relaxed);
    while (known < position && !reached_.compare_exchange_weak(known, position, std::memory_order_release,
                                                               std::memory_order_relaxed)) {
    }
  }

 private:
  bool const ordered_;
  std::atomic<std::uint64_t> reached_ = 0;
};

using SharedTimeline = std::shared_ptr<Timeline>;

/// Operations that another one comes after, through queues and wait lists: of some timelines all up to a position, of
/// others single ones. What is over needs no entry, and so dependencies do not grow for ever.
class Dependencies {
 public:
  /// Add an operation, and on an ordered timeline all before it.
  void add(SharedTimeline const& timeline, std::uint64_t position) { insert({timeline, position, timeline->ordered()}); }
  /// Add an operation and all before it, on any timeline.
  void add_upto(SharedTimeline const& timeline, std::uint64_t position) { insert({timeline, position, true}); }

  /// Add everything of another one, except what `known` covers.
  void add(Dependencies const& more) { merge(more, nullptr); }
  void add_uncovered(Dependencies const& more, Dependencies const& known) { merge(more, &known); }

  /// Whether the operation is among them, or over.
  bool covers(Timeline const& timeline, std::uint64_t position) const noexcept {
    return covers(timeline, position, timeline.ordered());
  }
  /// Whether all of the others are.
  bool covers(Dependencies const& others) const noexcept {
    return std::all_of(others.entries_.begin(), others.entries_.end(), [&](Entry const& each) { return covers(each); });
  }

  /// Replace everything by an operation that its own timeline puts after all of it; false, without a change, if that
  /// does not.
  bool replace(SharedTimeline const& timeline, std::uint64_t position) {
    auto const is_before = [&](Entry const& each) {
      return each.reached() || (each.timeline == timeline && each.position <= position);
    };
    if (!timeline->ordered() || !std::all_of(entries_.begin(), entries_.end(), is_before)) return false;
    if (entries_.size() == 1 && entries_.front().timeline == timeline) {
      entries_.front().position = position;
    } else {
      entries_.assign(1, {timeline, position, true});
    }
    return true;
  }

  /// Whether all of it is over.
  bool reached() const noexcept {
    return std::all_of(entries_.begin(), entries_.end(), [](Entry const& each) { return each.reached(); });
  }
  /// Add the lanes of what is not over.
  void add_lanes(std::vector<std::shared_ptr<Lane>>& to) const {
    for (Entry const& each : entries_) {
      if (each.reached()) continue;
      auto lane = each.timeline->lane.lock();
      if (lane != nullptr && std::find(to.begin(), to.end(), lane) == to.end()) to.push_back(std::move(lane));
    }
  }
  /// Remove what is over.
  void drop_reached() noexcept {
    std::erase_if(entries_, [](Entry const& each) { return each.reached(); });
  }

  std::size_t size() const noexcept { return entries_.size(); }
  void swap(Dependencies& other) noexcept { entries_.swap(other.entries_); }
  bool operator==(Dependencies const&) const = default;

 private:
  /// One for each entry; of a timeline, that of its `upto` comes first.
  struct Key {
    std::uintptr_t timeline;
    std::uint64_t single;  // the position of a single operation; 0: all up to one

    Key(Timeline const& of, std::uint64_t position, bool upto) noexcept
        : timeline(reinterpret_cast<std::uintptr_t>(&of)), single(upto ? 0 : position) {}
    auto operator<=>(Key const&) const = default;
  };

  /// An operation; `upto`: and all before it.
  struct Entry {
    SharedTimeline timeline;
    std::uint64_t position;
    bool upto;

    bool reached() const noexcept { return timeline->reached() >= position; }
    Key key() const noexcept { return {*timeline, position, upto}; }
    bool operator==(Entry const&) const = default;
  };

  static bool precedes(Entry const& entry, Key const& key) noexcept { return entry.key() < key; }

  bool covers(Timeline const& timeline, std::uint64_t position, bool upto) const noexcept {
    if (timeline.reached() >= position) return true;
    auto const first = Key(timeline, 0, true);
    auto const found = std::lower_bound(entries_.begin(), entries_.end(), first, precedes);
    if (found == entries_.end()) return false;
    if (found->key() == first && found->position >= position) return true;
    if (upto) return false;
    auto const single = Key(timeline, position, false);
    auto const other = std::lower_bound(found, entries_.end(), single, precedes);
    return other != entries_.end() && other->key() == single;
  }
  bool covers(Entry const& entry) const noexcept {
    return covers(*entry.timeline, entry.position, entry.upto);
  }

  void insert(Entry entry) {
    if (entry.reached()) return;
    auto const place = std::lower_bound(entries_.begin(), entries_.end(), entry.key(), precedes);
    if (place == entries_.end() || place->key() != entry.key()) {
      entries_.insert(place, std::move(entry));
    } else {
      place->position = std::max(place->position, entry.position);
    }
  }

  void merge(Dependencies const& more, Dependencies const* known) {
    std::vector<Entry> all;
    all.reserve(entries_.size() + more.entries_.size());
    auto const keep = [&](Entry const& entry) {
      if (!entry.reached()) all.push_back(entry);
    };
    auto own = entries_.begin();
    for (Entry const& other : more.entries_) {
      if (known != nullptr && known->covers(other)) continue;
      while (own != entries_.end() && own->key() < other.key()) keep(*own++);
      if (own != entries_.end() && own->key() == other.key()) {
        keep(own->position < other.position ? other : *own);
        ++own;
      } else {
        keep(other);
      }
    }
    while (own != entries_.end()) keep(*own++);
    entries_.swap(all);
  }

  std::vector<Entry> entries_;  // ascending by key
};

/// Dependencies that do not change, because several operations share them; null: none.
using SharedDependencies = std::shared_ptr<Dependencies const>;

/// All of both.
inline SharedDependencies joined(SharedDependencies const& some, Dependencies const& more) {
  if (more.size() == 0) return some;
  auto all = some == nullptr ? std::make_shared<Dependencies>() : std::make_shared<Dependencies>(*some);
  all->add(more);
  return all;
}

}  // namespace pinning
