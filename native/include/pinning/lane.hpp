// SPDX-License-Identifier: Apache-2.0
// One in-order queue of a vendor: what is submitted to it, how far it is, and what it keeps until then. Queues of Python
// and of C submit here.
//
// The vendor's event behind an operation is recorded only when it is needed: when something asks for it, or when the next
// operation is submitted while an `Event` is left. In a lane that is `shared`, others submit too, so it is recorded at once.
//
// Locks: the lane itself is one, held while something is submitted, because a vendor's queue takes one submission at a
// time; the vendor may hold it as long as it copies pageable memory. The thread that has it may acquire it again: a
// vendor written in Python may collect an object whose destructor submits. `Lane::state_`, taken after it, guards what
// is pending, and is held during no call of a vendor. Operations are destroyed with neither held: that may unlock memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "copy_plan.hpp"
#include "order.hpp"
#include "vendor.hpp"
#include "writes.hpp"

namespace pinning {

class Lane;

/// What tells a device's streams apart.
struct StreamKey {
  std::uintptr_t handle;  // of the legacy default stream, which has two, the first
  std::uint64_t thread;   // the number of this thread if each has a stream of its own with this handle, else 0
  bool operator==(StreamKey const&) const = default;
};

PINNING_API StreamKey key_of_stream(VendorDevice const& device, std::uintptr_t handle);

/// How a copy travels.
struct How {
  CopyPath path;  // the slowest of its parts
  Reason reason;
};

/// Called now and then by a thread that waits, with no lock held. What it throws ends the wait. Null: nothing is called.
using Meanwhile = void (*)();

/// A point in a lane between two submissions, shared by all events at that point.
class Place {
 public:
  explicit Place(std::shared_ptr<Lane> lane) noexcept : lane_(std::move(lane)) {}

 private:
  friend class Event;
  friend class Lane;

  std::shared_ptr<Lane> const lane_;
  std::shared_ptr<VendorEvent> vendor_;  // (Lane::state_)
  std::exception_ptr error_;             // (Lane::state_) of work before it, which the vendor has reported to another call
};

/// The end of an operation in a lane, which may outlive its queue. One that is made empty was complete from the start.
class Event {
 public:
  Event() = default;

  /// Whether it is known to be complete, without asking the vendor.
  bool is_over() const noexcept;
  /// Whether it is complete. Throws VendorError if it failed, or work before it.
  PINNING_API bool done();
  /// Block until it is. Throws as `done`.
  PINNING_API void wait(Meanwhile meanwhile = nullptr);
  /// `done` and `wait` in two steps: what the first one throws is not of the operation.
  PINNING_API void make_askable(bool block);
  PINNING_API bool ask(bool block, Meanwhile meanwhile);

  /// The vendor's event, made now if there is none yet. Throws InvalidArgument if that is forgotten.
  PINNING_API std::shared_ptr<VendorEvent> recorded();
  /// The same, or null.
  PINNING_API std::shared_ptr<VendorEvent> if_recorded() const;
  /// Forget the vendor's event and the error of the place; what it comes after stays.
  PINNING_API void forget() noexcept;
  /// Throw the error that the vendor has reported to another call, if there is one.
  PINNING_API void raise_error() const;
  /// Seconds from the end of another operation of this vendor to the end of this one, by the vendor's events. Waits for both.
  PINNING_API double seconds_since(Event& first, Meanwhile meanwhile);

  /// Add all that it comes after, and itself.
  PINNING_API void add_history(Dependencies& to) const;

  /// Null if it was complete from the start.
  PINNING_API SharedTimeline const& timeline() const noexcept;
  /// Null if it was complete from the start, or is forgotten.
  Lane* lane() const noexcept { return place_ == nullptr ? nullptr : place_->lane_.get(); }
  std::uint64_t position() const noexcept { return position_; }
  /// Nothing if it is not the end of a copy that `Lane::submit` has returned.
  std::optional<How> const& how() const noexcept { return how_; }
  /// Whether destroying it may return an event or a queue to the vendor.
  bool is_last_user() const noexcept {
    return place_.use_count() == 1 && (place_->vendor_ != nullptr || place_->lane_.use_count() == 1);
  }

 private:
  friend class Lane;
  friend class Queue;
  Event(std::shared_ptr<Place> place, std::uint64_t position) noexcept : place_(std::move(place)), position_(position) {}

