// SPDX-License-Identifier: Apache-2.0
#include <pinning/file.hpp>

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "moving.hpp"

namespace pinning {

namespace {

constexpr std::uint64_t sector = 4096;  // alignment of direct I/O that every disk accepts
constexpr unsigned samples = 64;
constexpr std::uint64_t span_bytes = 256 << 10;  // read at once for rows
constexpr std::uint64_t widest_pitch = 4 << 10;  // of rows read with the bytes between: faster than a call per row
constexpr std::uint64_t step = 16 << 20, ahead = 4 * step;  // bytes allocated of a tmpfs file, per call and in advance

/// A thread's own aligned buffer, for direct I/O and for rows that are read with the bytes between them.
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

/// Whether sample pages of this range are all in the page cache; always true if this process may not write the file.
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

/// Whether all of a range is in the page cache; false if the kernel cannot tell (before 6.5).
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

/// Open this very file again for direct I/O, whatever its path is now; negative if the file system does not allow it.
int open_past_cache(int descriptor, int how) noexcept {
  char name[32];
  std::snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
  return open(name, how | O_DIRECT | O_CLOEXEC);
}

/// memcpy to or from memory that may be the caller's; false if that is gone, or the kernel does not allow to find out.
bool copy(char* to, char const* from, std::uint64_t size, File::Memory memory) noexcept {
  if (memory == File::Memory::of_caller) return checked_copy(to, from, size);
  std::memcpy(to, from, size);
  return true;
}

}  // namespace

File::~File() {
  if (mapped_ != nullptr) munmap(mapped_, mapped_size_);
  if (direct_ >= 0) close(direct_);
  if (descriptor_ >= 0) close(descriptor_);
}

void File::read_past_cache(std::uint64_t offset, std::uint64_t size) noexcept {
  if (direct_ < 0 && !is_warm(descriptor_, offset, size)) direct_ = open_past_cache(descriptor_, O_RDONLY);
}

int File::prepare_to_write(std::uint64_t size, bool past_cache) noexcept {
  if (ftruncate(descriptor_, static_cast<off_t>(size)) != 0) return errno;
  struct statfs system;
  if (size == 0 || fstatfs(descriptor_, &system) != 0) return 0;
  if (system.f_type == TMPFS_MAGIC) {
    // Threads that call write for one file exclude each other; threads that store to a mapping of it do not.
    void* const mapped = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor_, 0);
    if (mapped == MAP_FAILED) return 0;
    madvise(mapped, size, MADV_DONTFORK);
    mapped_ = static_cast<char*>(mapped), mapped_size_ = size;
    return 0;
  }
  // Allocating first reports a full disk before anything is written; and direct writers exclude each other while blocks
  // are still to be allocated.
  if (fallocate(descriptor_, 0, 0, static_cast<off_t>(size)) != 0 && errno != EOPNOTSUPP && errno != EINTR) return errno;
  if (past_cache) direct_ = open_past_cache(descriptor_, O_WRONLY);
  return 0;
}

