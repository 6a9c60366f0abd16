# SPDX-License-Identifier: Apache-2.0
"""Locks for people: of any buffer, as handles that keep the buffer alive and clean up after themselves."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from pinning.buffers import HostBuffer
from pinning.map import Hold, PinnedMap, Region
from pinning.plugin import Device

class Lock(Hold):
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

    @property
    def host_ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> Device: ...
    @property
    def held(self) -> bool:
        """Whether it is still locked by this handle, in this process.

        Not so for memory that someone else had pinned, once the map knows that its owner has unpinned it.
        """

    @property
    def region(self) -> Region | None:
        """The locked region that holds the buffer, perhaps larger than it; None once unlocked."""

    def unlock(self) -> None:  # type: ignore[override]  # a Hold says whether it was held
        """Give up this lock; the last one of its region unlocks the memory. Nothing happens the second time.

        Raises
        ------
        VendorError
            The vendor refused; the lock is still held and can be unlocked again.
        """

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def lock(
    buffer: object,
    size: int | None = None,
    *,
    device: Device | str | None = None,
    read_only: bool | None = None,
    piece: int | None = None,
    unit: int | None = None,
    stall_ms: float | None = None,
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
    unit : int, optional
        Lock in pieces of so many bytes' multiples, counted from the buffer's start: no copy of such a unit crosses a
        border, whoever makes it. See `lock_async`, which does the same in the background.
    stall_ms : float, optional
        How long a GPU may stand still for one piece, in milliseconds; 3 by default where `unit` is given.
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

def make_ready(buffer: HostBuffer, on: PinnedMap, progress: Callable[[int, int], object] | None = None) -> None:
    """What goes before a vendor's lock: see that there is room, and bring the pages in. Raises as `lock`."""

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

def locked(
    *buffers: object,
    device: Device | str | None = None,
    read_only: bool | None = None,
    coherent: bool | None = None,
) -> AbstractContextManager[tuple[Lock, ...]]:
    """Lock several buffers for the length of a ``with`` block: all of them or none. Raises what `lock` does."""

def is_locked(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> bool:
    """Whether one locked region holds all of a buffer (or the bytes at an address), so that its copies are fast."""

def find(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> Region | None:
    """The locked region that holds all of a buffer, or all `size` bytes (1 by default) at an address.

    Parameters
    ----------
    buffer : object
        Anything that `lock` takes, or an address.
    device : Device or str, optional
        Where to look; in the maps of all devices by default.
    """

def regions(device: Device | str | None = None, *, idle: bool = False) -> list[Region]:
    """All locked regions of a device, or of all devices, in address order for each.

    Parameters
    ----------
    device : Device or str, optional
        Whose; of all devices by default.
    idle : bool
        Also what is registered though nobody has a lock of it, see `pinning.budget`.
    """

def range_of(buffer: object, size: int | None = None) -> tuple[int, int]:
    """Address and bytes of a buffer, or of an address by itself: one byte, or `size`."""
