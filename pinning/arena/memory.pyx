# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The memory of an arena and its name, each owned from the moment it exists.

Python may be interrupted between any two steps; here, making a resource and owning it is one step.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport strerror
from libcpp.string cimport string

from pinning.runtime.process cimport generation

import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from pinning.map.pinned_map import Hold

cdef extern from *:
    """
    #include <cerrno>
    #include <cstdint>
    #include <cstdio>
    #include <cstdlib>
    #include <algorithm>
    #include <atomic>
    #include <string>
    #include <system_error>
    #include <thread>
    #include <vector>
    #include <fcntl.h>
    #include <sys/file.h>
    #include <sys/mman.h>
    #include <sys/stat.h>
    #include <unistd.h>
    #ifndef MFD_HUGETLB
    #define MFD_HUGETLB 4U
    #endif

    // Memory that several processes can map, perhaps with a name in a tmpfs folder. Every process that has it mapped
    // holds a shared lock (flock) on it, which the kernel releases when the process ends for any reason. So memory that
    // can be locked exclusively is abandoned, and the last process that leaves removes the name.
    struct Shared {
      int file = -1;
      std::string path;
      bool new_here = false, abandoned = false;

      static int in(int code) { return code < 0 ? -errno : code; }
      std::string by_number() const { return "/proc/self/fd/" + std::to_string(file); }
      void shut() {
        if (file >= 0) ::close(file);
        file = -1;
      }

      // Each returns 0 or -errno.
      int make_unnamed(std::uint64_t size, bool huge) {
        file = in(::memfd_create("pinning", MFD_CLOEXEC | (huge ? MFD_HUGETLB : 0)));
        if (file < 0) return file;
        new_here = true;
        int const code = in(::ftruncate(file, size));
        if (code < 0) shut();
        return code;
      }

      // Makes a file without a name, locks it, sets its size, and only then names it. -EEXIST: the name is taken.
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

      // -ENOENT: there is none. -EINTR: try again, perhaps because it was removed meanwhile.
      int join(std::string const& name, bool wait) {
        file = in(::open(name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
        if (file < 0) return file;
        struct ::stat info;
        int code = in(::fstat(file, &info));
        if (code == 0 && !S_ISREG(info.st_mode)) code = -EINVAL;
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

      // Takes over abandoned memory, and lets others join: the exclusive lock has kept them out until now.
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

      // A flock belongs to the open file description, which a child shares with its parent: the child opens its own.
      void in_child() {
        if (file < 0) return;
        int const own = ::open(by_number().c_str(), O_RDWR | O_CLOEXEC);
        if (own >= 0 && (path.empty() || ::flock(own, LOCK_SH | LOCK_NB) == 0)) ::dup3(own, file, O_CLOEXEC);
        else path.clear();
        if (own >= 0) ::close(own);
      }
    };

    // Reserved address space, whose first `size` bytes are mapped memory.
    struct Mapped {
      char* start = nullptr;
      std::uint64_t reserved = 0, size = 0;

      static int in(void* found) { return found == MAP_FAILED ? -errno : 0; }

      // `aligned`: a power of two, at least a page; `length`: a multiple of a page.
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

      // Maps memory up to `upto` bytes; existing memory stays as it is.
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

      // One thread takes seconds to free a hundred GiB.
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
    """
    cppclass Shared:
        int file
        string path
        bint new_here
        bint abandoned
        int make_unnamed(uint64_t size, bint huge) nogil
        int make(const char* folder, const char* name, uint64_t size) nogil
        int join(const char* name, bint wait) nogil
        int take() nogil
        uint64_t size(bint present) nogil
        bint has_name() nogil
        void leave() nogil
        void in_child() nogil
    cppclass Mapped:
        char* start
        uint64_t reserved
        uint64_t size
        int reserve(uint64_t length, uint64_t aligned) nogil
        int extend(uint64_t upto, int file, bint huge, int advice) nogil
        void release(bint discarded) nogil

cdef extern from "<cerrno>" nogil:
    int EEXIST, EINTR, ENOENT, EWOULDBLOCK


cdef object refused(int code, what):
    return OSError(-code, strerror(-code).decode(), what)


