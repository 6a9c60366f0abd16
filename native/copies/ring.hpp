// SPDX-License-Identifier: Apache-2.0
// What goes through one queue's pinned blocks: chunks, numbered in the order in which the device comes to them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <pinning/errors.hpp>
#include <pinning/file.hpp>

#include "moving.hpp"
#include "ring_memory.hpp"

namespace pinning {

/// Whether a word that wraps has reached a value.
inline bool reached(std::uint32_t word, std::uint32_t value) noexcept {
  return static_cast<std::int32_t>(word - value) >= 0;
}

/// In pinned memory. What the device writes and what the threads write are in cache lines of their own.
struct Words {
  alignas(64) std::atomic<std::uint32_t> taken{0};  // by the device: chunks that it is past
  alignas(64) std::atomic<std::uint32_t> begun{0};  // by the device: chunks of copies to it whose turn has come
  alignas(64) std::atomic<std::uint32_t> moved{0};  // by the threads: chunks in their block, or in the host's memory
};

enum class Way : std::uint8_t { to_device, to_host, in_host, signal, wait, fresh };  // fresh: memory is brought in

struct Chunk {
  std::uint64_t at, size;  // of the copy's bytes
  char* block;
  std::uint32_t needs;     // how many chunks of the ring must be over for the block to be free
  bool cold;               // whether the block was not used before since the ring was idle
  std::uint64_t left;      // bytes that are still to be moved; of a signal and a wait 1. Guarded by the threads' lock
};

/// Where in a ring the blocks of its chunks are, one behind the other, round and round.
class Placement {
 public:
  /// Of a ring that is idle, which has come to chunk `next`: all of it is free.
  Placement() = default;
  Placement(char* blocks, std::uint64_t size, std::uint32_t next) : blocks_(blocks), size_(size), free_(next) {}

  std::uint64_t size() const noexcept { return size_; }

  /// Finds the chunk's block behind that of the chunk before.
  void place(Chunk& chunk, std::uint32_t number) {
    if (head_ + chunk.size > size_) {
      while (!used_.empty() && used_.front().at >= head_) pop();
      head_ = 0;
      lapped_ = true;
    }
    while (!used_.empty() && used_.front().at >= head_ && used_.front().at < head_ + chunk.size) pop();
    chunk.block = blocks_ + head_;
    chunk.needs = free_;
    chunk.cold = !lapped_;
    used_.push_back({head_, number});
    head_ += (chunk.size + 4095) & ~std::uint64_t{4095};
  }

 private:
  struct Used {
    std::uint64_t at;
    std::uint32_t number;
  };
  void pop() {
    free_ = used_.front().number + 1;
    used_.pop_front();
  }

  char* blocks_ = nullptr;
  std::uint64_t size_ = 0, head_ = 0;
  std::deque<Used> used_;  // the oldest first
  std::uint32_t free_ = 0;
  bool lapped_ = false;
};

/// A range of the host's, whose bytes lie behind one another in the order of a copy's ranges. Of a file's end they are
/// offsets in the file.
struct Range {
  std::uint64_t at;    // of the copy's bytes
  Address host, from;  // to be read or written; in the host: to be written, and where it comes from
};

struct Ring;

/// Chunks that were submitted together.
struct Transfer {
  Way way;
  std::vector<Range> ranges;   // ascending, and one behind the last byte
  FileEnd file;                // whose bytes are one end, if there is one
  bool early = false;          // it may be read before its turn
  std::uint64_t slice = slice_bytes;
  unsigned most_at_work = ~0u;  // threads
  Ring* ring = nullptr;        // null where the vendor's queue calls a function instead
  std::uint32_t base = 0;      // the number of its first chunk
  std::vector<Chunk> chunks;
  std::uint32_t count = 0;     // of its chunks; one more where the last is empty, and says that the device is past it

  // guarded by the threads' lock
  std::size_t next = 0;            // the chunk of the next slice
  std::uint64_t next_at = 0;       // where in the chunk
  std::uint32_t moved = 0;         // chunks that are moved and have none before them that is not
  unsigned at_work = 0;            // threads
  bool abandoned = false, faults = false;
  std::shared_ptr<Transfer> waiter;  // for this signal

  /// Calls `move(host, from, at, size)` for each range of the host's that these bytes of the copy are.
  template <class Move>
  void for_each_range(std::uint64_t at, std::uint64_t size, Move&& move) const {
    auto range = std::prev(std::ranges::upper_bound(ranges, at, {}, &Range::at));
    for (std::uint64_t const end = at + size; at < end; ++range) {
      std::uint64_t const inside = at - range->at, count = std::min(end, std::next(range)->at) - at;
      move(range->host + inside, range->from + inside, at, count);
      at += count;
    }
  }

  std::uint32_t end() const noexcept { return base + count; }
  bool to_host() const noexcept { return way == Way::to_host || way == Way::in_host; }
};

/// One queue's at a time. `next` and `placement` belong to whoever submits there.
struct Ring {
  RingMemory memory;
  std::uint64_t size = 0;  // of its blocks; the words are in a page in front of them
  static constexpr std::uint64_t front = 4096;

  Words& words() const noexcept { return *reinterpret_cast<Words*>(memory.ptr); }
  Address on_device(std::size_t word) const noexcept { return memory.ptr + memory.shift + word; }
  Address taken() const noexcept { return on_device(offsetof(Words, taken)); }
  Address begun() const noexcept { return on_device(offsetof(Words, begun)); }
  Address moved() const noexcept { return on_device(offsetof(Words, moved)); }
  char* blocks() const noexcept { return reinterpret_cast<char*>(memory.ptr + front); }

  // guarded by the threads' lock
  std::uint32_t published = 0;                      // what `moved` says
  std::deque<std::shared_ptr<Transfer>> transfers;  // those not moved, the oldest first

  // guarded by the mutex of the device's staging
  std::uint64_t queue = 0;  // the number of the queue that has it
  unsigned users = 0;       // who submit through it now, or have borrowed its blocks
  bool broken = false;      // a submission failed, and its words may never agree again

  std::atomic<std::uint32_t> next{0};  // the number of the next chunk

  Placement placement;
};

}  // namespace pinning
