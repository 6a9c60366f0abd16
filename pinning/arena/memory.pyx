# SPDX-License-Identifier: Apache-2.0
"""The memory of an arena and its name, each owned from the moment it exists.

Python may be interrupted between any two steps; here, making a resource and owning it is one step.
"""

from cpython.exc cimport PyErr_CheckSignals
from libc.stdint cimport uint64_t, uintptr_t
from libc.string cimport strerror
from libcpp.string cimport string

from pinning.runtime.process cimport generation, is_parents

import mmap
import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from os import PathLike

    from pinning.locking.lock_async import PendingLock
    from pinning.map.pinned_map import Hold

cdef extern from "<pinning/arena_memory.hpp>" namespace "pinning":
    cppclass SharedMemory:
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
    cppclass MappedMemory:
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

    cdef SharedMemory shared
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
    of huge pages a larger one than the system's; `advice` is for madvise, or -1. `refused` are locks that the vendor has
    refused to undo.
    """

    cdef MappedMemory mapped
    cdef readonly Segment segment  # type: Segment | None
    cdef readonly list holds  # type: list[Hold]
    cdef readonly list refused  # type: list[PendingLock]
    cdef readonly uint64_t page
    cdef int advice
    cdef unsigned made_in

    def __init__(self, uint64_t maximum, uint64_t aligned, Segment segment, uint64_t page, int advice) -> None:
        if self.mapped.start is not NULL:
            raise TypeError("a Memory cannot be initialized again")
        self.segment, self.page, self.advice, self.holds, self.refused = segment, page, advice, [], []
        self.made_in = generation()
        cdef int code = self.mapped.reserve(maximum, aligned)
        if code < 0:
            raise refused(code, "mmap")

    def __dealloc__(self):
        cdef bint alone = self.segment is None
        if is_parents(self.made_in):
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
        return self.mapped.start is not NULL and (self.segment is not None or not is_parents(self.made_in))

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
        self.undo()
        while self.holds:
            self.holds[-1].unlock()
            self.holds.pop()

    def undo(self) -> None:
        """Undo the locks that the vendor has refused to undo. After a VendorError it can be called again."""
        for pending in list(self.refused):
            pending._undo()
            self.refused.remove(pending)

    def release(self) -> None:
        """Unlock, then unmap everything, never before the locks are released. Called by one thread at a time."""
        if not is_parents(self.made_in) and self.here:
            self.unlock()
        self.unmap()

    cdef unmap(self):
        cdef bint alone = self.segment is None
        if self.here:
            with nogil:
                self.mapped.release(alone)
        if self.segment is not None:
            self.segment.leave()