int File::read(char* to, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept {
  if (direct_ >= 0 && !is_cached(descriptor_, offset, size) && read_direct(to, offset, size, memory) == 0) return 0;
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

/// Read through the aligned buffer, because neither the offset in the file nor the destination is aligned.
int File::read_direct(char* to, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept {
  thread_local Aligned aligned;
  char* const sectors = aligned.get();
  if (sectors == nullptr) return ENOMEM;
  while (size > 0) {
    std::uint64_t const first = offset / sector * sector, skip = offset - first;
    std::uint64_t const wanted = std::min(size, Aligned::size - skip), whole = (skip + wanted + sector - 1) / sector * sector;
    ssize_t const count = pread(direct_, sectors, whole, static_cast<off_t>(first));
    if (count < 0) {
      if (errno == EINTR) continue;
      return errno;
    }
    if (static_cast<std::uint64_t>(count) <= skip) return ended;
    std::uint64_t const got = std::min(wanted, static_cast<std::uint64_t>(count) - skip);
    if (!copy(to, sectors + skip, got, memory)) return EFAULT;
    to += got, offset += got, size -= got;
  }
  return 0;
}

int File::write(char const* from, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept {
  if (mapped_ != nullptr) return write_mapped(from, offset, size, memory);
  return direct_ >= 0 ? write_direct(from, offset, size, memory) : write_cached(from, offset, size);
}

int File::write_mapped(char const* from, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept {
  if (int const why = find_pages(offset + size); why != 0) return why;
  if (!copy(mapped_ + offset, from, size, memory)) return write_cached(from, offset, size);
  // Otherwise the last owner of the file would unmap all pages alone.
  auto const page = static_cast<std::uint64_t>(getpagesize());
  std::uint64_t const first = (offset + page - 1) / page * page, end = (offset + size) / page * page;
  if (first < end) madvise(mapped_ + first, end - first, MADV_DONTNEED);
  return 0;
}

/// Allocate pages by one thread, ahead of the threads that fill them: allocating concurrently, they would wait for each
/// other in the kernel, page by page. A page that cannot be allocated is an error here; touching it would raise SIGBUS.
int File::find_pages(std::uint64_t end) const noexcept {
  std::uint64_t const wanted = std::min(end + ahead, mapped_size_);
  if (found_.load() >= wanted) return 0;
  std::unique_lock guard(finding_, std::defer_lock);
  if (found_.load() < end) {
    guard.lock();
  } else if (!guard.try_lock()) {
    return 0;
  }
  do {
    std::uint64_t const from = found_.load(), size = std::min(step, mapped_size_ - from);
    if (size == 0 || fallocate(descriptor_, 0, static_cast<off_t>(from), static_cast<off_t>(size)) == 0) {
      found_ = from + size;
    } else if (errno != EINTR) {
      return found_.load() < end ? errno : 0;
    }
  } while (found_.load() < end);
  return 0;
}

/// Write whole sectors through the aligned buffer; the rest at either end shares its sector with another slice.
int File::write_direct(char const* from, std::uint64_t offset, std::uint64_t size, Memory memory) const noexcept {
  thread_local Aligned aligned;
  char* const sectors = aligned.get();
  std::uint64_t const head = std::min(size, (sector - offset % sector) % sector);
  std::uint64_t const end = offset + size, whole_end = std::max(offset + head, end / sector * sector);
  if (sectors == nullptr) return write_cached(from, offset, size);
  if (int const why = write_cached(from, offset, head); why != 0) return why;
  for (std::uint64_t at = offset + head; at < whole_end;) {
    std::uint64_t const wanted = std::min(whole_end - at, Aligned::size);
    ssize_t count = 0;
    if (copy(sectors, from + (at - offset), wanted, memory)) {
      count = pwrite(direct_, sectors, wanted, static_cast<off_t>(at));
    }
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0 || count % sector != 0) {  // write it through the page cache
      if (int const why = write_cached(from + (at - offset), at, wanted); why != 0) return why;
      at += wanted;
    } else {
      at += static_cast<std::uint64_t>(count);
    }
  }
  return write_cached(from + (whole_end - offset), whole_end, end - whole_end);
}

int File::write_cached(char const* from, std::uint64_t offset, std::uint64_t size) const noexcept {
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

void FileEnd::move(char* ptr, FileRows const& rows, std::uint64_t at, std::uint64_t size) const noexcept {
  if (rows.row == FileRows::endless) {
    move_range(ptr, rows.begin + at, size);
    return;
  }
  thread_local Aligned aligned;
  char* const span = rows.pitch <= widest_pitch ? aligned.get() : nullptr;
  while (size > 0 && !outcome->has_failed()) {
    std::uint64_t const skip = at % rows.row, offset = rows.begin + at / rows.row * rows.pitch + skip;
    std::uint64_t const first = std::min(size, rows.row - skip), rest = size - first;
    std::uint64_t const others =  // the rows behind the first that one read includes
        span == nullptr ? 0 : std::min((rest + rows.row - 1) / rows.row, (span_bytes + skip - rows.row) / rows.pitch);
    std::uint64_t const count = first + std::min(rest, others * rows.row);
    if (others == 0) {
      move_range(ptr, offset, first);
    } else {
      std::uint64_t const last = count - first - (others - 1) * rows.row;
      if (int const why = file->read(span, offset, others * rows.pitch - skip + last, File::Memory::ours); why != 0) {
        return outcome->fail(why, offset);
      }
      std::memcpy(ptr, span, first);
      char* to = ptr + first;
      char const* from = span + rows.pitch - skip;
      for (std::uint64_t i = 1; i < others; ++i, to += rows.row, from += rows.pitch) std::memcpy(to, from, rows.row);
      std::memcpy(to, from, last);
    }
    ptr += count, at += count, size -= count;
  }
}

void FileEnd::move_range(char* ptr, std::uint64_t offset, std::uint64_t size) const noexcept {
  if (outcome->has_failed()) return;
  int const why = writes ? file->write(ptr, offset, size, memory) : file->read(ptr, offset, size, memory);
  if (why != 0) outcome->fail(why, offset);
}

}  // namespace pinning
