// SPDX-License-Identifier: Apache-2.0
// The threads that move slices of any copy that can proceed. They never wait for a particular copy.
#pragma once

#include <pinning/staging.hpp>

#include <chrono>
#include <memory>
#include <vector>

#include "ring.hpp"
#include "waiting.hpp"

namespace pinning {

/// The copy threads of this process; a forked child begins with none. Never destroyed: they run until the process ends.
class CopyThreads {
 public:
  using Clock = std::chrono::steady_clock;

  /// Start `count` threads at first use, or as many as the system allows.
  static CopyThreads& get(unsigned count);
  /// The threads of this process; null if it has none.
  static CopyThreads* known() noexcept;
  /// Called in a forked child, where no other thread runs.
  static void after_fork() noexcept;

  /// Enter a transfer: its slices are moved as the ring's words allow. Its chunks follow those already in the ring.
  void begin(std::shared_ptr<Transfer> const& transfer, Ring& ring, StagingLimits const& limits);

  /// Stop a transfer: its chunks count as moved, so nothing waits for it. Returns when the slices in progress are done;
  /// no thread touches its memory afterwards.
  void abandon(Transfer& transfer) noexcept;

  /// Populate new memory by the threads, `slice` bytes at a time; what is not populated after 50 ms is left.
  void bring_in(char* memory, std::uint64_t size, std::uint64_t slice) noexcept;

  /// Whether all chunks are moved.
  bool moved(Transfer const& transfer) noexcept;

  /// Make a transfer wait for a signal; false if the signal was already given.
  bool wait_for(Transfer& signal, std::shared_ptr<Transfer> const& waiter) noexcept;
  void give(Transfer& signal) noexcept;

  /// Called by a vendor's queue that does not use a ring's words, on a thread of the vendor.
  void copy_in_call(Transfer& transfer) noexcept;
  void wait_in_call(Transfer& waiter) noexcept;

  bool any() const noexcept { return count_ > 0; }
  /// Whether no thread looks at a ring any more.
  bool left(Ring const& ring) noexcept;

  /// Whether device and threads have completed everything that went through a ring.
  bool idle(Ring const& ring) noexcept;

 private:
  struct Slice {
    std::shared_ptr<Transfer> transfer;
    std::size_t chunk;
    std::uint64_t at, size;  // in the chunk
    bool faults, watch;      // populate host memory first; count page faults to find out whether that is needed
  };

  CopyThreads() noexcept;
  bool start();
  void work() noexcept;
  bool take(Slice* slice) noexcept;
  bool take_from(Ring& ring, Slice* slice) noexcept;
  bool given(Ring& ring) noexcept;
  void pass(Transfer& transfer) noexcept;
  unsigned most_one_way(Transfer const& transfer) const noexcept;
  unsigned available(Transfer const& transfer) const noexcept;
  void count_devices() noexcept;
  void finish(Slice const& slice, bool faulted) noexcept;
  void advance(Ring& ring) noexcept;
  bool move(Slice const& slice) const noexcept;

  Spinlock lock_;  // guards the next five lines, and the fields that ring.hpp marks
  std::vector<Ring*> active_;  // rings that have transfers
  std::size_t turn_ = 0;       // the ring to serve next
  unsigned to_device_ = 0, to_host_ = 0;  // threads at work
  unsigned most_to_device_ = 1, most_to_host_ = 1;  // while one device copies
  unsigned devices_ = 0;                            // of the rings in `active_`

  std::atomic<unsigned> count_{0};
  std::atomic<unsigned> spinning_{0};
  Clock::duration spin_;
  Bell news_;                        // a slice may be ready, or words may need watching
  Bell calls_;                       // a wait in a vendor's call may be over
  Bell arrivals_;                    // for the watching thread: poll often again
  std::atomic<bool> watching_{false};  // whether a thread polls the words while nothing can move
};

}  // namespace pinning