cdef class Segment:
    """Memory that processes share, perhaps as a named file, with a shared lock (flock) on it.

    `leave` and the destructor remove the name if no other process has a lock.
    """

    cdef Shared shared
    cdef object __weakref__

    def __init__(self):
        raise TypeError("a Segment comes from Segment.unnamed, make or join")

    def __dealloc__(self):
        self.shared.leave()

    @staticmethod
    def unnamed(uint64_t size, bint huge=False) -> Segment:
        """New memory without a name (memfd), from the pool of huge pages if `huge`."""
        cdef Segment made = Segment.__new__(Segment)
        cdef int code = made.shared.make_unnamed(size, huge)
        if code < 0:
            raise refused(code, "memfd_create")
        return made

    @staticmethod
    def make(folder: PathLike[str], path: PathLike[str], uint64_t size) -> Segment | None:
        """A new one, which gets its name only after its size and its lock; None if the name is taken."""
        cdef Segment made = Segment.__new__(Segment)
        cdef bytes there = os.fsencode(folder)
        cdef bytes named = os.fsencode(path)
        cdef int code = made.shared.make(there, named, size)
        if code == -EEXIST:
            return None
        if code < 0:
            raise refused(code, path)
        return made

    @staticmethod
    def join(path: PathLike[str], bint wait=True) -> Segment | None:
        """Join the one of this name; None if there is none or, without `wait`, if another has it locked exclusively."""
        cdef Segment made = Segment.__new__(Segment)
        cdef bytes named = os.fsencode(path)
        cdef const char* name = named
        cdef int code
        while True:
            with nogil:
                code = made.shared.join(name, wait)
            if code >= 0:
                return made
            if code == -ENOENT or (code == -EWOULDBLOCK and not wait):
                return None
            if code != -EINTR:
                raise refused(code, path)
            PyErr_CheckSignals()

    @property
    def made_here(self) -> bool:
        return self.shared.new_here

    @property
    def abandoned(self) -> bool:
        """Whether no other process had it when it was joined. None can join until `take`, `forget` or `leave`."""
        return self.shared.abandoned

    def take(self) -> None:
        """Keep an abandoned segment, and let others join it."""
        self.shared.take()

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self.shared.size(False)

    @property
    def present(self) -> int:
        """Bytes that are in memory."""
        return self.shared.size(True)

    @property
    def has_name(self) -> bool:
        """Whether other processes can still find it by name."""
        return self.shared.has_name()

    def fileno(self) -> int:
        return self.shared.file

    def forget(self) -> None:
        """Leave without removing the name."""
        self.shared.path.clear()
        self.shared.leave()

    def leave(self) -> None:
        """Close it; the last process to leave removes the name."""
        with nogil:
            self.shared.leave()

    def in_child(self) -> None:
        """In a forked child: get a lock of its own."""
        self.shared.in_child()


cdef class Memory:
    """Reserved address space, memory for its first bytes, and their locks, which are released first.

    Without a `segment` the memory is private, and not mapped in a forked child. `page` is the page size, for the pool
    of huge pages a larger one than the system's; `advice` is for madvise, or -1.
    """

    cdef Mapped mapped
    cdef readonly Segment segment  # type: Segment | None
    cdef readonly list holds  # type: list[Hold]
    cdef readonly uint64_t page
    cdef int advice
    cdef long generation

    def __init__(self, uint64_t maximum, uint64_t aligned, Segment segment, uint64_t page, int advice) -> None:
        if self.mapped.start is not NULL:
            raise TypeError("a Memory cannot be initialized again")
        self.segment, self.page, self.advice, self.holds = segment, page, advice, []
        self.generation = generation()
        cdef int code = self.mapped.reserve(maximum, aligned)
        if code < 0:
            raise refused(code, "mmap")

    def __dealloc__(self):
        cdef bint alone = self.segment is None
        if self.generation != generation():
            if self.segment is None:  # not mapped in a forked child
                return
        else:
            try:
                self.unlock()
            except BaseException:  # a device may still use the memory: it is leaked
                return
        with nogil:
            self.mapped.release(alone)

    @property
    def ptr(self) -> int:
        return <uintptr_t>self.mapped.start

    @property
    def size(self) -> int:
        """Bytes that are mapped memory."""
        return self.mapped.size

    @property
    def reserved(self) -> int:
        return self.mapped.reserved

    @property
    def here(self) -> bool:
        """Whether it is mapped in this process."""
        return self.is_here()

    cdef bint is_here(self) noexcept:
        return self.mapped.start is not NULL and (self.segment is not None or self.generation == generation())

    def extend(self, uint64_t upto) -> None:
        """Map memory for the first `upto` bytes; existing memory stays. After an OSError nothing has changed."""
        cdef int file = -1
        cdef int code
        cdef bint huge = self.page > <uint64_t>mmap.PAGESIZE
        if self.segment is not None:
            file = self.segment.shared.file
        if not self.mapped.size < upto <= self.mapped.reserved:
            raise ValueError(f"{upto} bytes are not between {self.mapped.size} and {self.mapped.reserved}")
        with nogil:
            code = self.mapped.extend(upto, file, huge, self.advice)
        if code < 0:
            raise refused(code, "mmap")

    def unlock(self) -> None:
        """Release its locks. After a VendorError it can be called again."""
        while self.holds:
            self.holds[-1].unlock()
            self.holds.pop()

    def release(self) -> None:
        """Unlock, then unmap everything, never before the locks are released. Called by one thread at a time."""
        if self.generation == generation() and self.is_here():
            self.unlock()
        self.unmap()

    cdef unmap(self):
        cdef bint alone = self.segment is None
        if self.is_here():
            with nogil:
                self.mapped.release(alone)
        if self.segment is not None:
            self.segment.leave()
