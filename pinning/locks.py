# SPDX-License-Identifier: Apache-2.0
"""Locks for people: of any buffer, as handles that keep the buffer alive and clean up after themselves."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from numbers import Integral
from types import TracebackType
from typing import Self
from weakref import WeakValueDictionary

from pinning.buffers import HostBuffer, resolve
from pinning.devices import pinned_map, pinned_maps
from pinning.errors import NotLockedError
from pinning.map import Hold, PinnedMap, Region
from pinning.plugin import Device
from pinning.populate import is_resident, populate
from pinning.room import check_room

_open: WeakValueDictionary[int, Lock] = WeakValueDictionary()  # the locks that are held, oldest first
_serial = count()


class Lock:
    """One lock of one buffer. Made by `lock`; a context manager, which unlocks at the end.

    While it is held the buffer's owner is kept alive, and cannot be resized or closed. A lock that is dropped while
    held warns (ResourceWarning) and unlocks. In a child process after fork it is not held: page locks stay with the
    parent.

    Attributes
    ----------
    host_ptr, device_ptr : int
        Where the buffer's first byte is, for the host and for the device.
    size : int
        Bytes.
    device : Device
        Where it is locked.
    """

    def __init__(
        self,
        on: PinnedMap,
        buffer: HostBuffer,
        read_only: bool | None,
        piece: int | None,
        coherent: bool | None,
    ) -> None:
        self._map = on
        self._hold = Hold(on, buffer.ptr, buffer.size, read_only, piece, coherent)
        self._owner = buffer.owner
        self.host_ptr = buffer.ptr
        self.size = buffer.size
        self.device: Device = on.device
        self._serial = next(_serial)
        _open[self._serial] = self

    @property
    def device_ptr(self) -> int:
        return self._hold.device_ptr

    @property
    def held(self) -> bool:
        """Whether it is still locked by this handle, in this process.

        Not so for memory that someone else had pinned, once the map knows that its owner has unpinned it.
        """
        return self._hold.held

    @property
    def region(self) -> Region | None:
        """The locked region that holds the buffer, perhaps larger than it; None once unlocked."""
        return self._map.find(self.host_ptr, self.size) if self.held else None

    def unlock(self) -> None:
        """Give up this lock; the last one of its region unlocks the memory. Nothing happens the second time.

        Raises
        ------
        VendorError
            The vendor refused; the lock is still held and can be unlocked again.
        """
        self._give_up()

    def _give_up(self) -> bool:
        if not self._hold.unlock():
            return False
        _open.pop(self._serial, None)
        self._owner = None
        return True

    def _meets(self, start: int, end: int) -> bool:
        return self.host_ptr < end and start < self.host_ptr + self.size

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.unlock()

    def __del__(self) -> None:
        hold: Hold | None = getattr(self, "_hold", None)  # absent when the lock was refused
        if hold is not None and hold.held:
            warning = f"{self!r} was dropped while held; unlock it, or use `with`"
            try:
                warnings.warn(warning, ResourceWarning, stacklevel=2, source=self)
            finally:
                hold.drop(self._owner)

    def __repr__(self) -> str:
        state = "" if self.held else ", unlocked"
        device = getattr(self.device, "name", self.device)
        return f"<Lock of [{self.host_ptr:#x}, {self.host_ptr + self.size:#x}), {self.size} bytes, on {device}{state}>"


def lock(
    buffer: object,
    size: int | None = None,
    *,
    device: Device | str | None = None,
    read_only: bool | None = None,
    piece: int | None = None,
    coherent: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Lock:
    """Lock a buffer's memory for a device, or count one more lock of memory that is locked already.

    Before the device's vendor is called, the room is checked and the pages are brought into memory in pieces, so that
    Ctrl-C works meanwhile and leaves nothing locked.

    Parameters
    ----------
    buffer : object
        What to lock: anything with the buffer protocol (bytes, bytearray, memoryview, mmap, array, NumPy arrays of any
        strides), SharedMemory, CPU tensors, DLPack on the CPU, ``__array_interface__``, ``(address, size)``, or an
        address with `size`. A view with gaps is locked from its lowest to its highest byte.
    size : int, optional
        Only the first `size` bytes.
    device : Device or str, optional
        Such as ``"cuda:0"``; the first that is not the host by default.
    read_only : bool, optional
        Whether the device may only read it; by default as the buffer and its mapping say.
    piece : int, optional
        Lock in pieces of so many bytes. A GPU stands still while memory is locked, about 25 ms a GiB: pieces bound
        that. But other libraries' copies that cross a border between pieces then fail.
    coherent : bool, optional
        Whether the host and a running kernel must see each other's writes. By default they do wherever the vendor has
        that. True: refused where they do not. False: not needed, and coarse-grained, which may be faster, will do.
    progress : callable, optional
        ``progress(done, total)`` in bytes, while the pages are brought in.

    Returns
    -------
    Lock
        Keep it: dropping it unlocks.

    Raises
    ------
    TypeError
        It is no buffer.
    InvalidRangeError
        Empty, null, closed, freed or device memory.
    PartialOverlapError
        It shares bytes with a locked region without lying inside it.
    StillLockedError
        It overlaps a region that is half unlocked, because the vendor refused; unlock that again first. Or it is to be
        coherent, and lies in a region that is not, or of which nobody knows.
    PinningError
        The device does not promise coherence, and it is required.
    LockLimitError
        Too much for this machine's limits.
    PluginUnavailableError
        There is no such device.
    VendorError
        The vendor refused.
    """
    found = resolve(buffer, size)
    on = pinned_map(device)
    make_ready(found, on, progress)
    return Lock(on, found, found.read_only if read_only is None else read_only, piece, coherent)


def make_ready(buffer: HostBuffer, on: PinnedMap, progress: Callable[[int, int], object] | None = None) -> None:
    """What goes before a vendor's lock: see that there is room, and bring the pages in. Raises as `lock`."""
    # Where either end is in a locked region, the map has the answer: one more lock, or an overlap.
    if buffer.ptr not in on and buffer.ptr + buffer.size - 1 not in on and not on.closed:
        resident = is_resident(buffer.ptr, buffer.size)
        check_room(buffer.size, on.device, resident)
        populate(buffer.ptr, buffer.size, progress=progress, resident=resident)