  std::shared_ptr<Place> place_;
  SharedTimeline timeline_;  // once the place is forgotten
  std::uint64_t position_ = 0;
  SharedDependencies before_;  // what it comes after on other timelines
  std::optional<How> how_;
};

using Events = std::vector<Event*>;  // of one vendor

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  /// A new queue. Throws what the vendor throws.
  PINNING_API static std::shared_ptr<Lane> make(VendorDevice& device, bool ordered = true);
  /// A lane of `queue`. `ordered`: an operation comes after all before it, and does not only happen to.
  PINNING_API static std::shared_ptr<Lane> make(VendorDevice& device, std::shared_ptr<VendorQueue> queue, bool ordered,
                                                bool adopted);
  /// The lane of a stream that others submit to as well, and that its owner keeps as long as anything uses the lane.
  PINNING_API static std::shared_ptr<Lane> adopt(VendorDevice& device, std::uintptr_t stream);
  Lane(Lane const&) = delete;
  /// Operations that may still be in progress are never destroyed.
  PINNING_API ~Lane();

  VendorDevice& device() const noexcept { return device_; }
  std::string const& vendor() const noexcept { return vendor_; }
  VendorQueue& queue() const noexcept { return *queue_; }
  SharedTimeline const& timeline() const noexcept { return timeline_; }
  bool is_adopted() const noexcept { return adopted_; }
  /// Whether others may submit to the vendor's queue.
  bool is_shared() const noexcept { return shared_; }
  bool is_closed() const noexcept { return closed_; }
  /// How many operations were submitted so far.
  std::uint64_t count() const noexcept { return submitted_; }
  bool is_over() const noexcept { return timeline_->reached() >= submitted_.load(); }
  /// Throw Unavailable in a fork of the process that made it.
  PINNING_API void check() const;
  /// Note that this thread runs a function that a vendor's queue calls; null: none. Returns what was noted before.
  PINNING_API static VendorQueue const* set_caller(VendorQueue const* queue) noexcept;

  // ---- submission ----

  /// Whether pending work, or work after these events, may write a range of the host. Work of others is not known.
  PINNING_API bool may_write(Span range, Events const& after);

  /// Submit a copy that starts after these events and all earlier work, and keep it until it is complete. Throws what the
  /// vendor throws, GraphCapture or Closed; then nothing of it is in progress.
  PINNING_API Event submit(std::unique_ptr<CopyOperation> copy, Events const& after);

  /// The capture whose graph records what is submitted; 0 if there is none.
  PINNING_API std::uint64_t capture();
  /// Throw GraphCapture, with the reason, while the queue is under capture.
  PINNING_API void check_uncaptured(char const* what);
  /// Submit any operation, or with null only a point, to a queue that is not under capture: the caller has asked.
  PINNING_API Event submit_uncaptured(std::unique_ptr<Operation> operation, Events const& after);
  /// Take and submit an operation that makes its calls without the GIL, or only a point, if the lane itself needs no call
  /// of the vendor and no wait for that: so the caller may have the GIL.
  PINNING_API bool submit_at_once(std::unique_ptr<Operation>& operation, Event& event);
  /// From now on others submit to the vendor's queue; what they submit must not come before a vendor's event of ours.
  PINNING_API void share();

  PINNING_API void lock();
  PINNING_API bool try_lock();
  PINNING_API void unlock() noexcept;
  /// (locked) Throw Closed if it is, or is about to be, and Unsupported in a thread whose stream it is not.
  PINNING_API void check_open() const;

  // ---- progress ----

  /// Find out what is complete, and destroy its operations; whether that is all. The vendor's errors are kept.
  PINNING_API bool poll();
  /// Ask the vendor's event of the last operation too, if there is one. Another queue may have waited for it and be done,
  /// while the thread or the engine of this one has yet to note that it is idle.
  PINNING_API void ask_last();
  /// The same for all work of the vendor's queue, also of others. Throws the first error that no event has.
  PINNING_API bool done();
  /// Block until all that was submitted so far is complete. Throws as `done`.
  PINNING_API void synchronize(Meanwhile meanwhile = nullptr);
  /// The same, but not for what others have submitted.
  PINNING_API void drain(Meanwhile meanwhile = nullptr);
  /// The same, for those who have not submitted it: its errors stay the queue's.
  PINNING_API void outlast(Meanwhile meanwhile = nullptr);
  PINNING_API bool keeps_any();
  /// The positions of operations that keep this object.
  PINNING_API std::vector<std::uint64_t> keeping(void const* object);
  /// Whether polling shows no progress, because others submit here too and the vendor has refused the last event, and
  /// refuses another one.
  PINNING_API bool is_silent();
  /// Whether the vendor reports nothing but errors.
  bool is_lost() const noexcept { return refusals_ >= lost; }

