# SPDX-License-Identifier: Apache-2.0
"""Open files, and the work that copies from and to them enqueue."""

cimport cython
from cpython.exc cimport PyErr_SetObject, PyErr_WriteUnraisable
from cython.operator cimport dereference
from libc.errno cimport EFAULT, EINVAL, EIO, EISDIR, errno
from libc.stdint cimport uint64_t
from libcpp.memory cimport make_shared, shared_ptr
from libcpp.utility cimport move
from libcpp.vector cimport vector
from posix.fcntl cimport O_CREAT, O_EXCL, O_NOCTTY, O_NONBLOCK, O_RDONLY, O_RDWR, open
from posix.stat cimport S_ISBLK, S_ISCHR, S_ISDIR, S_ISFIFO, S_ISREG, fstat, struct_stat

from pinning.copies.work cimport Copy, count_bytes, way_plain
from pinning.plugin.native cimport VendorQueue
from pinning.queues.lane cimport Work
from pinning.queues.staging cimport (
    CFile, CopyLimits, CStaged, FileEnd, FileMemory, FileOutcome, FilePart, FileRows, Staging, limits_of
)
from pinning.queues.submitter cimport Submitter

import os
from typing import TYPE_CHECKING

import numpy

from pinning.copies.costs import costs
from pinning.copies.plan import CopyPath
from pinning.errors import FileError
from pinning.queues.staging import staging_of
from pinning.runtime.arguments import path_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from pinning.queues import Event, Queue

cdef extern from "<fcntl.h>" nogil:
    enum:
        O_CLOEXEC

cdef extern from "<errno.h>" nogil:
    enum:
        ECANCELED

cdef extern from "<pinning/file.hpp>" namespace "pinning" nogil:
    enum:
        ENDED "pinning::File::ended"

cdef enum:
    PLAIN_BYTES = 4 << 20  # read or written at a time if nothing can be staged


cdef class OpenFile:
    """A regular file that copies read or write. It stays open until this object is closed and no copy uses it.

    `create`: a new file, for writing, which only its owner can open. Raises OSError, or FileError if it is a folder, a
    pipe or a device.
    """

    cdef shared_ptr[CFile] file  # null once it is closed
    cdef readonly str path

    def __cinit__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], bint create=False) -> None:
        self.path = path_name(path)
        cdef bytes encoded = os.fsencode(self.path)
        cdef const char* name = encoded
        cdef int flags = O_RDWR | O_CREAT | O_EXCL if create else O_RDONLY | O_NONBLOCK | O_NOCTTY
        cdef int descriptor
        with nogil:
            descriptor = open(name, flags | O_CLOEXEC, 0o600)
        if descriptor < 0:
            raise OSError(errno, os.strerror(errno), self.path)
        self.file = make_shared[CFile](descriptor)
        self.check_regular()

    cdef check_regular(self):
        cdef struct_stat status
        if fstat(self.file.get().descriptor(), &status) != 0:
            raise FileError(errno, os.strerror(errno), self.path)
        if S_ISREG(status.st_mode):
            return
        what = ("a folder" if S_ISDIR(status.st_mode) else "a pipe" if S_ISFIFO(status.st_mode)
                else "a device" if S_ISCHR(status.st_mode) or S_ISBLK(status.st_mode) else "no regular file")
        raise FileError(EISDIR if S_ISDIR(status.st_mode) else EINVAL,
                        f"it is {what}; only regular files can be copied", self.path)

    def fileno(self) -> int:
        if self.file.get() is NULL:
            raise ValueError(f"{self.path!r} is closed")
        return self.file.get().descriptor()

    @property
    def nbytes(self) -> int:
        """Its current size."""
        return os.fstat(self.fileno()).st_size

    def look_for_cold(self, uint64_t offset, uint64_t nbytes) -> None:
        """Read bytes of this range that are not in the page cache past it from now on, if the disk allows that."""
        self.fileno()
        with nogil:
            self.file.get().read_past_cache(offset, nbytes)

    def prepare_to_write(self, uint64_t nbytes, bint past_cache) -> None:
        """Give a new file its size, so that threads write it concurrently; past the page cache, if the disk allows."""
        self.fileno()
        cdef int why
        with nogil:
            why = self.file.get().prepare_to_write(nbytes, past_cache)
        if why:
            raise OSError(why, os.strerror(why), self.path)

    def close(self) -> None:
        self.file.reset()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self):
        return f"<OpenFile {self.path!r}{', closed' if self.file.get() is NULL else ''}>"


