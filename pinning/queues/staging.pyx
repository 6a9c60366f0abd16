# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""The staging engine: a thin wrapper of <pinning/staging.hpp>."""

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
cdef list of_parents = []  # never destroyed in a child of fork


def default_limits() -> dict[str, int]:
    """Defaults of `pinning.copies.Costs`, by name, that suit the processors that this process may run on."""
    cdef CopyLimits limits
    return limits


cdef CopyLimits limits_of(object costs) except *:
    return vars(costs)


cdef class Staged:
    """A copy, a signal or a wait in a queue. Keep it until the queue's work is over.

    Once it is collected, no thread touches the host's memory for it any more, even if the device is lost.
    """

    def __init__(self):
        raise TypeError("what is staged comes from a Staging")

    def __dealloc__(self):
        cdef CStaged* staged = self.staged
        with nogil:
            del staged

    def give(self) -> None:
        """Set this signal, as if its queue had reached it."""
        self.staged.give()


cdef class Block:
    """Pinned host memory that belongs to this object until it is collected."""

    cdef CBlock* block
    cdef readonly uint64_t ptr  # type: int
    cdef readonly uint64_t nbytes  # type: int

    def __dealloc__(self):
        del self.block


cdef class Staging:
    """The rings of pinned memory of one device. As everywhere, a queue takes one submission at a time."""

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
        """Submit a signal, which is set when the queue reaches it. Raises the errors of the queue."""
        cdef NativeQueue native = native_queue(queue)
        cdef unique_ptr[CStaged] staged
        with nogil:
            staged = self.staging.signal(dereference(native.vendor))
        return self.wrap(staged.release())

    def wait(self, queue: pinning.plugin.VendorQueue, Staged signal not None) -> Staged | None:
        """Make later work of `queue` wait for a signal of any queue, once per signal; None if it is already set."""
        cdef NativeQueue native = native_queue(queue)
        cdef unique_ptr[CStaged] staged
        with nogil:
            staged = self.staging.wait(dereference(native.vendor), dereference(signal.staged))
        return self.wrap(staged.release())

    def borrow(self, uint64_t at_most, costs: object) -> Block | None:
        """Borrow a block of a ring, for a caller that copies through it in its own way; None if there is none."""
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
    """The `Staging` of a device."""
    face = stagings.get(id(device))
    return stagings.setdefault(id(device), Staging(device)) if face is None else face


def trim_staging() -> int:
    """Give back the pinned memory of idle rings of all devices; returns the number of bytes."""
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