def unlock(buffer: object, *, device: Device | str | None = None) -> None:
    """Give up the youngest lock of a buffer: of exactly its bytes, or else of any in the same region.

    Parameters
    ----------
    buffer : object
        A `Lock`, anything that `lock` takes, or an address.
    device : Device or str, optional
        Where it is locked; anywhere by default.

    Raises
    ------
    NotLockedError
        It is not locked.
    VendorError
        The vendor refused; it is still locked.
    """
    if isinstance(buffer, Lock):
        buffer.unlock()
        return
    ptr, size = range_of(buffer)
    for on in pinned_maps() if device is None else [pinned_map(device)]:
        # Where the vendor has refused half way no region is found, and the locks themselves say where they are.
        region = on.find(ptr)
        start, end = (region.start, region.end) if region else (ptr, ptr + 1)
        youngest_first = [ref() for ref in reversed(_open.valuerefs())]  # a copy: other threads lock meanwhile
        there = [each for each in youngest_first if each and each.held and each._map is on and each._meets(start, end)]
        exact = [each for each in there if (each.host_ptr, each.size) == (ptr, size)]
        if any(each._give_up() for each in exact + there):
            return
        with suppress(NotLockedError):
            on.unlock(ptr)  # locked through the map itself
            return
    raise NotLockedError(f"no locked region holds {ptr:#x}")


@contextmanager
def locked(
    *buffers: object,
    device: Device | str | None = None,
    read_only: bool | None = None,
    coherent: bool | None = None,
) -> Iterator[tuple[Lock, ...]]:
    """Lock several buffers for the length of a ``with`` block: all of them or none. Raises what `lock` does."""
    with ExitStack() as stack:
        yield tuple(
            stack.enter_context(lock(each, device=device, read_only=read_only, coherent=coherent)) for each in buffers
        )


def is_locked(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> bool:
    """Whether one locked region holds all of a buffer (or the bytes at an address), so that its copies are fast."""
    return find(buffer, size, device=device) is not None


def find(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> Region | None:
    """The locked region that holds all of a buffer, or all `size` bytes (1 by default) at an address.

    Parameters
    ----------
    buffer : object
        Anything that `lock` takes, or an address.
    device : Device or str, optional
        Where to look; in the maps of all devices by default.
    """
    ptr, length = range_of(buffer, size)
    for on in pinned_maps() if device is None else [pinned_map(device)]:
        region = on.find(ptr, length)
        if region is not None:
            return region
    return None


def regions(device: Device | str | None = None) -> list[Region]:
    """All locked regions of a device, or of all devices, in address order for each."""
    return [region for on in (pinned_maps() if device is None else [pinned_map(device)]) for region in on]


def range_of(buffer: object, size: int | None = None) -> tuple[int, int]:
    """Address and bytes of a buffer, or of an address by itself: one byte, or `size`."""
    if isinstance(buffer, Integral):  # NumPy's too, which otherwise are buffers of their own few bytes
        return int(buffer), 1 if size is None else size
    found = resolve(buffer, size)
    return found.ptr, found.size
