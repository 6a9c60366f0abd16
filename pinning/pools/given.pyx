# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What a pool gives out, and what it has from the vendor."""

from libc.stdint cimport uint64_t

from pinning.locks cimport held_within
from pinning.memory.allocation cimport FREED, LIVE, Allocation, leave, locked_within, number_of
from pinning.memory.backing cimport Backing, device_address
from pinning.plugin.native cimport CMemoryKind

from pinning.errors import StillInUseError, StillLockedError
from pinning.queues.pending import uses


cdef class PoolAllocation(Allocation):
    cdef readonly object queue
    cdef readonly object block

    cdef int check_unused(self) except -1:
        points = uses(self)
        if points and not self.queue.closed:
            before = self.queue.history()
            points = [point for point in points if point not in before]
        if points:
            raise StillInUseError(f"{self!r} is in use by work of a queue: wait for that first")
        return 0

    cdef int check_unlocked(self) except -1:
        # A region is that of all the segment, so what it counts says only that it is worth a look.
        if locked_within(self.extent.ptr, self.extent.size) is not None:
            lock = held_within(self.extent.ptr, self.extent.size)
            if lock is not None:
                raise StillLockedError(f"somebody holds a lock in {self!r}, {lock!r}: unlock that first")
        return 0

    cdef int give_back(self) except -1:
        if self.queue.closed:  # all that was ever in it is over
            self.pool.put_back(self, self.block.after)
        else:
            self.pool.take_back(self.queue, self, ())
        return 0


def made(pool, queue, place, uint64_t size, block):
    cdef PoolAllocation allocation = PoolAllocation.__new__(PoolAllocation)
    allocation.queue, allocation.block = queue, block
    cdef uint64_t ptr = block.start
    there = ptr - block.segment.base + block.segment.device_base
    allocation.begin(ptr, there, size, number_of(pool.kind), pool.context, place, pool)
    return allocation


def refused(pool, place, uint64_t size, error):
    cdef PoolAllocation allocation = PoolAllocation.__new__(PoolAllocation)
    allocation.extent.size, allocation.extent.kind = size, number_of(pool.kind)
    allocation.context, allocation.device, allocation.pool = pool.context, place, pool
    allocation.error = error
    return allocation


def error_of(PoolAllocation allocation not None):
    return allocation.error


def claim(PoolAllocation allocation not None):
    allocation.claim()
    try:
        allocation.check_unlocked()
        allocation.check_unexported()
    except BaseException:
        unclaim(allocation)
        raise


def unclaim(PoolAllocation allocation not None):
    allocation.state = LIVE


def take_out(PoolAllocation allocation not None):
    leave(allocation)
    allocation.state = FREED


def reserve(Backing context, place, uint64_t length, kind):
    return context.take(place, length, number_of(kind), False)


def give_up(Backing context, place, uint64_t base):
    cdef bint gone
    context.release(place, base, &gone)


def address_there(place, uint64_t base):
    return device_address(place, base)
