// SPDX-License-Identifier: Apache-2.0
// One in-order queue of a vendor: what is submitted to it, how far it is, and what it keeps until then.
//
// Locks: `Lane::submitting_` is held while something is submitted, because a vendor's queue takes one submission at a
// time; the vendor may hold it as long as it copies pageable memory. `Lane::state_`, taken after it, guards what is
// pending, and is held during no call of a vendor. Operations are destroyed with neither held: that may unlock memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "copy_plan.hpp"
#include "order.hpp"
#include "vendor.hpp"
#include "writes.hpp"

namespace pinning {

class Lane;

/// How a copy travels.
struct How {
  CopyPath path;  // the slowest of its parts
  Reason reason;
};

/// The end of an operation in a lane. It may outlive the queue.
class Event {
 public:
  /// Nothing if it is not the end of a copy.
  std::optional<How> const& how() const noexcept { return how_; }
  /// Whether the operation is complete. Throws VendorError if it failed, or work before it.
  PINNING_API bool done();
  /// Block until it is. Throws as `done`.
  PINNING_API void wait();

 private:
  friend class Lane;
  Event(std::shared_ptr<Lane> lane, std::uint64_t position) : lane_(std::move(lane)), position_(position) {}
  bool is_known_over() const noexcept;

  std::shared_ptr<Lane> lane_;
  std::uint64_t position_;
  std::optional<How> how_;
  std::shared_ptr<VendorEvent> vendor_;
};

using Events = std::vector<Event const*>;  // of one vendor

class Lane : public std::enable_shared_from_this<Lane> {
 public:
  /// A new queue. Throws what the vendor throws.
  PINNING_API static std::shared_ptr<Lane> make(VendorDevice& device);
  /// The lane of a stream that others submit to as well, and that its owner keeps as long as anything uses the lane.
  PINNING_API static std::shared_ptr<Lane> adopt(VendorDevice& device, std::uintptr_t stream);
  Lane(Lane const&) = delete;
  /// Operations that may still be in progress are never destroyed.
  PINNING_API ~Lane();

  VendorDevice& device() const noexcept { return device_; }
  VendorQueue& queue() const noexcept { return *queue_; }
  bool is_adopted() const noexcept { return adopted_; }

  /// Whether pending work, or work after these events, may write a range of the host. Work of others is not known.
  PINNING_API bool may_write(Span range, Events const& after);

  /// Submit an operation that starts after these events and all earlier work, and keep it until it is complete. Throws
  /// what the vendor throws, or GraphCapture; then nothing of it is in progress.
  PINNING_API void submit(std::unique_ptr<CopyOperation> operation, Events const& after);
  /// The same, and return its end.
  PINNING_API Event submit_with_event(std::unique_ptr<CopyOperation> operation, Events const& after);
  /// The end of all work so far.
  PINNING_API Event record();
  /// Make later work wait for these.
  PINNING_API void wait(Events const& events);

  /// Find out what is complete, and destroy its operations; whether that is all. The vendor's errors are kept for
  /// `synchronize`.
  PINNING_API bool poll();
  /// Block until all that was submitted so far is complete. Throws the first error of work since the last call.
  PINNING_API void synchronize();
  /// The same, but not for what others have submitted.
  PINNING_API void drain();
  /// `drain`, and give the vendor's queue back; nothing can be submitted then. Throws as `synchronize`; what the vendor
  /// refuses to complete or to take back is never destroyed.
  PINNING_API void close();

 private:
  friend class Event;
  enum class Mark : bool { if_adopted, always };

  /// An operation that may be in progress.
  struct Kept {
    std::uint64_t position;
    std::unique_ptr<CopyOperation> operation;
  };
  /// A point of the vendor's that shows the progress.
  struct Marker {
    std::uint64_t position;
    std::shared_ptr<VendorEvent> event;
  };

  Lane(VendorDevice& device, std::unique_ptr<VendorQueue> queue, bool adopted);

  void check() const;
  Event put(std::unique_ptr<CopyOperation> operation, Events const& after, Mark mark);
  void begin(std::uint64_t position, CopyOperation const* operation, Events const& after);
  void end(std::uint64_t position, std::list<Kept>& kept, std::list<Marker>& marker) noexcept;
  void mark_end();
  Marker last_marker(std::uint64_t upto);
  void poll_now_and_then(std::uint64_t position);
  void read_markers();
  void reach(std::uint64_t position);
  void finish(std::uint64_t position);
  void raise_error();
  bool is_over() const noexcept { return timeline_->reached() >= submitted_.load(); }

  VendorDevice& device_;
  std::string const vendor_;  // "cuda"
  std::unique_ptr<VendorQueue> queue_;
  bool const adopted_;  // others submit there: progress is seen by markers only
  unsigned const made_in_;
  SharedTimeline const timeline_ = std::make_shared<Timeline>(true);

  std::mutex submitting_;
  bool closed_ = false;                       // (submitting_)
  std::atomic<std::uint64_t> submitted_ = 0;  // operations; set with `submitting_` held, at the end of each submission
  std::atomic<std::uint64_t> polled_ = 0;     // `submitted_` at the last poll

  std::mutex state_;
  Writes writes_;              // (state_)
  std::list<Kept> kept_;       // (state_) ascending
  std::list<Marker> markers_;  // (state_) ascending
  std::atomic<std::uint32_t> destroying_ = 0;  // threads that are in `reach`
  std::exception_ptr error_;   // (state_) of work, until `synchronize` or `close` reports it
};

inline bool Event::is_known_over() const noexcept { return lane_->timeline_->reached() >= position_; }

}  // namespace pinning
