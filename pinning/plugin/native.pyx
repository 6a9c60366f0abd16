# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""Vendors that are native: a thin face of <pinning/vendor.hpp>. The stub says what each method does."""

from cpython.exc cimport PyErr_CheckSignals
from cython.operator cimport dereference
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libcpp.memory cimport unique_ptr
from libcpp.optional cimport optional
from libcpp.string cimport string
from libcpp.vector cimport vector

from pinning.errors import InvalidRangeError, PinningError
from pinning.plugin.locking import PinnedInfo
from pinning.plugin.memory import MemoryInfo, MemoryKind

cdef dict _KINDS = {
    MemoryKind.HOST: <int>CMemoryKind.host,
    MemoryKind.DEVICE: <int>CMemoryKind.device,
    MemoryKind.SHARED: <int>CMemoryKind.shared,
}
cdef tuple _KINDS_BY_NUMBER = (MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED)


cdef class NativeDevice:
    def __cinit__(self, str name, *args, **kwargs):
        cdef string full = name.encode()
        self.name = name
        with nogil:
            self.vendor = &vendor_device(full)

    @property
    def handle(self):
        cdef uintptr_t handle
        with nogil:
            handle = self.vendor.native_handle()
        return handle

    @property
    def context(self):
        cdef uintptr_t context
        with nogil:
            context = self.vendor.native_context()
        return context

    @property
    def problems(self):
        cdef vector[string] problems
        with nogil:
            problems = self.vendor.problems()
        return [problem.decode(errors="replace") for problem in problems]

    @property
    def largest_lock(self):
        return self.vendor.largest_lock()

    @property
    def coherence(self):
        cdef Grains grains = self.vendor.grains()
        return frozenset(([True] if grains.fine else []) + ([False] if grains.coarse else []))

    def data_lock(self, uint64_t ptr, uint64_t size, read_only=None, coherent=True):
        cdef Wish wish
        cdef uint64_t device_ptr
        wish.access = Access.unknown if read_only is None else Access.read_only if read_only else Access.writable
        wish.grain = Grain.fine if coherent else Grain.coarse
        with nogil:
            device_ptr = self.vendor.lock(ptr, size, wish)
        try:
            PyErr_CheckSignals()  # Ctrl-C struck meanwhile: nobody is told the pointer
        except BaseException:
            with nogil:
                self.vendor.unlock(ptr)
            raise
        return device_ptr

    def data_unlock(self, uint64_t ptr):
        with nogil:
            self.vendor.unlock(ptr)

    def is_pinned_ptr(self, uint64_t ptr):
        cdef optional[Pinned] found
        with nogil:
            found = self.vendor.is_pinned(ptr)
        if not found.has_value():
            return None
        return PinnedInfo(dereference(found).base, dereference(found).size, dereference(found).device_ptr)

    def allocate(self, uint64_t size, kind=MemoryKind.DEVICE):
        cdef CMemoryKind asked = <CMemoryKind><int>_KINDS[kind]
        cdef uint64_t ptr
        with nogil:
            ptr = self.vendor.allocate(size, asked, False)
        return ptr

    def allocate_write_combined(self, uint64_t size):
        cdef uint64_t ptr
        with nogil:
            ptr = self.vendor.allocate(size, CMemoryKind.host, True)
        return ptr

    def free(self, uint64_t ptr, kind=MemoryKind.DEVICE):
        cdef CMemoryKind asked = <CMemoryKind><int>_KINDS[kind]
        with nogil:
            self.vendor.free(ptr, asked)

    def memory_info(self, uint64_t ptr):
        cdef optional[CMemoryInfo] found
        with nogil:
            found = self.vendor.memory_info(ptr)
        if not found.has_value():
            return None
        cdef int device = dereference(found).device
        kind = _KINDS_BY_NUMBER[<int>dereference(found).kind]
        return MemoryInfo(kind, dereference(found).base, dereference(found).size, None if device < 0 else device)

    def copy(self, uint64_t dst, uint64_t src, uint64_t size):
        with nogil:
            self.vendor.copy(dst, src, size)

    def synchronize(self):
        with nogil:
            self.vendor.synchronize()

    def make_queue(self):
        cdef unique_ptr[VendorQueue] made
        with nogil:
            made = self.vendor.make_queue()
        return wrap_queue(made.release())

    def adopt_queue(self, uintptr_t handle):
        cdef unique_ptr[VendorQueue] made
        with nogil:
            made = self.vendor.adopt_queue(handle)
        return wrap_queue(made.release())


