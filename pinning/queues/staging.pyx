# SPDX-License-Identifier: Apache-2.0
"""The staging engine: a thin wrapper of <pinning/staging.hpp>."""

from cython.operator cimport dereference

from pinning.map.adapters cimport vendor_of

from typing import TYPE_CHECKING

from pinning.runtime.process import emptied_at_fork

if TYPE_CHECKING:
    from pinning.plugin import MemoryDevice

cdef dict stagings = emptied_at_fork({})  # by id of the device


def default_limits() -> dict[str, int]:
    """Defaults of `pinning.copies.Costs`, by name, that suit the processors that this process may run on."""
    cdef CopyLimits limits
    return limits


cdef CopyLimits limits_of(object costs) except *:
    return vars(costs)


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

    def has_room(self, costs: object) -> bool:
        """Whether there are rings that a copy may have, or `costs` leave room for more."""
        return self.staging.has_room(limits_of(costs))


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
