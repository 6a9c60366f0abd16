// SPDX-License-Identifier: Apache-2.0
// Copies between pageable memory and a device by way of a ring of pinned blocks, which threads fill or empty.
//
// All of a staged copy is put into the vendor's queue at once. Device and threads tell each other how far they are by
// two counters in pinned memory, which a queue can wait for and write as one of its operations; so a chunk costs no call
// from the driver back to the host, which takes longer than to copy a MiB.
//
//     to the device:  call(began)  for each chunk i: wait(moved > i)           copy  write(taken = i + 1)
//     to the host:    call(began)  for each chunk i: wait(moved > i - blocks)  copy  write(taken = i + 1)
//                     end: wait(moved = all)  write(taken = all + 1)
//
// No byte of the host's is touched before `began`, for work that is queued earlier may still read or write it.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <list>
#include <mutex>
#include <new>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

namespace pinning {

/// memcpy that leaves the destination out of the caches: it is not read first, which is a third of what moves.
inline void stream_copy(char* to, char const* from, std::size_t size) noexcept {
#if defined(__x86_64__)
  constexpr std::size_t line = 64;
  std::size_t const head = std::min(size, (line - reinterpret_cast<std::uintptr_t>(to) % line) % line);
  std::memcpy(to, from, head);
  to += head, from += head, size -= head;
  for (; size >= line; to += line, from += line, size -= line) {
    auto const* const source = reinterpret_cast<__m128i const*>(from);
    auto* const destination = reinterpret_cast<__m128i*>(to);
    __m128i const a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1);
    __m128i const c = _mm_loadu_si128(source + 2), d = _mm_loadu_si128(source + 3);
    _mm_stream_si128(destination, a);
    _mm_stream_si128(destination + 1, b);
    _mm_stream_si128(destination + 2, c);
    _mm_stream_si128(destination + 3, d);
  }
  _mm_sfence();  // such stores are in no order with others until then
#endif
  std::memcpy(to, from, size);
}

/// What a device writes and what the threads write, each in a cache line of its own. They count chunks of all the copies
/// by way of one ring, and wrap.
struct StagingCounters {
  alignas(64) std::atomic<std::uint32_t> taken{0};  // by the device: chunks that it has copied
  alignas(64) std::atomic<std::uint32_t> moved{0};  // by the threads: chunks in their block, or in the host's memory
};

inline StagingCounters* place_counters(void* memory) noexcept { return new (memory) StagingCounters; }
inline std::uint32_t taken(StagingCounters const& counters) noexcept {
  return counters.taken.load(std::memory_order_acquire);
}
inline std::uint32_t moved(StagingCounters const& counters) noexcept {
  return counters.moved.load(std::memory_order_acquire);
}

/// One copy by way of pinned blocks. It must live until it is `over`.
class StagedCopy {
 public:
  static constexpr std::size_t piece_bytes = 256 << 10;

  /// `chunk_bytes` is a multiple of `piece_bytes`; `blocks` are `block_count * chunk_bytes` bytes of pinned memory;
  /// `base` is the counters' value when it begins.
  StagedCopy(class CopyThreads& threads, bool to_device, char* host, std::size_t size, std::size_t chunk_bytes,
             char* blocks, std::uint32_t block_count, StagingCounters& counters, std::uint32_t base)
      : threads_(threads), to_device_(to_device), host_(host), size_(size), chunk_bytes_(chunk_bytes), blocks_(blocks),
        block_count_(block_count), counters_(counters), base_(base), left_((size + chunk_bytes - 1) / chunk_bytes) {
    for (std::uint32_t i = 0; i < chunks(); ++i) left_[i].store(bytes(i), std::memory_order_relaxed);
  }

  std::uint32_t chunks() const noexcept { return static_cast<std::uint32_t>(left_.size()); }
  std::size_t bytes(std::uint32_t chunk) const noexcept {
    return std::min(chunk_bytes_, size_ - chunk * chunk_bytes_);
  }
  char* block(std::uint32_t chunk) const noexcept { return blocks_ + chunk % block_count_ * chunk_bytes_; }

  /// Whether its turn in the queue has come.
  bool begun() const noexcept { return begun_.load(std::memory_order_acquire); }

  /// Whether no thread will touch it any more.
  bool over() const noexcept { return over_.load(std::memory_order_acquire); }

  /// From now on no thread touches any memory that it does not yet. False where one still may, until it is `over`.
  bool abandon() noexcept {
    abandoned_.store(true);
    return !begun_.load() || over();
  }

  /// What the vendor's queue calls, with the copy as its argument.
  static void began(void* copy);

