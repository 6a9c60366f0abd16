# SPDX-License-Identifier: Apache-2.0
"""One device: `AutomaticLocking` and `CopyDevice` of `pinning.plugin` on Unified Runtime."""

from __future__ import annotations

import ctypes
import threading
from bisect import insort
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pinning.errors import AlreadyPinnedError, InvalidRangeError, NotLockedError
from pinning.plugin import AutomaticLocking, PinnedInfo
from pinning_ur import release
from pinning_ur.loader import asked, call, made, refuse_fork
from pinning_ur.mappings import Pages, pages_of
from pinning_ur.platforms import OnFirstUse, Platform

_Value = TypeVar("_Value")


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

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    @property
    def context(self) -> int:
        """The ``ur_context_handle_t`` in which memory is locked and allocated; all devices of a platform share it."""
        return self._context()

    # ---- locking ----

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
        base = self._ask(ctypes.c_void_p, ptr, release.ALLOC_INFO_BASE).value or 0
        size = self._ask(ctypes.c_size_t, ptr, release.ALLOC_INFO_SIZE).value
        # It may have been given back since the first question, or be what another thread has just locked here.
        return None if not size or self._registrations.holds(ptr) else PinnedInfo(base, size, device_ptr=base)

    # ---- memory of its own ----

    def allocate(self, size: int) -> int:
        """`size` bytes of device memory."""
        return made("urUSMDeviceAlloc", self.context, self.handle, None, None, size)

    def free(self, ptr: int) -> None:
        """Give back what `allocate` returned."""
        call("urUSMFree", self.context, ptr)

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done."""
        call("urEnqueueUSMMemcpy", self._queue(), True, dst, src, size, 0, None, None)

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
        return self._ask(ctypes.c_int, ptr, release.ALLOC_INFO_TYPE).value

    def _ask(self, kind: Callable[[], _Value], ptr: int, property_: int) -> _Value:
        return asked(kind, "urUSMGetMemAllocInfo", self.context, ptr, property_)

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
