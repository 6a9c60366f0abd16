# SPDX-License-Identifier: Apache-2.0
"""Native vendors: a thin wrapper of <pinning/vendor.hpp>."""

from cpython.exc cimport PyErr_CheckSignals
from cpython.number cimport PyNumber_Index
from cython.operator cimport dereference

from typing import TYPE_CHECKING

from pinning.errors import InvalidRangeError, PinningError
from pinning.plugin.locking import PinnedInfo
from pinning.plugin.memory import MemoryConnection, MemoryInfo, MemoryKind
from pinning.plugin.vendor import Library

if TYPE_CHECKING:
    from typing import Any

    from pinning.plugin.locking import Device, LockLimit

# In the order of the enumerations of C++.
cdef tuple _KINDS_BY_NUMBER = tuple(MemoryKind)
cdef dict _KINDS = {kind: number for number, kind in enumerate(_KINDS_BY_NUMBER)}
cdef tuple _CONNECTIONS = tuple(MemoryConnection)


def device_count(str vendor not None) -> int:
    """Number of devices of a vendor, such as ``"cuda"``, at least 1.

    Raises
    ------
    PluginUnavailableError
        The vendor's library or a device is missing, or this process is a fork of one that uses them.
    """
    cdef string name = vendor.encode()
    cdef unsigned count
    with nogil:
        count = c_device_count(name)
    return count


def library(str vendor not None) -> Library:
    """The name under which a vendor's library was loaded, and its version. Raises as `device_count`."""
    cdef string name = vendor.encode()
    cdef VendorLibrary loaded
    with nogil:
        loaded = vendor_library(name)
    return Library(loaded.name.decode(errors="replace"), loaded.version.decode(errors="replace"))


cdef uint64_t word(object value, str name) except? 0xFFFFFFFFFFFFFFFF:
    try:
        return PyNumber_Index(value)
    except OverflowError:
        raise InvalidRangeError(f"{name} is {value}; it must lie in [0, 2**64)") from None
    except TypeError:
        raise TypeError(f"{name} is {value!r:.80}; it must be an integer") from None