  // ---- the end ----

  /// `drain`, and give the vendor's queue back; nothing can be submitted then. Throws the first error. If the vendor has
  /// refused to take the queue back, it is still open, unless it refuses everything.
  PINNING_API void close(Meanwhile meanwhile = nullptr);
  /// Give the vendor's queue back, whose work is over as far as it is seen.
  PINNING_API void give_back();
  /// Whether this very thread is in a call of the vendor for this lane.
  PINNING_API bool is_in_call() const noexcept;

 private:
  friend class Event;
  static constexpr int lost = 8;  // consecutive failed questions, after which the device counts as lost

  /// An operation that may be in progress.
  struct Kept {
    std::uint64_t position;
    std::unique_ptr<Operation> operation;
  };
  /// A point of the vendor's that shows the progress.
  struct Marker {
    std::uint64_t position;
    std::shared_ptr<VendorEvent> event;
  };

  using VendorEvents = std::vector<std::shared_ptr<VendorEvent>>;

  Lane(VendorDevice& device, std::shared_ptr<VendorQueue> queue, bool ordered, bool adopted);
  void check_wait() const;
  bool is_threads_own() const;
  void check_thread() const;

  Event submit_locked(std::list<Kept>& kept, VendorEvents const& awaited, std::optional<How>* how);
  Event put(std::unique_ptr<Operation> operation, Events const& after, std::optional<How>* how);
  std::shared_ptr<Place> last_if_needed();
  bool is_last(std::shared_ptr<Place> const& place) const noexcept;
  void record_last();
  std::shared_ptr<VendorEvent> record_now(Place& place);
  std::shared_ptr<Place> begin(Operation const* operation, bool waits, std::shared_ptr<VendorEvent>& recorded);
  std::uint64_t end(std::list<Kept>& kept, std::list<Marker>& marker, std::shared_ptr<Place> const& place,
                    std::shared_ptr<VendorEvent> recorded) noexcept;
  void refuse(std::list<Kept>& kept, std::list<Marker>& marker, bool interrupted) noexcept;
  std::shared_ptr<VendorEvent> recorded(Place const& place);
  std::shared_ptr<VendorEvent> record(Place& place);

  void poll_now_and_then(std::uint64_t position);
  bool needs_progress();
  void mark_end();
  Marker last_marker(std::uint64_t upto);
  bool ask(bool block, Meanwhile meanwhile = nullptr);
  void ask_for_all(std::shared_ptr<Place> const& place, bool block);
  void read_markers();
  void blame(std::exception_ptr error);
  void abandon_all();
  void reach(std::uint64_t position);
  void finish(std::uint64_t position);
  void raise_error();

  VendorDevice& device_;
  std::string const vendor_;  // "cuda"
  std::shared_ptr<VendorQueue> queue_;
  std::uint64_t const thread_;  // whose stream it is; 0: of all threads
  bool const adopted_;          // and the owner may destroy the vendor's queue once what was submitted is over
  unsigned const made_in_;
  SharedTimeline const timeline_;

  std::recursive_mutex submitting_;
  unsigned depth_ = 0;                        // (locked) how many times it is
  std::atomic<std::thread::id> owner_;        // the thread that has locked it
  bool closing_ = false;                      // (locked)
  std::atomic<bool> closed_ = false;          // set when locked
  std::atomic<bool> shared_;                  // set when locked: progress is seen by markers only
  std::atomic<std::uint64_t> submitted_ = 0;  // operations; set when locked, at the end of each submission
  std::atomic<std::uint64_t> complete_ = 0;   // `submitted_` when it was last unlocked
  std::atomic<std::uint64_t> polled_ = 0;     // `submitted_` at the last poll
  std::atomic<std::uint32_t> asking_ = 0;     // threads that ask the vendor
  std::atomic<int> refusals_ = 0;             // failed questions since the last that succeeded

  std::mutex state_;
  Writes writes_;                // (state_)
  std::uint64_t waiting_ = 0;    // (state_) the last position that waits for an event of another lane
  std::list<Kept> kept_;         // (state_) ascending
  std::list<Marker> markers_;    // (state_) ascending; if shared, one for every position
  std::weak_ptr<Place> last_;    // (state_) after all that was submitted; gone if no event is left there
  std::exception_ptr error_;     // (state_) of work, until it is raised
  std::atomic<std::uint32_t> destroying_ = 0;  // threads that are in `reach`
};

inline bool Event::is_over() const noexcept {
  return place_ == nullptr || place_->lane_->timeline()->reached() >= position_;
}

}  // namespace pinning
