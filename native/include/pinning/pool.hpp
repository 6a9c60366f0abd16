// SPDX-License-Identifier: Apache-2.0
// Memory of one kind that is allocated and freed in the order of queues: taken from a source, within a limit, and cut into
// blocks.
//
// Locks: `Pool::state_` guards the blocks and the figures. It is taken under no other lock, and held during no call of the
// source, of a lane or of a vendor.
#pragma once

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "blocks.hpp"
#include "lane.hpp"

namespace pinning {

class Pool {
 public:
  using Block = Blocks::Block;
  static constexpr std::uint64_t unlimited = UINT64_MAX;

  struct Memory {
    Address base;
    Address device_base;  // the device's address of the same byte
  };
  /// Where a pool's memory comes from. A device is given by its number in the pool.
  class Source {
   public:
    virtual ~Source() = default;
    virtual Memory allocate(std::size_t device, std::uint64_t size) = 0;
    /// What it throws has changed nothing, unless `gone` says that the memory is free nevertheless.
    virtual void free(std::size_t device, Address base, bool& gone) = 0;
  };

  struct Figures {
    std::uint64_t reserved = 0, used = 0;            // bytes
    std::uint64_t reserved_high = 0, used_high = 0;  // the most since `reset_high`
  };
  /// What keeps a pool from being closed.
  struct Left {
    std::uint64_t used, pending;  // bytes: allocated; free, but of work that may use them still
  };

  /// At most `most` bytes are reserved; while more than `keep` are, memory that is free goes back to the source.
  PINNING_API Pool(std::unique_ptr<Source> source, std::size_t devices, std::uint64_t most, std::uint64_t keep);
  Pool(Pool const&) = delete;
  PINNING_API ~Pool();

  /// A block that can be used after `before`, without new memory and without a look at how far the lanes are; null if there
  /// is none. Throws Closed.
  PINNING_API Block* take_free(std::size_t device, std::uint64_t size, Dependencies const& before);
  /// The same, if need be of new memory; null if that exceeds the limit. Throws Closed, and what the source throws.
  PINNING_API Block* take(std::size_t device, std::uint64_t size, Dependencies const& before);
  /// Let the next use of a block in use come after an event, and after all in its `after` that the event does not cover.
  PINNING_API static void order(Block& block, Event const& event);
  /// Free a block for uses after all in its `after`. Whether more is reserved now than the pool keeps: see `free_excess`.
  PINNING_API bool free(std::size_t device, Block* block) noexcept;
  /// Give back a block that was taken in vain.
  PINNING_API void untake(std::size_t device, Block* block) noexcept;
  /// Give back what is more, as far as the source takes it: what it refuses is tried again next time.
  PINNING_API void free_excess();

  /// Give memory back until at most `upto` bytes are reserved, or the rest may be in use. Throws the first refusal at the end.
  PINNING_API void trim(std::uint64_t upto);
  /// Wait for pending frees and give everything back; from then on nothing can be taken. What it throws, or returns as left,
  /// leaves the pool open.
  PINNING_API Left close(Meanwhile meanwhile = nullptr);
  bool is_closed() const noexcept { return closed_; }

  PINNING_API Figures figures();
  PINNING_API void reset_high();

 private:
  /// A segment that is free as a whole, as a block in use, while it is given back.
  struct Claim {
    std::size_t device;
    Block* block;
  };

  void poll();
  std::vector<std::shared_ptr<Lane>> lanes_of_frees();
  bool reserve(std::uint64_t size);
  Block* grow(std::size_t device, std::uint64_t size);
  Memory allocate(std::size_t device, std::uint64_t size);
  bool make_room(std::uint64_t upto, std::uint64_t earlier);
  bool release(std::uint64_t upto, std::exception_ptr* refusal);
  std::optional<Claim> claim_idle(std::uint64_t upto, std::vector<Claim>& refused);
  void note_high() noexcept { figures_.used_high = std::max(figures_.used_high, figures_.used); }
  std::uint64_t given_back();
  bool wait_for_others(std::uint64_t earlier);
  std::exception_ptr give_back(Claim claimed, std::vector<Claim>& refused);

  std::unique_ptr<Source> const source_;
  std::uint64_t const most_, keep_;

  std::mutex state_;
  std::vector<std::unique_ptr<Blocks>> devices_;  // (state_) the blocks; which there are does not change
  Figures figures_;                               // (state_) `used_high` as of the last free
  std::uint64_t growing_ = 0;                     // (state_) bytes that the source is asked for
  std::size_t leaving_ = 0;                       // (state_) segments that threads are giving back
  std::uint64_t given_back_ = 0;                  // (state_) segments so far; not those that the source refused
  std::condition_variable one_left_;              // or has been refused
  std::atomic<bool> closed_ = false;              // set with state_
};

}  // namespace pinning