cdef class NativeDevice:
    """NativeDevice(name, *args, **kwargs)\n--\n\nA device of a native vendor, from which a plugin derives its own.

    Its locking, memory and queues are those of ``<pinning/vendor.hpp>``; its map is shared with native code of this
    process. No call holds the GIL, and none can be interrupted half way.

    Parameters
    ----------
    name : str
        The full name, such as ``"cuda:0"``.
    *args, **kwargs
        For the ``__init__`` of a derived class.

    Raises
    ------
    PluginUnavailableError
        There is no such device, or its driver does not start.

    Attributes
    ----------
    name : str
        As given.
    vendor : str
        The part of the name before the colon.
    index : int
        The part of the name after the colon.
    """

    def __cinit__(self, str name: str, *args: Any, **kwargs: Any) -> None:
        cdef string full = name.encode()
        self.name = name
        with nogil:
            self.native = &vendor_device(full)
        self.vendor, _, index = name.partition(":")
        self.index = int(index)

    def __reduce__(self):
        raise TypeError(f"{self!r} can be neither copied nor pickled: pass its name, and use pinning.device({self.name!r})")

    def __repr__(self):
        return f"<{self.name} {self.description}>"

    @property
    def description(self) -> str:
        """The maker's name for it, such as ``"NVIDIA H200"``."""
        cdef string text
        if self._description is None:
            with nogil:
                text = self.native.description()
            self._description = text.decode(errors="replace")
        return self._description

    @property
    def pci_address(self) -> str | None:
        """Its PCI address, such as ``"0000:3b:00.0"``; None if the vendor does not report it."""
        cdef string address
        with nogil:
            address = self.native.pci_address()
        return address.decode() or None

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """The kinds that `allocate` takes."""
        cdef vector[CMemoryKind] kinds
        if self._memory_kinds is None:
            with nogil:
                kinds = self.native.memory_kinds()
            self._memory_kinds = frozenset(_KINDS_BY_NUMBER[<int>kind] for kind in kinds)
        return self._memory_kinds

    @property
    def can_lock(self) -> bool:
        """Whether its driver can lock host memory."""
        cdef bint can
        if self._can_lock is None:
            with nogil:
                can = self.native.can_lock()
            self._can_lock = can
        return self._can_lock

    def lock_limit(self) -> LockLimit | None:
        """Return None: the vendors' drivers ignore RLIMIT_MEMLOCK, and report no limit of their own."""
        return None

    def connection(self, other: Device) -> MemoryConnection:
        """What the device `other` can do with DEVICE memory of this one; see `pinning.plugin.MemoryDevice`."""
        if not isinstance(other, NativeDevice):
            return MemoryConnection.NONE
        cdef VendorDevice* user = (<NativeDevice>other).native
        cdef CMemoryConnection connection
        with nogil:
            connection = self.native.connection(dereference(user))
        return _CONNECTIONS[<int>connection]

    def link_to(self, other: Device) -> str | None:
        """The vendor's name for its link to another device, such as ``"NVLink"``; None if there is none."""
        if not isinstance(other, NativeDevice):
            return None
        cdef VendorDevice* peer = (<NativeDevice>other).native
        cdef string link
        with nogil:
            link = self.native.link_to(dereference(peer))
        return link.decode() or None

    @property
    def handle(self) -> int:
        """The vendor's own handle of the device, such as a ``ur_device_handle_t``; 0 if there is none."""
        cdef uintptr_t handle
        with nogil:
            handle = self.native.native_handle()
        return handle

    @property
    def context(self) -> int:
        """The vendor's handle of the context in which it locks and allocates, or of the pool from which it allocates.

        0 if there is none.
        """
        cdef uintptr_t context
        with nogil:
            context = self.native.native_context()
        return context

    @property
    def problems(self) -> list[str]:
        """Problems of the vendor's installation that do not prevent its use."""
        cdef vector[string] problems
        with nogil:
            problems = self.native.problems()
        return [problem.decode(errors="replace") for problem in problems]

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take."""
        return self.native.largest_lock()

    @property
    def coherence(self) -> frozenset[bool]:
        """What locked memory can be: True for coherent, False for coarse-grained."""
        cdef CoherenceSupport support = self.native.coherence()
        return frozenset(([True] if support.fine else []) + ([False] if support.coarse else []))

    def data_lock(self, ptr: int, size: int, read_only: bool | None = None, coherent: bool = True) -> int:
        """Lock ``[ptr, ptr + size)`` and return its device pointer; see `pinning.plugin.Device`."""
        cdef LockOptions options
        cdef uint64_t start = word(ptr, "ptr"), nbytes = word(size, "size"), device_ptr
        options.access = Access.unknown if read_only is None else Access.read_only if read_only else Access.writable
        options.coherence = Coherence.fine if coherent else Coherence.coarse
        with nogil:
            device_ptr = self.native.lock(start, nbytes, options)
        try:
            PyErr_CheckSignals()  # after Ctrl-C the caller does not get the pointer
        except BaseException:
            with nogil:
                self.native.unlock(start)
            raise
        return device_ptr

    def data_unlock(self, ptr: int) -> None:
        """Undo the `data_lock` of the range that starts at `ptr`. After an error it is still locked."""
        cdef uint64_t start = word(ptr, "ptr")
        with nogil:
            self.native.unlock(start)

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned range around `ptr`, pinned by any owner, as far as the vendor can tell."""
        cdef uint64_t at = word(ptr, "ptr")
        cdef optional[Pinned] pinned
        with nogil:
            pinned = self.native.is_pinned(at)
        if not pinned.has_value():
            return None
        return PinnedInfo(dereference(pinned).base, dereference(pinned).size, dereference(pinned).device_ptr)

    def allocate(self, uint64_t size, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """Allocate exactly `size` bytes; see `pinning.plugin.MemoryDevice`."""
        cdef CMemoryKind asked = <CMemoryKind><int>_KINDS[kind]
        cdef uint64_t ptr
        with nogil:
            ptr = self.native.allocate(size, asked, False)
        return ptr

    def allocate_write_combined(self, uint64_t size) -> int:
        """As `allocate` of kind HOST, but not cached by the host if the vendor offers that."""
        cdef uint64_t ptr
        with nogil:
            ptr = self.native.allocate(size, CMemoryKind.host, True)
        return ptr

    def free(self, uint64_t ptr, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned for this kind. After an error it is still allocated."""
        cdef CMemoryKind asked = <CMemoryKind><int>_KINDS[kind]
        with nogil:
            self.native.free(ptr, asked)

    def set_awake(self, uint64_t ptr, bint awake) -> None:
        """Give the bytes of sleepable memory back to the vendor, or bring others, of undefined contents, to its address."""
        with nogil:
            self.native.set_awake(ptr, awake)

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation or registration around `ptr`, of any owner."""
        cdef uint64_t at = word(ptr, "ptr")
        cdef optional[CMemoryInfo] info
        with nogil:
            info = self.native.memory_info(at)
        if not info.has_value():
            return None
        cdef int device = dereference(info).device
        kind = _KINDS_BY_NUMBER[<int>dereference(info).kind]
        return MemoryInfo(kind, dereference(info).base, dereference(info).size, None if device < 0 else device)

    def copy(self, uint64_t dst, uint64_t src, uint64_t size) -> None:
        """Copy `size` bytes in either direction, and wait until it is done."""
        with nogil:
            self.native.copy(dst, src, size)

    def synchronize(self) -> None:
        """Wait until all work submitted to this device is done."""
        with nogil:
            self.native.synchronize()

    def make_queue(self) -> NativeQueue:
        """Make an in-order queue."""
        cdef unique_ptr[VendorQueue] queue
        with nogil:
            queue = self.native.make_queue()
        return wrap_queue(queue.release())

    def adopt_queue(self, uintptr_t handle) -> NativeQueue:
        """Wrap another owner's in-order queue, by the vendor's handle; `close` leaves the queue itself open."""
        cdef unique_ptr[VendorQueue] queue
        with nogil:
            queue = self.native.adopt_queue(handle)
        return wrap_queue(queue.release())


cdef NativeQueue wrap_queue(VendorQueue* vendor):
    cdef NativeQueue queue
    try:
        queue = NativeQueue.__new__(NativeQueue)
    except BaseException:
        del vendor
        raise
    queue.owned.reset(vendor)
    queue.vendor = vendor
    return queue


cdef class NativeQueue:
    """An in-order queue of a `NativeDevice`, with the methods of `pinning.plugin.VendorQueue`."""

    def __init__(self):
        raise TypeError("a NativeQueue comes from a device's make_queue or adopt_queue")

    def __repr__(self):
        return f"<NativeQueue with the handle {self.vendor.handle():#x}>"

    def __dealloc__(self):
        with nogil:
            self.owned.reset()

    @property
    def handle(self) -> int:
        return self.vendor.handle()

    @property
    def stream_number(self) -> int:
        """A number of the vendor's stream that no other one gets, also when this one is gone; 0 if it is not known."""
        cdef uint64_t number
        with nogil:
            number = self.vendor.stream_number()
        return number

    @property
    def waits_for_values(self) -> bool:
        return self.vendor.waits_for_values()

    @property
    def moves_parts(self) -> bool:
        """Whether the device has a kernel that copies many parts at once."""
        return self.vendor.moves_parts()

    def copy(self, uint64_t dst, uint64_t src, uint64_t size) -> None:
        with nogil:
            self.vendor.copy(dst, src, size)

    def copy_2d(
        self, uint64_t dst, uint64_t dst_pitch, uint64_t src, uint64_t src_pitch, uint64_t width, uint64_t height
    ) -> None:
        with nogil:
            self.vendor.copy_2d(dst, dst_pitch, src, src_pitch, width, height)

    def fill(self, uint64_t ptr, bytes value not None, uint64_t count) -> None:
        cdef uint32_t word = int.from_bytes(value, "little")
        cdef unsigned size = len(value)
        if size not in (1, 2, 4):
            raise InvalidRangeError(f"the value has {size} bytes; it must have 1, 2 or 4")
        with nogil:
            self.vendor.fill(ptr, word, size, count)

    def call(self, uintptr_t function, uintptr_t argument) -> None:
        with nogil:
            self.vendor.call(<void (*)(void*) noexcept nogil>function, <void*>argument)

    def wait_value(self, uint64_t address, uint32_t value) -> None:
        with nogil:
            self.vendor.wait_value(address, value)

    def write_value(self, uint64_t address, uint32_t value) -> None:
        with nogil:
            self.vendor.write_value(address, value)

    def write_then_wait(self, uint64_t written, uint32_t value, uint64_t awaited, uint32_t reached) -> None:
        """`write_value`, then `wait_value`, in one call if the vendor has one for both."""
        with nogil:
            self.vendor.write_then_wait(written, value, awaited, reached)

    def record(self) -> NativeEvent:
        cdef unique_ptr[VendorEvent] vendor_event
        with nogil:
            vendor_event = self.vendor.record()
        cdef shared_ptr[VendorEvent] shared
        shared.reset(vendor_event.release())
        return wrap_event(shared)

    def wait(self, event: object) -> None:
        if not isinstance(event, NativeEvent):
            raise not_native(event)
        cdef VendorEvent* awaited = (<NativeEvent>event).vendor.get()
        with nogil:
            self.vendor.wait(dereference(awaited))

    def done(self) -> bool:
        cdef bint over
        with nogil:
            over = self.vendor.done()
        return over

    def synchronize(self) -> None:
        cdef bint over = False
        cdef uint64_t until = 0
        while not over:
            with nogil:
                over = self.vendor.synchronize_a_while(until)
            PyErr_CheckSignals()

    def close(self) -> None:
        with nogil:
            self.vendor.close()


cdef object not_native(event):
    return PinningError(f"{event!r} is of another vendor: queues wait only for events of their own vendor, and only those times "
        "are compared; wait for the event itself")


cdef NativeEvent wrap_event(const shared_ptr[VendorEvent]& vendor):
    cdef NativeEvent event = NativeEvent.__new__(NativeEvent)
    event.vendor = vendor
    return event


cdef class NativeEvent:
    """A point in a `NativeQueue`, with the methods of `pinning.plugin.VendorEvent`."""

    def __init__(self):
        raise TypeError("a NativeEvent comes from a queue's record")

    def __repr__(self):
        return f"<NativeEvent of the vendor's, at {<uintptr_t>self.vendor.get():#x}>"

    def __dealloc__(self):
        with nogil:
            self.vendor.reset()

    def done(self) -> bool:
        cdef bint over
        cdef VendorEvent* vendor = self.vendor.get()
        with nogil:
            over = vendor.done()
        return over

    def wait(self) -> None:
        cdef bint reached = False
        cdef VendorEvent* vendor = self.vendor.get()
        while not reached:
            with nogil:
                reached = vendor.wait_a_while()
            PyErr_CheckSignals()

    def seconds_since(self, earlier: object) -> float:
        if not isinstance(earlier, NativeEvent):
            raise not_native(earlier)
        cdef double seconds
        cdef VendorEvent* before = (<NativeEvent>earlier).vendor.get()
        cdef VendorEvent* vendor = self.vendor.get()
        with nogil:
            seconds = vendor.seconds_since(dereference(before))
        return seconds
