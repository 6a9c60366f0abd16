// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

namespace pagetable {

/// Thrown where a table finds no range of addresses.
struct NoAddresses final : std::bad_alloc {
  char const* what() const noexcept override { return "no addresses are left for a page table: raise `ulimit -v`"; }
};

/// A range of address space in which an array can grow without moving.
///
/// The whole range is mapped inaccessible, which costs no memory, is not counted against overcommit limits and is
/// skipped by `mlockall`; `commit` makes parts of it usable, one chunk at a time. Committed memory reads as zero.
class Reservation {
 public:
  static constexpr std::size_t chunk = std::size_t{1} << 20;

  Reservation() = default;

  /// Reserves `bytes`, or if refused half of that and so on, down to `least`. Test the result with `operator bool`.
  Reservation(std::size_t bytes, std::size_t least) {
    committed_.resize((bytes + chunk - 1) / chunk);  // first: if it throws, no mapping is left behind
    std::size_t const most = std::max(small, allowance());
    for (; bytes >= least; bytes /= 2) {
      if (bytes > most) continue;
      void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (base == MAP_FAILED) continue;
      taken.fetch_add(bytes, std::memory_order_relaxed);
      munlock(base, bytes);  // mlockall(MCL_FUTURE) locks new mappings, and commit would then populate the range
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

  /// Unmaps the range.
  void release() noexcept {
    if (base_ == nullptr) return;
    munmap(base_, bytes_);
    taken.fetch_sub(bytes_, std::memory_order_relaxed);
    base_ = nullptr;
  }

  explicit operator bool() const noexcept { return base_ != nullptr; }
  std::byte* base() const noexcept { return base_; }
  std::size_t bytes() const noexcept { return bytes_; }

  /// Makes [offset, offset + bytes) usable. Throws std::bad_alloc past the end, or if the system has no memory.
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
  static constexpr std::size_t small = std::size_t{1} << 22;  // always requested

  /// Most bytes that the next reservation may take. All reservations together leave seven eighths of the addresses to
  /// the program, whether those are few (`ulimit -v`) or 128 TiB; each takes at most a quarter of the remaining eighth.
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

  inline static std::atomic<std::size_t> taken = 0;  // bytes of all reservations

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<bool> committed_;  // by chunk; only the writer uses it
};

}  // namespace pagetable
