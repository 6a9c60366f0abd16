// SPDX-License-Identifier: Apache-2.0
// The threads that move slices of whatever can move. None ever waits for one copy.
#pragma once

#include <pinning/staging.hpp>

#include <chrono>
#include <memory>
#include <vector>

#include "ring.hpp"
#include "waiting.hpp"

namespace pinning {

/// Of this process; a fork begins with none. Never destroyed: its threads are there until the process ends.
class CopyThreads {
 public:
  using Clock = std::chrono::steady_clock;

  /// Started at first use, as many as the system has to give.
  static CopyThreads& get(unsigned count);
  /// Those of this process, if it has any.
  static CopyThreads* known() noexcept;
  /// In the child, where no other thread runs.
  static void after_fork() noexcept;

  /// From now on its slices are moved as the ring's words allow. Its chunks follow those that the ring has.
  void begin(std::shared_ptr<Transfer> const& transfer, Ring& ring, StagingLimits const& limits);

  /// From now on no thread touches its memory, and nothing waits for it: its chunks count as moved. Returns when the
  /// slices are done that threads are at.
  void abandon(Transfer& transfer) noexcept;

  /// Has its threads bring in memory that is new, so many bytes at a time; what they are late for is left.
  void bring_in(char* memory, std::uint64_t size, std::uint64_t slice) noexcept;

  /// Whether all its chunks are.
  bool moved(Transfer const& transfer) noexcept;

  /// Has a transfer wait for a signal; false where that was given already.
  bool wait_for(Transfer& signal, std::shared_ptr<Transfer> const& waiter) noexcept;
  void give(Transfer& signal) noexcept;

  /// What a vendor's queue calls in place of a ring's words, on a thread of the vendor's.
  void copy_in_call(Transfer& transfer) noexcept;
  void wait_in_call(Transfer& waiter) noexcept;

  bool any() const noexcept { return count_ > 0; }
  /// Whether no thread looks at a ring any more.
  bool left(Ring const& ring) noexcept;

  /// Whether device and threads are past all that went through a ring.
  bool idle(Ring const& ring) noexcept;

 private:
  struct Slice {
    std::shared_ptr<Transfer> transfer;
    std::size_t chunk;
    std::uint64_t at, size;  // in the chunk
    bool faults, watch;      // bring in its pages; see whether it needs that
  };

  CopyThreads() noexcept;
  bool start();
  void work() noexcept;
  bool take(Slice* slice) noexcept;
  bool take_from(Ring& ring, Slice* slice) noexcept;
  bool given(Ring& ring) noexcept;
  void pass(Transfer& transfer) noexcept;
  bool has_room(Transfer const& transfer) const noexcept;
  void finish(Slice& slice, bool faulted) noexcept;
  void advance(Ring& ring) noexcept;
  bool move(Slice const& slice) const noexcept;

  Spinlock lock_;  // guards what follows, and what ring.hpp says
  std::vector<Ring*> active_;  // those that have transfers
  std::size_t turn_ = 0;       // the ring that is next
  unsigned to_device_ = 0, to_host_ = 0;  // threads at work
  unsigned most_to_device_ = 1, most_to_host_ = 1;

  std::atomic<unsigned> count_{0};
  std::atomic<unsigned> spinning_{0};
  Clock::duration spin_;
  Bell news_;                        // something may move, or be waited for
  Bell calls_;                       // a wait in a vendor's call may be over
  Bell arrivals_;                    // for the thread that watches: begin to look often again
  std::atomic<bool> watching_{false};  // whether a thread looks at the words while nothing can move
};

}  // namespace pinning