cdef class Outcome:
    """The outcome of a copy. A failure that no event is left to report goes to `sys.unraisablehook`."""

    cdef shared_ptr[FileOutcome] native
    cdef str path
    cdef bint told

    cdef object error(self):
        self.told = True
        cdef int reason = self.native.get().reason()
        cdef uint64_t at = self.native.get().failed_at()
        if reason == ENDED:
            return FileError(EIO, f"it ends before all bytes from {at} on were read: has it been truncated?", self.path)
        if reason == ECANCELED:
            return FileError(ECANCELED, "the copy was cancelled", self.path)
        if reason == EFAULT:
            return FileError(EFAULT, f"memory of the copy cannot be accessed, from byte {at} on: has a mapped file been "
                                     "truncated?", self.path)
        return FileError(reason, f"{os.strerror(reason)}, at byte {at}", self.path)

    def __dealloc__(self):
        if self.native.get() is NULL or self.told or not self.native.get().has_failed():
            return
        error = self.error()
        PyErr_SetObject(FileError, error)
        PyErr_WriteUnraisable(f"a copy of {self.path!r}, whose event was dropped")


cdef class FileCopy(Copy):
    """A copy from or to a file: a `Copy` that fails with a `FileError` if the file cannot be read or written.

    After a failure the queue continues, and the contents of the destination are undefined. If the event is dropped, the
    error goes to `sys.unraisablehook`.
    """

    cdef Outcome outcome

    def _another(self) -> FileCopy:
        """One more event of the same copy: both fail with the same error, and are cancelled together."""
        cdef FileCopy copy = FileCopy.__new__(FileCopy)
        copy.outcome = self.outcome
        return copy

    cdef learn_error(self, bint ask):
        Copy.learn_error(self, ask)
        if self.error is None and self.outcome is not None and self.outcome.native.get().has_failed():
            self.fail(self.outcome.error())

    def check_moved(self) -> None:
        """Raise FileError if it is known by now that bytes could not be moved. Makes no vendor call."""
        if self.outcome is not None and self.outcome.native.get().has_failed():
            raise self.outcome.error()

    def cancel(self) -> None:
        """Stop moving bytes of the file. The copy ends, as failed, soon after its queue has reached it."""
        if self.outcome is not None:
            self.outcome.told = True
            self.outcome.native.get().fail(ECANCELED, 0)


@cython.final
@cython.no_gc_clear
cdef class FileWork(Work):
    cdef FileEnd file
    cdef Outcome outcome
    cdef vector[FilePart] parts
    cdef bint in_device, early
    cdef Staging staging
    cdef CopyLimits limits
    cdef CStaged* staged
    cdef bint plain  # nothing could be staged

    cdef submit(self, VendorQueue* queue):
        cdef FileMemory memory = FileMemory.device if self.in_device else FileMemory.host
        with nogil:
            self.staged = self.staging.staging.copy_file(dereference(queue), self.file, memory, self.parts,
                                                         self.early, self.limits).release()
        if self.staged is NULL:
            self.plain = True
            with nogil:
                self.copy_plainly(queue)

    cdef int copy_plainly(self, VendorQueue* queue) except -1 nogil:
        """Copy through pageable memory, while the caller waits."""
        cdef FileOutcome* outcome = self.file.outcome.get()
        cdef vector[char] block
        cdef uint64_t at, count
        cdef FilePart part
        cdef FileRows rows
        block.resize(PLAIN_BYTES)
        queue.synchronize()
        for part in self.parts:
            at = 0
            rows.begin, rows.row, rows.pitch = part.dst if self.file.writes else part.src, part.row, part.pitch
            while at < part.size and not outcome.has_failed():
                count = min(part.size - at, <uint64_t>PLAIN_BYTES)
                if self.file.writes:
                    queue.copy(<uint64_t>block.data(), part.src + at, count)
                    queue.synchronize()
                    self.file.move(block.data(), rows, at, count)
                else:
                    self.file.move(block.data(), rows, at, count)
                    if not outcome.has_failed():
                        queue.copy(part.dst + at, <uint64_t>block.data(), count)
                        queue.synchronize()
                if not outcome.has_failed():
                    count_bytes(way_plain, count)
                at += count
        return 0

    def __dealloc__(self):
        cdef CStaged* staged = self.staged
        with nogil:
            del staged