 private:
  friend class CopyThreads;

  std::size_t pieces() const noexcept { return (size_ + piece_bytes - 1) / piece_bytes; }

  void move_piece(std::size_t piece) {
    if (abandoned_.load(std::memory_order_relaxed)) return;
    std::size_t const at = piece * piece_bytes;
    std::uint32_t const chunk = static_cast<std::uint32_t>(at / chunk_bytes_);
    std::size_t const count = std::min(piece_bytes, size_ - at);
    std::uint32_t const needed = to_device_ ? base_ + chunk - block_count_ + 1 : base_ + chunk + 1;
    if ((!to_device_ || chunk >= block_count_) && !wait_for_device(needed)) return;
    char* const staged = block(chunk) + (at - chunk * chunk_bytes_);
    if (!to_device_) {
      stream_copy(host_ + at, staged, count);
    } else if (chunk < block_count_) {
      stream_copy(staged, host_ + at, count);  // after an earlier copy the block is dirty in another core's cache
    } else {
      std::memcpy(staged, host_ + at, count);  // the device reads it from the cache, and soon it is written again
    }
    if (left_[chunk].fetch_sub(count, std::memory_order_acq_rel) == count) publish();
  }

  bool wait_for_device(std::uint32_t needed) noexcept {
    using namespace std::chrono_literals;
    for (int spins = 0; static_cast<std::int32_t>(counters_.taken.load(std::memory_order_acquire) - needed) < 0; ++spins) {
      if (abandoned_.load(std::memory_order_relaxed)) return false;
      if (spins < 2000) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else {
        std::this_thread::sleep_for(20us);
      }
    }
    return true;
  }

  /// Counts the chunks that are moved and have none before them that is not.
  void publish() {
    std::lock_guard const guard(publishing_);
    std::uint32_t const before = published_;
    while (published_ < chunks() && left_[published_].load(std::memory_order_acquire) == 0) ++published_;
    // A thread that comes late has nothing to say, and the next copy may be counting already.
    if (published_ != before) counters_.moved.store(base_ + published_, std::memory_order_release);
  }

  CopyThreads& threads_;
  bool const to_device_;
  char* const host_;
  std::size_t const size_, chunk_bytes_;
  char* const blocks_;
  std::uint32_t const block_count_;
  StagingCounters& counters_;
  std::uint32_t const base_;
  std::vector<std::atomic<std::size_t>> left_;  // bytes of each chunk that are still to be moved
  std::mutex publishing_;
  std::uint32_t published_ = 0;
  std::atomic<bool> begun_ = false, over_ = false, abandoned_ = false;
  std::size_t next_piece_ = 0, at_work_ = 0;  // under the threads' mutex
};

/// Threads that move the pieces of staged copies, of the one that began first before others.
class CopyThreads {
 public:
  explicit CopyThreads(unsigned count) {
    for (unsigned i = 0; i < count; ++i) {
      try {
        threads_.emplace_back([this] { work(); });
      } catch (...) {
        if (threads_.empty()) throw;
        return;  // fewer will do
      }
    }
  }
  ~CopyThreads() {
    {
      std::lock_guard const guard(mutex_);
      stopping_ = true;
    }
    wanted_.notify_all();
    for (auto& thread : threads_) thread.join();
  }
  CopyThreads(CopyThreads const&) = delete;

  void begin(StagedCopy& copy) {
    {
      std::lock_guard const guard(mutex_);
      begun_.push_back(&copy);
    }
    wanted_.notify_all();
  }

 private:
  void work() {
    std::unique_lock guard(mutex_);
    for (;;) {
      wanted_.wait(guard, [&] { return stopping_ || !begun_.empty(); });
      if (begun_.empty()) return;
      StagedCopy& copy = *begun_.front();
      std::size_t const piece = copy.next_piece_++;
      if (copy.next_piece_ == copy.pieces()) begun_.pop_front();
      ++copy.at_work_;
      guard.unlock();
      copy.move_piece(piece);
      guard.lock();
      if (--copy.at_work_ == 0 && copy.next_piece_ == copy.pieces()) copy.over_.store(true, std::memory_order_release);
    }
  }

  std::mutex mutex_;
  std::condition_variable wanted_;
  std::list<StagedCopy*> begun_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

inline void StagedCopy::began(void* copy) {
  auto& self = *static_cast<StagedCopy*>(copy);
  self.begun_.store(true);
  if (self.abandoned_.load()) return self.over_.store(true);
  self.threads_.begin(self);
}

}  // namespace pinning
