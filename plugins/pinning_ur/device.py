# SPDX-License-Identifier: Apache-2.0
"""One device: `AutomaticLocking` and `MemoryDevice` of `pinning.plugin` on Unified Runtime."""

from __future__ import annotations

import ctypes
import threading
from bisect import insort
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakSet

from pinning.errors import AlreadyPinnedError, InvalidRangeError, NotLockedError, PinningError, VendorError
from pinning.plugin import AutomaticLocking, Device, MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo
from pinning_ur import memory, queue, release
from pinning_ur.loader import asked, call, made, refuse_fork
from pinning_ur.mappings import Pages, pages_of
from pinning_ur.platforms import OnFirstUse, Platform
from pinning_ur.queue import UrQueue


class UrDevice(AutomaticLocking):
    """A device of a platform. `UrPlugin.device` makes it, once the loader is initialised.

    Host memory is locked in the context of its platform, by urUSMHostAllocRegisterExp where loader and adapter have it,
    else by urUSMImportExp. An import is a hint: the adapter may pin nothing and say that all went well. Both take
    whole pages, which Unified Runtime sees as host allocations; their device pointer is the host pointer.
    """

    coherence: frozenset[bool] = frozenset()  # Unified Runtime promises neither

    def __init__(self, name: str, platform: Platform, handle: int, vendors_name: str) -> None:
        self.name = name
        self.description = f"{vendors_name} ({platform.adapter})"
        self.handle = handle
        self._context = platform.context
        self._queue = OnFirstUse(lambda: made("urQueueCreate", self._context(), handle, None), "urQueueRelease")
        self._registrations = platform.registrations
        self._mutex = threading.Lock()
        self._held: dict[int, list[int]] = {}  # base: the sizes locked there, ascending
        handles = [each for each, _ in platform.devices]
        first = int(name.partition(":")[2]) - handles.index(handle)
        self._indices = {each: first + place for place, each in enumerate(handles)}
        self._memory_kinds: frozenset[MemoryKind] = frozenset()  # until somebody asks
        self._queues: WeakSet[UrQueue] = WeakSet()

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    @property
    def context(self) -> int:
        """The ``ur_context_handle_t`` in which memory is locked and allocated; all devices of a platform share it."""
        return self._context()

    # ---- locking ----

    @property
    def can_lock(self) -> bool:
        """Whether its adapter can lock host memory."""
        return self._registrations.possible

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        """Lock the pages of ``[ptr, ptr + size)``; the device pointer is `ptr` itself.

        Parameters
        ----------
        ptr, size : int
            A host range in bytes, of any alignment.
        read_only : bool or None
            False: the memory is known to be writable, and its mapping is not looked up.

        Raises
        ------
        AlreadyPinnedError
            It is host memory that someone else registered or allocated in this context.
        InvalidRangeError
            It is memory of a device or shared with one, or some of it is not mapped and the adapter would not say so.
        VendorError
            The adapter refused, or cannot lock host memory at all; nothing is locked.
        """
        refuse_fork()
        pages = pages_of(ptr, size)

        def check(gaps: list[Pages]) -> None:
            for address in (ptr, ptr + size - 1):
                if any(start <= address < end for start, end in gaps):
                    self._refuse_usm(address)

        self._registrations.lock(pages, check, writable=read_only is False)
        with self._mutex:
            insort(self._held.setdefault(ptr, []), size)
        return ptr

    def data_unlock(self, ptr: int) -> None:
        """Undo one `data_lock` of the range that starts at `ptr`; pages that other locks hold stay locked.

        Raises
        ------
        NotLockedError
            No range that starts at `ptr` is locked.
        VendorError
            The adapter refused; everything is still locked.
        """
        refuse_fork()
        with self._claim(ptr) as size:
            self._registrations.unlock(pages_of(ptr, size))

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The range around `ptr` that this device holds, or else the host allocation or registration of someone else.

        The rest of a page of which only some bytes are locked does not count.
        """
        refuse_fork()
        with self._mutex:
            around = [(sizes[-1], base) for base, sizes in self._held.items() if base <= ptr < base + sizes[-1]]
        if around:
            size, base = max(around)
            return PinnedInfo(base, size, device_ptr=base)
        # The loader refuses to be asked about null.
        if not ptr or self._registrations.holds(ptr) or self._usm_type(ptr) != release.USM_HOST:
            return None
        _, base, size, _ = memory.usm(self.context, ptr)
        # It may have been given back since the first question, or be what another thread has just locked here.
        return None if not size or self._registrations.holds(ptr) else PinnedInfo(base, size, device_ptr=base)

    # ---- memory ----

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """Those that the device can reach: all three, for most."""
        if not self._memory_kinds:
            self._memory_kinds = memory.kinds(self.handle)
        return self._memory_kinds

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """`size` bytes. HOST memory is that of all devices of the platform, and its device address is the host's.

        Raises
        ------
        VendorError
            The adapter refused, perhaps for want of memory; nothing is allocated.
        """
        return memory.allocate(self.context, self.handle, size, kind)

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned.

        Raises
        ------
        VendorError
            The adapter refused; it is still allocated.
        """
        call("urUSMFree", self.context, ptr)

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The lock around `ptr`, or the allocation in the context of this platform; other contexts cannot be asked."""
        pinned = self.is_pinned_ptr(ptr)
        if pinned:
            return MemoryInfo(MemoryKind.HOST, pinned.base, pinned.size, None)
        found = memory.usm(self.context, ptr) if ptr else None
        if not found or found.type not in release.USM_OF_A_DEVICE or not found.size:
            return None
        kind = MemoryKind.DEVICE if found.type == release.USM_DEVICE else MemoryKind.SHARED
        return MemoryInfo(kind, found.base, found.size, self._indices.get(found.device))

    def connection(self, other: Device) -> MemoryConnection:
        """What the device `other` can do with DEVICE memory of this one.

        Where `other` can reach it directly, that is enabled for all memory of this device, and stays so. Otherwise
        copies go through the host: of two devices that cannot, no adapter promises more.
        """
        if not isinstance(other, UrDevice) or other._context is not self._context:
            return MemoryConnection.NONE
        if other.handle == self.handle:
            return MemoryConnection.UNIFIED
        try:
            pair = other.handle, self.handle
            if not asked(ctypes.c_int, "urUsmP2PPeerAccessGetInfoExp", *pair, release.PEER_ACCESS).value:
                return MemoryConnection.NONE
            call("urUsmP2PEnablePeerAccessExp", *pair)
        except VendorError as error:
            if error.code == release.UNSUPPORTED_FEATURE:
                return MemoryConnection.NONE
            if error.code != release.INVALID_OPERATION:  # how some say that it is enabled already
                raise
        return MemoryConnection.UNIFIED

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done."""
        call("urEnqueueUSMMemcpy", self._queue(), True, dst, src, size, 0, None, None)

    # ---- queues ----

    def make_queue(self) -> UrQueue:
        """A new queue, whose events know the time."""
        made_here = queue.make_queue(self.context, self.handle, self.name)
        self._queues.add(made_here)
        return made_here

    def adopt_queue(self, handle: int) -> UrQueue:
        """The queue of a ``ur_queue_handle_t``, which its owner keeps alive: the loader crashes on one that is gone.

        Raises
        ------
        PinningError
            It is of another device, out of order, or in another context than `context`.
        """
        adopted = queue.adopt_queue(self.context, self.handle, self.name, handle)
        self._queues.add(adopted)
        return adopted

    def synchronize(self) -> None:
        """Wait until all work is done in the queues that were made or adopted here; no adapter is asked for more."""
        refuse_fork()
        for each in list(self._queues):
            try:
                each.synchronize()
            except PinningError:
                if not each.closed:  # meanwhile, by another thread
                    raise

    def _refuse_usm(self, ptr: int) -> None:
        kind = self._usm_type(ptr)
        if kind == release.USM_HOST:
            # Importing it would succeed, and releasing it would take it away from whoever has it.
            raise AlreadyPinnedError(
                "urUSMGetMemAllocInfo", kind, "UR_USM_TYPE_HOST", f"someone else has pinned the memory at {ptr:#x}"
            )
        if kind in release.USM_OF_A_DEVICE:
            raise InvalidRangeError(
                f"{ptr:#x} cannot be locked for {self.name}: it is {release.USM_OF_A_DEVICE[kind]}, not host memory"
            )

    def _usm_type(self, ptr: int) -> int:
        return memory.usm_type(self.context, ptr)

    @contextmanager
    def _claim(self, ptr: int) -> Iterator[int]:
        """Take the smallest size off those locked at `ptr`: whoever stays is covered. Put it back on failure."""
        with self._mutex:
            sizes = self._held.get(ptr)
            if not sizes:
                raise NotLockedError(f"no range that starts at {ptr:#x} is locked on {self.name}")
            size = sizes.pop(0)
            if not sizes:
                del self._held[ptr]
        try:
            yield size
        except BaseException:
            with self._mutex:
                insort(self._held.setdefault(ptr, []), size)
            raise
