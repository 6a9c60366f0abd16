// SPDX-License-Identifier: Apache-2.0
// Operations of one device: each starts after its wait list and, in an in-order queue, after all before it.
//
// An in-order queue has one lane. An out-of-order queue has up to four; one more is made when an operation finds none idle.
//
// Locks: `Queue::state_` guards the lanes and what later operations come after. It is taken under no other lock, and held
// during no call of a vendor and no destruction of an event.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "lane.hpp"

namespace pinning {

class Queue {
 public:
  /// In the order of the timeline of `first`, a lane that belongs to this queue.
  explicit Queue(std::shared_ptr<Lane> first) : first_(std::move(first)), ordered_(first_->timeline()->ordered()), lanes_{first_} {}
  Queue(Queue const&) = delete;
  /// A new queue of the device. Throws what the vendor throws.
  PINNING_API static std::unique_ptr<Queue> make(VendorDevice& device, bool ordered);

  bool ordered() const noexcept { return ordered_; }
  /// Those that are not closed. Throws Unavailable, as all that follows, in a fork of the process that made them.
  PINNING_API std::vector<std::shared_ptr<Lane>> lanes();
  /// The lane that is there from the start. What holds of the vendor's queues can be asked of it.
  Lane& first() const noexcept { return *first_; }

  // ---- what an operation comes after ----

  /// Where an operation goes, and what it waits for.
  struct Turn {
    std::shared_ptr<Lane> lane;  // null: all are busy, and there is room for one more; see `add`
    Events after;                // for which the lane must wait, because nothing else does
    Events foreign;              // the same, of other vendors
    std::vector<Event> barrier;  // `after` may refer to these
    SharedDependencies known;    // what the queue comes after, on other timelines
    SharedDependencies before;   // the same object if the wait list and the barrier add nothing to that
  };
  /// The turn of an operation that is submitted now. Polls, out of order.
  PINNING_API Turn turn(Events const& wait_for);
  /// Give the turn a new lane of the same order.
  PINNING_API void add(Turn& turn, std::shared_ptr<Lane> lane);
  /// Note that an operation was submitted in its turn. `event` is its end.
  PINNING_API void note(Turn const& turn, Event& event);
  /// The same for one without a wait list in the lane of an in-order queue, which is its turn.
  PINNING_API void note(Event& event);
  /// The same for a point in a lane of an out-of-order queue that stands for all work so far there.
  PINNING_API void note_tail(Event& event);
  /// Out of order: make all later work wait for this, an event of this queue.
  PINNING_API void bar(Event event);
  /// Let go of the events that later work would wait for: there is none.
  PINNING_API void lift();

  /// All that an operation with this wait list would come after, if it were submitted now.
  PINNING_API void add_history(Dependencies& to, Events const& wait_for);
  /// Whether pending work, or work in the wait list, may write a range of the host. Work of others is not known.
  PINNING_API bool may_write(Span range, Events const& wait_for);
  /// Whether others may submit to one of the vendor's queues.
  PINNING_API bool is_shared();

  // ---- for callers without a wait for other vendors ----

  /// Submit a copy that starts in its turn, as `Lane::submit`. Throws InvalidArgument for an event of another vendor.
  PINNING_API Event submit(std::unique_ptr<CopyOperation> copy, Events const& wait_for);
  /// The end of all work so far, recorded now.
  PINNING_API Event record();
  /// Make all later work wait for these.
  PINNING_API void wait(Events const& wait_for);
  /// Block until all that was submitted so far is complete. Throws the first error that no event has.
  PINNING_API void synchronize(Meanwhile meanwhile = nullptr);
  /// Wait for all, and give the vendor's queues back; an adopted one stays. Throws as `synchronize`.
  PINNING_API void close(Meanwhile meanwhile = nullptr);

 private:
  static constexpr std::size_t most_lanes = 4;

  std::shared_ptr<Lane> lane_for(Events const& wait_for);
  Turn turn_in_lane(Events const& wait_for);
  Event point(Events const& wait_for);
  template <class Act>
  void for_each_lane(Act act);

  std::shared_ptr<Lane> const first_;
  bool const ordered_;
  std::mutex state_;
  std::vector<std::shared_ptr<Lane>> lanes_;  // (state_) only grows
  std::vector<Event> barrier_;                // (state_) out of order: what all later operations wait for
  SharedDependencies before_;                 // (state_) what the next operation comes after, on other timelines
  std::atomic<bool> waited_ = false;          // whether there has been any
  SharedDependencies past_;                   // (state_) out of order: what any operation so far comes after, likewise
};

}  // namespace pinning
