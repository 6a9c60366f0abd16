# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The staging engine: a thin face of <pinning/staging.hpp>."""

from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp.memory cimport unique_ptr

from pinning.map.adapters cimport native_queue, vendor_of
from pinning.plugin.native cimport NativeQueue

from typing import TYPE_CHECKING

from pinning.runtime import process

if TYPE_CHECKING:
    import pinning.plugin
    from pinning.plugin import MemoryDevice

cdef dict stagings = {}  # by id of the device
cdef list of_parents = []  # not destroyed in a fork


def default_limits() -> dict[str, int]:
    """Those of `pinning.copies.Costs` that suit the processors that this process may run on, by name."""
    cdef CopyLimits limits
    return limits


cdef CopyLimits limits_of(object costs) except *:
    return vars(costs)


cdef class Staged:
    """A copy, a signal or a wait in a queue. Keep it until the queue's work is over.

    When it is collected no thread touches the host's memory any more, even if the device is lost.
    """

    def __init__(self):
        raise TypeError("what is staged comes from a Staging")

    def __dealloc__(self):
        cdef CStaged* staged = self.staged
        with nogil:
            del staged

    def give(self) -> None:
        """Of a signal: as if its queue had come to it."""
        self.staged.give()


cdef class Block:
    """Pinned memory of the host that is this object's until it is collected."""

    cdef CBlock* block
    cdef readonly uint64_t ptr  # type: int
    cdef readonly uint64_t nbytes  # type: int

    def __dealloc__(self):
        del self.block


cdef class Staging:
    """The rings of pinned memory of one device. One submission to a queue at a time, as everywhere."""

    def __cinit__(self, device: MemoryDevice) -> None:
        self.device = device
        self.staging = &staging(dereference(vendor_of(device)))

    cdef Staged wrap(self, CStaged* staged):
        if staged is NULL:
            return None
        cdef Staged face
        try:
            face = Staged.__new__(Staged)
        except BaseException:
            del staged
            raise
        face.staged = staged
        return face

    def signal(self, queue: pinning.plugin.VendorQueue) -> Staged:
        """A signal that is given when the queue comes to it. Raises what the queue does."""
        cdef NativeQueue native = native_queue(queue)
        cdef unique_ptr[CStaged] staged
        with nogil:
            staged = self.staging.signal(dereference(native.vendor))
        return self.wrap(staged.release())

    def wait(self, queue: pinning.plugin.VendorQueue, Staged signal not None) -> Staged | None:
        """Have later work wait for a signal in a queue of any device, once for each; None if it was given already."""
        cdef NativeQueue native = native_queue(queue)
        cdef unique_ptr[CStaged] staged
        with nogil:
            staged = self.staging.wait(dereference(native.vendor), dereference(signal.staged))
        return self.wrap(staged.release())

    def borrow(self, uint64_t at_most, costs: object) -> Block | None:
        """Pinned memory of a ring, for copies of another form; None where there is none."""
        cdef CopyLimits limits = limits_of(costs)
        cdef unique_ptr[CBlock] got
        cdef Block block = Block.__new__(Block)
        with nogil:
            got = self.staging.borrow(at_most, limits)
        if got.get() is NULL:
            return None
        block.block = got.release()
        block.ptr, block.nbytes = block.block.ptr, block.block.size
        return block

    @property
    def empty(self) -> bool:
        """Whether it has no pinned memory."""
        return self.staging.empty()


def staging_of(device: MemoryDevice) -> Staging:
    """The one of this device."""
    face = stagings.get(id(device))
    return stagings.setdefault(id(device), Staging(device)) if face is None else face


def trim_staging() -> int:
    """Give the pinned memory of idle rings back, of all devices; returns how many bytes."""
    cdef uint64_t freed
    with nogil:
        freed = trim_stagings()
    for key, face in list(stagings.items()):
        if face.empty:
            stagings.pop(key, None)
    return freed


def _after_fork_in_child():
    of_parents.append(dict(stagings))
    stagings.clear()


process.at_fork(process.Subsystem.COPIES, _after_fork_in_child)
