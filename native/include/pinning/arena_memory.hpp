// SPDX-License-Identifier: Apache-2.0
// The memory of an arena: shared between processes, or private; and the addresses reserved for it.
#pragma once

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4U
#endif

namespace pinning {

/// Memory that several processes can map, perhaps with a name in a tmpfs folder. Every process that has it mapped
/// holds a shared lock (flock) on it, which the kernel releases when the process ends for any reason. So memory that
/// can be locked exclusively is abandoned, and the last process that leaves removes the name.
struct SharedMemory {
  int file = -1;
  std::string path;
  bool new_here = false, abandoned = false;

  static int in(int code) { return code < 0 ? -errno : code; }
  std::string by_number() const { return "/proc/self/fd/" + std::to_string(file); }
  void shut() {
    if (file >= 0) ::close(file);
    file = -1;
  }

  /// Each returns 0 or -errno.
  int make_unnamed(std::uint64_t size, bool huge) {
    file = in(::memfd_create("pinning", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0)));
    if (file < 0) return file;
    new_here = true;
    int const code = in(::ftruncate(file, size));
    if (code < 0) shut();
    return code;
  }

  /// Makes a file without a name, locks it, sets its size, and only then names it. -EEXIST: the name is taken.
  int make(std::string const& folder, std::string const& name, std::uint64_t size) {
    file = in(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    if (file < 0) return file;
    int code = in(::flock(file, LOCK_SH | LOCK_NB));
    if (code == 0) code = in(::ftruncate(file, size));
    if (code == 0) code = in(::linkat(AT_FDCWD, by_number().c_str(), AT_FDCWD, name.c_str(), AT_SYMLINK_FOLLOW));
    if (code < 0) return shut(), code;
    path = name, new_here = true;
    return 0;
  }

  /// -ENOENT: there is none. -EPERM: it belongs to another user, who could read and change all of it. -EINTR: try again,
  /// perhaps because it was removed meanwhile.
  int join(std::string const& name, bool wait) {
    file = in(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    if (file < 0) return file;
    struct ::stat info;
    int code = in(::fstat(file, &info));
    if (code == 0 && !S_ISREG(info.st_mode)) code = -EINVAL;
    if (code == 0 && info.st_uid != ::geteuid()) code = -EPERM;
    if (code == 0) {
      abandoned = ::flock(file, LOCK_EX | LOCK_NB) == 0;
      if (!abandoned) code = in(::flock(file, LOCK_SH | (wait ? 0 : LOCK_NB)));
    }
    if (code == 0) code = in(::fstat(file, &info));
    if (code == 0 && info.st_nlink == 0) code = -EINTR;
    if (code < 0) return shut(), code;
    path = name;
    return 0;
  }

  /// Takes over abandoned memory, and lets others join: the exclusive lock has kept them out until now.
  int take() { return abandoned = false, in(::flock(file, LOCK_SH)); }

  std::uint64_t size(bool present) const {
    struct ::stat info;
    if (::fstat(file, &info) != 0) return 0;
    return present ? static_cast<std::uint64_t>(info.st_blocks) * 512 : info.st_size;
  }

  bool has_name() const {
    struct ::stat ours, named;
    return !path.empty() && ::fstat(file, &ours) == 0 && ::lstat(path.c_str(), &named) == 0 &&
           ours.st_ino == named.st_ino && ours.st_dev == named.st_dev;
  }

  void leave() {
    if (file < 0) return;
    if (!path.empty() && ::flock(file, LOCK_EX | LOCK_NB) == 0 && has_name()) ::unlink(path.c_str());
    shut();
  }

  /// A flock belongs to the open file description, which a child shares with its parent: the child opens its own.
  void in_child() {
    if (file < 0) return;
    int const own = ::open(by_number().c_str(), O_RDWR | O_CLOEXEC);
    if (own >= 0 && (path.empty() || ::flock(own, LOCK_SH | LOCK_NB) == 0)) ::dup3(own, file, O_CLOEXEC);
    else path.clear();
    if (own >= 0) ::close(own);
  }
};

/// Reserved address space, whose first `size` bytes are mapped memory.
struct MappedMemory {
  char* start = nullptr;
  std::uint64_t reserved = 0, size = 0;

  static int in(void* found) { return found == MAP_FAILED ? -errno : 0; }

  /// `aligned`: a power of two, at least a page; `length`: a multiple of a page.
  int reserve(std::uint64_t length, std::uint64_t aligned) {
    std::uint64_t const page = ::sysconf(_SC_PAGESIZE), more = aligned - page;
    if (length + more < length) return -ENOMEM;
    void* const found = ::mmap(nullptr, length + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (int const code = in(found); code < 0) return code;
    char* const first = static_cast<char*>(found);
    std::uint64_t const before = (aligned - reinterpret_cast<std::uintptr_t>(first) % aligned) % aligned;
    if (before > 0) ::munmap(first, before);
    if (more > before) ::munmap(first + before + length, more - before);
    start = first + before, reserved = length;
    return 0;
  }

  /// Maps memory up to `upto` bytes; existing memory stays as it is.
  int extend(std::uint64_t upto, int file, bool huge, int advice) {
    int const how = file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS | (huge ? MAP_HUGETLB : 0);
    int const code = in(::mmap(start + size, upto - size, PROT_READ | PROT_WRITE, MAP_FIXED | how, file,
                               file >= 0 ? size : 0));
    if (code < 0) {
      // MAP_FIXED may have unmapped the reservation.
      ::mmap(start + size, upto - size, PROT_NONE, MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      return code;
    }
    if (file < 0) ::madvise(start + size, upto - size, MADV_DONTFORK);
    if (advice >= 0) ::madvise(start + size, upto - size, advice);
    size = upto;
    return 0;
  }

  /// One thread takes seconds to free a hundred GiB.
  void release(bool discarded) {
    std::uint64_t const slice = 256 << 20;
    if (discarded && size >= 2 * slice) {
      std::atomic<std::uint64_t> next{0};
      auto const work = [&] {
        for (std::uint64_t at; (at = next.fetch_add(slice)) < size;)
          ::madvise(start + at, std::min(slice, size - at), MADV_DONTNEED);
      };
      std::vector<std::thread> threads;
      try {
        auto const many = std::min<std::uint64_t>({size / slice, std::thread::hardware_concurrency(), 16});
        while (threads.size() + 1 < many) threads.emplace_back(work);
      } catch (std::exception const&) {  // fewer are enough
      }
      work();
      for (std::thread& each : threads) each.join();
    }
    if (start != nullptr) ::munmap(start, reserved);
    start = nullptr, size = reserved = 0;
  }
};

}  // namespace pinning
