# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""A ring of pinned blocks and the copies by way of it: a thin face of the C++ ones. The stub says what each does."""

from libc.stdint cimport uint32_t, uintptr_t
from libcpp cimport bool as cbool
from posix.unistd cimport usleep

from pinning.copies.native cimport (
    CopyThreads,
    CStagedCopy,
    PIECE,
    StagingCounters,
    place_counters,
    taken,
)

import os

cdef enum:
    FRONT = 4096  # a page in front of the blocks: the device writes there, and nothing else shares the lines

COUNTER_BYTES = FRONT
PIECE_BYTES = PIECE
WORN = 1 << 30  # chunks

cdef CopyThreads* threads = NULL


cdef CopyThreads* started(unsigned count) except NULL:
    global threads
    if threads is NULL:
        threads = new CopyThreads(count)
    return threads


def _after_fork_in_child():
    global threads
    threads = NULL  # they are the parent's


os.register_at_fork(after_in_child=_after_fork_in_child)


cdef class Ring:
    cdef readonly uintptr_t ptr
    cdef readonly size_t nbytes
    cdef StagingCounters* counters
    cdef char* blocks
    cdef uint32_t base
    cdef StagedCopy last

    def __cinit__(self, uintptr_t ptr, size_t nbytes):
        self.ptr = ptr
        self.nbytes = nbytes
        self.counters = place_counters(<void*>ptr)
        self.blocks = <char*>ptr + FRONT
        self.base = 0

    @property
    def taken_address(self):
        return <uintptr_t>self.counters

    @property
    def moved_address(self):
        return <uintptr_t>self.counters + 64

    @property
    def idle(self):
        if taken(self.counters[0]) != self.base:
            return False
        if self.last is not None and not self.last.over:
            return False
        self.last = None
        return True


    @property
    def worn(self):
        return self.base >= WORN

    def rewind(self):
        place_counters(<void*>self.ptr)
        self.base = 0


cdef class StagedCopy:
    cdef CStagedCopy* copy
    cdef readonly Ring ring
    cdef readonly uint32_t base
    cdef readonly uint32_t block_count
    cdef readonly size_t chunk_bytes
    cdef public bint submitted

    def __cinit__(self, Ring ring not None, cbool to_device, uintptr_t host, size_t size, size_t chunk_bytes,
                  unsigned thread_count):
        self.ring = ring
        self.base = ring.base
        self.chunk_bytes = chunk_bytes
        self.block_count = ring.nbytes // chunk_bytes
        self.copy = new CStagedCopy(started(thread_count)[0], to_device, <char*>host, size, chunk_bytes, ring.blocks,
                                    self.block_count, ring.counters[0], ring.base)
        ring.base += self.copy.chunks() + (not to_device)
        ring.last = self

    @property
    def chunks(self):
        return self.copy.chunks()

    def bytes(self, uint32_t chunk):
        return self.copy.bytes(chunk)

    def block(self, uint32_t chunk):
        return <uintptr_t>self.copy.block(chunk)

    @property
    def began(self):
        return <uintptr_t>&CStagedCopy.began

    @property
    def argument(self):
        return <uintptr_t>self.copy

    @property
    def over(self):
        return self.copy.over()

    cpdef abandon(self):
        if not self.copy.abandon():
            with nogil:
                while not self.copy.over():
                    usleep(50)

    def __dealloc__(self):
        if self.copy is NULL:
            return
        if self.submitted and not self.copy.begun():
            return  # a vendor that has lost the device may still call it: it is left behind
        self.abandon()
        del self.copy


cdef class LetGo:
    cdef StagedCopy copy

    def __cinit__(self, StagedCopy copy not None):
        self.copy = copy

    def __dealloc__(self):
        if self.copy is not None:
            self.copy.abandon()
