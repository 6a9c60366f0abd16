// SPDX-License-Identifier: Apache-2.0
#include <pinning/file.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "moving.hpp"

namespace pinning {

namespace {

constexpr std::uint64_t sector = 4096;  // what reads past the page cache are aligned to, on every disk
constexpr unsigned samples = 64;

/// A thread's own memory for reads that must be aligned.
class Aligned {
 public:
  ~Aligned() { std::free(memory_); }
  char* get() noexcept {
    if (memory_ == nullptr) memory_ = static_cast<char*>(std::aligned_alloc(sector, size));
    return memory_;
  }
  static constexpr std::uint64_t size = direct_slice_bytes + 2 * sector;

 private:
  char* memory_ = nullptr;
};

/// Whether pages of this range, here and there, are all in the page cache. Who may not write the file is told that they are.
bool is_warm(int descriptor, std::uint64_t offset, std::uint64_t size) noexcept {
  auto const page = static_cast<std::uint64_t>(getpagesize());
  std::uint64_t const first = offset / page * page, length = offset + size - first;
  void* const mapped = mmap(nullptr, length, PROT_READ, MAP_SHARED, descriptor, static_cast<off_t>(first));
  if (mapped == MAP_FAILED) return true;
  std::uint64_t const pages = (length + page - 1) / page, count = std::min<std::uint64_t>(pages, samples);
  bool warm = true;
  for (std::uint64_t i = 0; i < count && warm; ++i) {
    std::uint64_t const at = count == 1 ? 0 : i * (pages - 1) / (count - 1);
    unsigned char there = 1;
    warm = mincore(static_cast<char*>(mapped) + at * page, page, &there) != 0 || (there & 1) != 0;
  }
  munmap(mapped, length);
  return warm;
}

/// Whether all of a range is in the page cache; where the kernel cannot say (before 6.5), it is not.
bool is_cached(int descriptor, std::uint64_t offset, std::uint64_t size) noexcept {
#if !defined(SYS_cachestat)
#define SYS_cachestat 451
#endif
  auto const page = static_cast<std::uint64_t>(getpagesize());
  struct {
    std::uint64_t offset, size;
  } const range{offset, size};
  struct {
    std::uint64_t cached, dirty, written_back, evicted, recently_evicted;
  } found{};
  if (syscall(SYS_cachestat, descriptor, &range, &found, 0u) != 0) return false;
  return found.cached >= (offset + size - 1) / page - offset / page + 1;
}

}  // namespace

File::~File() {
  if (direct_ >= 0) close(direct_);
  if (descriptor_ >= 0) close(descriptor_);
}

void File::read_past_cache(std::uint64_t offset, std::uint64_t size) noexcept {
  if (direct_ >= 0 || is_warm(descriptor_, offset, size)) return;
  char name[32];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor_);  // this very file, whatever its path has become
  direct_ = open(name, O_RDONLY | O_DIRECT | O_CLOEXEC);
}

int File::read(char* to, std::uint64_t offset, std::uint64_t size) const noexcept {
  if (direct_ >= 0 && !is_cached(descriptor_, offset, size) && read_direct(to, offset, size) == 0) return 0;
  while (size > 0) {
    ssize_t const count = pread(descriptor_, to, size, static_cast<off_t>(offset));
    if (count == 0) return ended;
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    to += count, offset += static_cast<std::uint64_t>(count), size -= static_cast<std::uint64_t>(count);
  }
  return 0;
}

/// By way of aligned memory, for neither the bytes' place in the file nor where they go is aligned.
int File::read_direct(char* to, std::uint64_t offset, std::uint64_t size) const noexcept {
  thread_local Aligned aligned;
  char* const memory = aligned.get();
  if (memory == nullptr) return ENOMEM;
  while (size > 0) {
    std::uint64_t const first = offset / sector * sector, skip = offset - first;
    std::uint64_t const wanted = std::min(size, Aligned::size - skip), whole = (skip + wanted + sector - 1) / sector * sector;
    ssize_t const count = pread(direct_, memory, whole, static_cast<off_t>(first));
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (static_cast<std::uint64_t>(count) <= skip) return ended;
    std::uint64_t const got = std::min(wanted, static_cast<std::uint64_t>(count) - skip);
    std::memcpy(to, memory + skip, got);
    to += got, offset += got, size -= got;
  }
  return 0;
}

int File::write(char const* from, std::uint64_t offset, std::uint64_t size) const noexcept {
  while (size > 0) {
    ssize_t const count = pwrite(descriptor_, from, size, static_cast<off_t>(offset));
    if (count == 0) return EIO;
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    from += count, offset += static_cast<std::uint64_t>(count), size -= static_cast<std::uint64_t>(count);
  }
  return 0;
}

}  // namespace pinning
