// SPDX-License-Identifier: Apache-2.0
// Maps of devices that share their vendor's registrations.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <new>
#include <vector>

namespace pinning {

class PinnedMap;

/// The maps of a vendor that locks memory for all its devices at once: a registration made through one map is locked
/// for the others too. It is one region with the same bounds in each map in which it is locked; the last of these maps
/// has the vendor undo it.
///
/// Locks: `mutex_` is held while a map searches the other maps and enters or removes a region accordingly. A map's
/// mutex nests inside it. While it is held, no vendor is called and no thread is waited for. A lock does not take it
/// while there is only one map.
class Siblings {
 public:
  void join(PinnedMap& map) {
    std::lock_guard const guard(mutex_);
    maps_.push_back(&map);
    several_ = maps_.size() > 1;
  }
  /// Remove a map, and wait until no visit keeps it.
  void leave(PinnedMap& map) noexcept {
    std::unique_lock guard(mutex_);
    std::erase(maps_, &map);
    several_ = maps_.size() > 1;
    visit_ended_.wait(guard, [&] { return std::find(visited_.begin(), visited_.end(), &map) == visited_.end(); });
  }

  bool several() const noexcept { return several_; }

  class Visit;
  /// While it exists, no sibling enters a region or removes a shared one.
  class Claim {
   public:
    explicit Claim(Siblings& siblings) : siblings_(siblings), guard_(siblings.mutex_) {}
    std::vector<PinnedMap*> const& maps() const noexcept { return siblings_.maps_; }
    void end() { guard_.unlock(); }

   private:
    friend Visit;
    Siblings& siblings_;
    std::unique_lock<std::mutex> guard_;
  };

  /// Ends the claim, and keeps one of its maps from being destroyed.
  class Visit {
   public:
    Visit(Claim& claim, PinnedMap& map) : siblings_(claim.siblings_), map_(map) {
      siblings_.visited_.push_back(&map);
      claim.end();
    }
    ~Visit() {
      std::lock_guard const guard(siblings_.mutex_);
      siblings_.visited_.erase(std::find(siblings_.visited_.begin(), siblings_.visited_.end(), &map_));
      siblings_.visit_ended_.notify_all();
    }
    Visit(Visit const&) = delete;

   private:
    Siblings& siblings_;
    PinnedMap& map_;
  };

  /// In a forked child, before it has a map: construct again, because a thread of the parent may have held the mutex.
  void restart() noexcept { new (this) Siblings; }

 private:
  std::mutex mutex_;
  std::condition_variable visit_ended_;
  std::vector<PinnedMap*> maps_;
  std::vector<PinnedMap*> visited_;  // once for each visit
  std::atomic<bool> several_ = false;
};

/// The siblings of all devices of one class. Never destroyed, like their maps. Constructed when the library is loaded:
/// if a thread of the parent were just constructing them at a fork, the child would wait for that thread forever.
template <class Device>
struct SiblingsOf {
  alignas(Siblings) static inline unsigned char room[sizeof(Siblings)];
  static inline Siblings& all = *new (room) Siblings;
};
template <class Device>
Siblings& siblings_of() noexcept {
  return SiblingsOf<Device>::all;
}

}  // namespace pinning