cdef NativeQueue wrap_queue(VendorQueue* vendor):
    cdef NativeQueue queue
    try:
        queue = NativeQueue.__new__(NativeQueue)
    except BaseException:
        del vendor
        raise
    queue.vendor = vendor
    return queue


cdef class NativeQueue:
    def __init__(self):
        raise TypeError("a NativeQueue is had from a device's make_queue or adopt_queue")

    def __dealloc__(self):
        cdef VendorQueue* vendor = self.vendor
        with nogil:
            del vendor

    @property
    def handle(self):
        return self.vendor.handle()

    @property
    def waits_for_values(self):
        return self.vendor.waits_for_values()

    @property
    def moves_parts(self):
        return self.vendor.moves_parts()

    def copy(self, uint64_t dst, uint64_t src, uint64_t size):
        with nogil:
            self.vendor.copy(dst, src, size)

    def copy_2d(self, uint64_t dst, uint64_t dst_pitch, uint64_t src, uint64_t src_pitch, uint64_t width,
                uint64_t height):
        with nogil:
            self.vendor.copy_2d(dst, dst_pitch, src, src_pitch, width, height)

    def fill(self, uint64_t ptr, bytes value not None, uint64_t count):
        cdef uint32_t word = int.from_bytes(value, "little")
        cdef unsigned size = len(value)
        if size not in (1, 2, 4):
            raise InvalidRangeError(f"the value has {size} bytes; it must have 1, 2 or 4")
        with nogil:
            self.vendor.fill(ptr, word, size, count)

    def call(self, uintptr_t function, uintptr_t argument):
        with nogil:
            self.vendor.call(<void (*)(void*) noexcept nogil>function, <void*>argument)

    def wait_value(self, uint64_t address, uint32_t value):
        with nogil:
            self.vendor.wait_value(address, value)

    def write_value(self, uint64_t address, uint32_t value):
        with nogil:
            self.vendor.write_value(address, value)

    def write_then_wait(self, uint64_t written, uint32_t value, uint64_t awaited, uint32_t reached):
        with nogil:
            self.vendor.write_then_wait(written, value, awaited, reached)

    def record(self):
        cdef unique_ptr[VendorEvent] made
        with nogil:
            made = self.vendor.record()
        cdef NativeEvent event = NativeEvent.__new__(NativeEvent)
        event.vendor = made.release()
        return event

    def wait(self, event):
        if not isinstance(event, NativeEvent):
            raise PinningError(f"{event!r} is no event of this vendor's queues")
        cdef VendorEvent* awaited = (<NativeEvent>event).vendor
        with nogil:
            self.vendor.wait(dereference(awaited))

    def done(self):
        cdef bint over
        with nogil:
            over = self.vendor.done()
        return over

    def synchronize(self):
        cdef bint over = False
        cdef uint64_t until = 0
        while not over:
            with nogil:
                over = self.vendor.synchronize_a_while(until)
            PyErr_CheckSignals()

    def close(self):
        with nogil:
            self.vendor.close()


cdef class NativeEvent:
    def __init__(self):
        raise TypeError("a NativeEvent is had from a queue's record")

    def __dealloc__(self):
        cdef VendorEvent* vendor = self.vendor
        with nogil:
            del vendor

    def done(self):
        cdef bint over
        with nogil:
            over = self.vendor.done()
        return over

    def wait(self):
        cdef bint reached = False
        while not reached:
            with nogil:
                reached = self.vendor.wait_a_while()
            PyErr_CheckSignals()

    def seconds_since(self, earlier):
        if not isinstance(earlier, NativeEvent):
            raise InvalidRangeError(f"{earlier!r} is no event of this vendor's; times of two vendors cannot be compared")
        cdef double seconds
        cdef VendorEvent* before = (<NativeEvent>earlier).vendor
        with nogil:
            seconds = self.vendor.seconds_since(dereference(before))
        return seconds
