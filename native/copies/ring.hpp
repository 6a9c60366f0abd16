// SPDX-License-Identifier: Apache-2.0
// One queue's pinned blocks and the chunks that pass through them, numbered in the order of the device.
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

/// Whether a counter that wraps has reached a value.
inline bool reached(std::uint32_t word, std::uint32_t value) noexcept {
  return static_cast<std::int32_t>(word - value) >= 0;
}

/// The words in pinned memory, each in its own cache line.
struct Words {
  alignas(64) std::atomic<std::uint32_t> taken{0};  // by the device: chunks that it has passed
  alignas(64) std::atomic<std::uint32_t> begun{0};  // by the device: chunks of copies to it whose turn has come
  alignas(64) std::atomic<std::uint32_t> moved{0};  // by the threads: chunks that are in their block, or in host memory
};

enum class Way : std::uint8_t { to_device, to_host, in_host, signal, wait, fresh };  // fresh: populate memory

struct Chunk {
  std::uint64_t at, size;  // in the copy
  char* block;
  std::uint32_t needs;     // the block is free once so many chunks of the ring are complete
  bool cold;               // this is the first use of the block since the ring was idle
  std::uint64_t left;      // bytes still to be moved; 1 for a signal or a wait. Guarded by the threads' lock
};

/// Places the blocks of chunks in a ring, one behind the other, wrapping around.
class Placement {
 public:
  Placement() = default;
  Placement(char* blocks, std::uint64_t size) : blocks_(blocks), size_(size) {}

  std::uint64_t size() const noexcept { return size_; }

  /// The ring is idle, and `next` is the number of its next chunk: all `size` bytes are free. The next block lies behind
  /// the last one, because a device writes faster where no processor has in its cache what was read there before: 8 MiB
  /// at 36 GB/s instead of 22, 16 MiB at 41 instead of 32.
  void renew(std::uint64_t size, std::uint32_t next) {
    size_ = size, free_ = next, lapped_ = false;
    used_.clear();
    if (head_ >= size) head_ = 0;
  }
  /// Begin at the first block, if nothing is placed yet: blocks that threads have filled lately are filled faster.
  void rewind() noexcept {
    if (used_.empty()) head_ = 0;
  }

  /// Place the chunk's block behind that of the previous chunk.
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
  std::deque<Used> used_;  // oldest first
  std::uint32_t free_ = 0;
  bool lapped_ = false;
};

/// A range of host memory; the bytes of a copy fill its ranges in order. For the end in a file, the addresses are
/// offsets in the file.
struct Range {
  std::uint64_t at;    // in the copy
  Address host, from;  // `host` is read or written; in a copy within the host, `host` is written and `from` is read
  std::uint64_t row = FileRows::endless, pitch = 0;  // of the end in a file
};

struct Ring;

/// Chunks that were submitted together.
struct Transfer {
  Way way;
  std::vector<Range> ranges;   // ascending by `at`, and one behind the last byte
  FileEnd file;                // one end of the copy, if it is a file
  bool early = false;          // the source may be read before its turn
  std::uint64_t slice = slice_bytes;
  unsigned most_at_work = ~0u;  // limit of `at_work`
  Ring* ring = nullptr;        // null if the vendor's queue calls a function instead
  std::uint32_t base = 0;      // the number of its first chunk
  std::vector<Chunk> chunks;
  std::uint32_t count = 0;     // of its chunks, plus an empty one if the device reports that it has passed a last wait

  // guarded by the threads' lock
  std::size_t next = 0;            // the chunk of the next slice
  std::uint64_t next_at = 0;       // its offset in the chunk
  std::uint32_t moved = 0;         // moved chunks before the first that is not
  unsigned at_work = 0;            // threads that move slices
  bool abandoned = false;
  bool faults = false;             // its host memory is populated slice by slice, before the slice is moved
  std::shared_ptr<Transfer> waiter;  // the transfer that waits for this signal

  /// Call `move(range, inside, at, size)` for each host range of these bytes of the copy; `inside`: from where in it.
  template <class Move>
  void for_each_range(std::uint64_t at, std::uint64_t size, Move&& move) const {
    auto range = std::prev(std::ranges::upper_bound(ranges, at, {}, &Range::at));
    for (std::uint64_t const end = at + size; at < end; ++range) {
      std::uint64_t const inside = at - range->at, count = std::min(end, std::next(range)->at) - at;
      move(*range, inside, at, count);
      at += count;
    }
  }

  /// How much of `size` bytes at `at` one thread moves in a turn. What it populates ends where a huge page does, so that
  /// no other thread populates the rest of it, unless one thread is to move all.
  std::uint64_t slice_at(std::uint64_t at, std::uint64_t size) const noexcept {
    if (!faults || way == Way::fresh || slice >= this->size()) return std::min(slice, size);
    std::uint64_t const begun = ranges.size() == 2 ? (ranges[0].host + at) % huge_page : 0;
    return std::min(huge_page - begun, size);
  }

  std::uint32_t end() const noexcept { return base + count; }
  bool to_host() const noexcept { return way == Way::to_host || way == Way::in_host; }
  std::uint64_t size() const noexcept { return ranges.back().at; }
  /// Whether it may be worth finding out that the memory it writes is new: in a small copy that takes longer than it saves.
  bool may_populate() const noexcept { return to_host() && !(file && file.writes) && size() >= huge_page; }
};

/// Belongs to one queue at a time. Only the thread that submits to this queue changes `next` and `placement`.
struct Ring {
  RingMemory memory;
  void const* device = nullptr;  // what has the rings of one device; null if it has no device
  std::uint64_t size = 0;  // of its blocks; the words are in a page in front of them
  static constexpr std::uint64_t front = 4096;

  Words& words() const noexcept { return *reinterpret_cast<Words*>(memory.ptr); }
  Address on_device(std::size_t word) const noexcept { return memory.ptr + memory.shift + word; }
  Address taken() const noexcept { return on_device(offsetof(Words, taken)); }
  Address begun() const noexcept { return on_device(offsetof(Words, begun)); }
  Address moved() const noexcept { return on_device(offsetof(Words, moved)); }
  char* blocks() const noexcept { return reinterpret_cast<char*>(memory.ptr + front); }

  // guarded by the threads' lock
  std::uint32_t published = 0;                      // the value of `moved`
  std::deque<std::shared_ptr<Transfer>> transfers;  // not yet moved, oldest first

  // guarded by the mutex of the device's staging
  std::uint64_t queue = 0;  // the number of the queue that it belongs to
  std::uint64_t era = 0;    // changes when its words count from 0 again; no two rings have the same
  unsigned users = 0;       // submissions in progress, and borrowers of its blocks
  bool broken = false;      // a submission failed, and the words may stay inconsistent

  std::atomic<std::uint32_t> next{0};  // the number of the next chunk

  Placement placement;
};

}  // namespace pinning