def may_be_early(Submitter queue not None: Queue, wait_for: Iterable[Event]) -> bool:
    """Whether a file may be read before the queue reaches the copy: nothing pending could write it."""
    return queue.may_be_read(0, 0, wait_for)


def copy_of(OpenFile file not None) -> FileCopy:
    """The event of a copy that is yet to be submitted, perhaps in parts."""
    cdef FileCopy copy = FileCopy.__new__(FileCopy)
    copy.outcome = Outcome.__new__(Outcome)
    copy.outcome.native = make_shared[FileOutcome]()
    copy.outcome.path = file.path
    return copy


def copy_parts(
    Submitter queue not None: Queue,
    OpenFile file not None,
    parts: Sequence[tuple[int, ...]],
    *,
    bint in_device,
    bint writes=False,
    wait_for: Iterable[Event] = (),
    keep: Iterable[object] = (),
    early: bool | None = None,
    FileCopy of=None,
) -> FileCopy:
    """Copy between parts of a file and parts of memory, as one operation.

    Parameters
    ----------
    parts : sequence of tuples of 3 or of 5 ints
        Destination, source and bytes of each; the file's end is an offset in the file, and these offsets ascend. With
        5, the bytes in the file, which is read, are rows: the bytes of a row, and those from one row to the next.
    in_device : bool
        Whether the memory is that of the queue's device, not the host's.
    writes : bool
        Whether the file is written.
    keep : iterable
        Objects that keep the memory alive.
    early : bool, optional
        Whether the file may be read before the queue reaches the copy; by default if nothing pending could write it.
    of : FileCopy, optional
        The copy of which these are parts.

    Steps submitted before one that the vendor refuses are complete by then.
    """
    cdef FileWork work = FileWork.__new__(FileWork)
    cdef FileCopy copy = copy_of(file) if of is None else of._another()
    cdef const uint64_t[:, ::1] rows = numpy.asarray(parts, numpy.uint64)
    cdef FilePart part
    cdef Py_ssize_t i
    cdef uint64_t first = ~(<uint64_t>0), end = 0, size = 0
    file.fileno()
    work.outcome = copy.outcome
    work.file.file, work.file.outcome, work.file.writes = file.file, copy.outcome.native, writes
    work.parts.reserve(rows.shape[0])
    for i in range(rows.shape[0]):
        part = FilePart()
        part.dst, part.src, part.size = rows[i, 0], rows[i, 1], rows[i, 2]
        if rows.shape[1] == 5 and rows[i, 3] < rows[i, 2]:
            part.row, part.pitch = rows[i, 3], rows[i, 4]
        work.parts.push_back(part)
        first, end, size = min(first, part.dst), max(end, part.dst + part.size), size + part.size
    work.in_device, work.owners = in_device, tuple(keep)
    work.staging, work.limits = staging_of(queue.device), limits_of(costs)
    if not writes:
        work.written, work.written_size = first, end - first
    # `early` concerns only files that are read: memory to be written to a file is not read before the copy's turn.
    work.early = may_be_early(queue, wait_for) if early is None else early
    queue.enqueue(copy, work, wait_for, ())
    what = f"{size} bytes, {'written' if writes else 'read'} by threads"
    if work.plain:
        copy.path, copy.reason = CopyPath.PLAIN, f"{what[:-10]}by the caller: this queue cannot stage, or has no memory to"
    elif in_device:
        copy.path, copy.reason = CopyPath.STAGED, f"{what} {'from' if writes else 'into'} pinned blocks"
    else:
        copy.path, copy.reason = CopyPath.STAGED, f"{what} {'from' if writes else 'into'} the host's memory"
    return copy
