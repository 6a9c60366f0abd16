// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/mman.h>
#include <sys/resource.h>

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

  /// Reserves `bytes`; where the system refuses (`ulimit -v`), halves down to `least`. Test with `operator bool`.
  Reservation(std::size_t bytes, std::size_t least) {
    committed_.resize((bytes + chunk - 1) / chunk);  // first: what throws here must leave no mapping behind
    for (; bytes >= least; bytes /= 2) {
      void* base = leave_headroom(bytes)
                       ? mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0)
                       : MAP_FAILED;
      if (base == MAP_FAILED) continue;
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
  ~Reservation() {
    if (base_ != nullptr) munmap(base_, bytes_);
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
  /// Under `ulimit -v` a reservation must leave room for the program: at most a quarter of the whole limit.
  static bool leave_headroom(std::size_t bytes) {
    rlimit limit{};
    return getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || bytes <= limit.rlim_cur / 4;
  }

  void swap(Reservation& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
    std::swap(committed_, other.committed_);
  }

  std::byte* base_ = nullptr;
  std::size_t bytes_ = 0;
  std::vector<bool> committed_;  // by chunk; only the writer looks
};

}  // namespace pagetable
