// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <new>
#include <utility>
#include <vector>

namespace pagetable {

/// A range of address space in which an array can grow without ever moving.
///
/// The whole range is mapped inaccessible, which costs no memory, is not counted against overcommit limits and is
/// skipped by `mlockall`; `commit` makes parts of it usable, one chunk at a time. Committed memory reads as zero.
class Reservation {
 public:
  static constexpr std::size_t chunk = std::size_t{1} << 20;

  Reservation() = default;

  /// Reserves `bytes`; where they are not available, halves down to `least`. Test with `operator bool`.
  Reservation(std::size_t bytes, std::size_t least) {
    committed_.resize((bytes + chunk - 1) / chunk);  // first: what throws here must leave no mapping behind
    std::size_t const most = std::max(small, allowance());
    for (; bytes >= least; bytes /= 2) {
      if (bytes > most) continue;
      void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) continue;
      taken.fetch_add(bytes, std::memory_order_relaxed);
      munlock(base, bytes);  // under mlockall(MCL_FUTURE) the range is born locked, and commit would then populate it
      base_ = static_cast<std::byte*>(base);
      bytes_ = bytes;
      return;
    }
  }

  Reservation(Reservation&& other) noexcept { swap(other); }
  Reservation& operator=(Reservation&& other) noexcept {
    swap(other);
    return *this;
  }
  ~Reservation() { release(); }

  /// Gives everything back.
  void release() noexcept {
    if (base_ == nullptr) return;
    munmap(base_, bytes_);
    taken.fetch_sub(bytes_, std::memory_order_relaxed);
    base_ = nullptr;
  }

  explicit operator bool() const noexcept { return base_ != nullptr; }
  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Makes [offset, offset + bytes) usable. Throws std::bad_alloc past the end or when the system has no memory.
  void commit(std::size_t offset, std::size_t bytes) {
    if (bytes > bytes_ || offset > bytes_ - bytes) throw std::bad_alloc();
    for (std::size_t i = offset / chunk; i <= (offset + bytes - 1) / chunk; ++i) {
      if (committed_[i]) continue;
      std::size_t const length = bytes_ - i * chunk < chunk ? bytes_ - i * chunk : chunk;
      if (mprotect(base_ + i * chunk, length, PROT_READ | PROT_WRITE) != 0) throw std::bad_alloc();
      committed_[i] = true;
    }
  }

 private:
  static constexpr std::size_t small = std::size_t{1} << 22;  // always asked for

  /// Bytes that one more may have. All reservations together leave seven eighths of the addresses to the program, be
  /// they few (`ulimit -v`) or 128 TiB, and each leaves most of their share to those that follow.
  static std::size_t allowance() {
    rlimit limit{};
    bool const limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    std::size_t const share = (limited ? static_cast<std::size_t>(limit.rlim_cur) : std::size_t{1} << 47) / 8;
    std::size_t const now = taken.load(std::memory_order_relaxed);
    return std::max(now < share ? (share - now) / 4 : 0, share >> 16);
  }

  void swap(Reservation& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(committed_, other.committed_);
  }

  inline static std::atomic<std::size_t> taken = 0;  // by all that there are

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<bool> committed_;  // by chunk; only the writer looks
};

}  // namespace pagetable
