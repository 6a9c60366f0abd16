# SPDX-License-Identifier: Apache-2.0
"""A device as the pinned map sees it: something that locks host memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol, runtime_checkable


class PinnedInfo(NamedTuple):
    """A range that a vendor reports as pinned: host base address, size in bytes, device pointer of the base."""

    base: int
    size: int
    device_ptr: int


class LockLimit(NamedTuple):
    """How much a device's vendor lets this process lock.

    Attributes
    ----------
    name : str
        What the limit is called, such as ``"RLIMIT_MEMLOCK"``.
    limit, used : int
        Bytes.
    remedy : str
        The command that raises it.
    """

    name: str
    limit: int
    used: int
    remedy: str


class NamedDevice:
    """A base class for devices written in Python, which takes `vendor` and `index` from their ``name``."""

    @property
    def vendor(self: Device) -> str:
        """The plugin's name, such as ``"cuda"``."""
        return self.name.partition(":")[0]

    @property
    def index(self: Device) -> int:
        """Which of the vendor's devices it is."""
        return int(self.name.partition(":")[2] or 0)


@runtime_checkable
class LockDevice(Protocol):
    """All that a `PinnedMap` needs of a device. Any thread may call it, several at once, with no lock held."""

    def data_lock(self, ptr: int, size: int, read_only: bool | None, /) -> int:
        """Page-lock ``[ptr, ptr + size)`` and return its device-accessible pointer.

        Parameters
        ----------
        ptr, size : int
            A host range in bytes, of any alignment, disjoint from all ranges that the map has locked here.
        read_only : bool or None
            Whether the mapping may be read only: True, False, or None if the device must find out.

        Raises
        ------
        AlreadyPinnedError
            Another owner has pinned some of it.
        VendorError
            The vendor refused; nothing is locked.
        """

    def data_unlock(self, ptr: int, /) -> None:
        """Undo the `data_lock` of the range that starts at host address `ptr`. After an error it is still locked."""

    def is_pinned_ptr(self, ptr: int, /) -> tuple[int, int, int] | None:
        """The pinned range around host address `ptr`, pinned by any owner, as far as the vendor can tell."""


@runtime_checkable
class Device(LockDevice, Protocol):
    """One device of a plugin.

    It may also have:

    - ``can_lock: bool``: whether it can lock any memory; otherwise it is never the default device. Read often, so it
      should be cached.
    - ``lock_limit() -> LockLimit | None``: how much this process may lock; None if there is no limit.
    - ``largest_lock: int``: bytes that one `data_lock` can take; a larger lock is made of several.
    - ``coherence: frozenset[bool]``: whether locked memory can be coherent (True: the host and a running kernel see
      each other's writes), coarse-grained (False: each is sure to see them only after the kernel has ended), or both.
      With False, `data_lock` takes a fourth argument, ``coherent=True``, which is only ever passed as False.
    - ``pci_address: str | None``: such as ``"0000:3b:00.0"``, so that memory can be allocated near it; None if unknown.
    - ``link_to(other) -> str | None``: the vendor's name for its link to another device, such as ``"NVLink"``; None if
      only the PCI bus joins them.
    """

    @property
    def name(self) -> str:
        """Vendor and index, such as ``"cuda:0"``."""

    @property
    def vendor(self) -> str:
        """The plugin's name, such as ``"cuda"``."""

    @property
    def index(self) -> int:
        """Which of the vendor's devices it is."""

    def is_pinned_ptr(self, ptr: int, /) -> PinnedInfo | None:
        """As `LockDevice.is_pinned_ptr`."""


def lock_limit_of(device: object) -> LockLimit | None:
    """How much this process may lock for a device; None if it has no limit."""
    lock_limit: Callable[[], LockLimit | None] | None = getattr(device, "lock_limit", None)
    return None if lock_limit is None else lock_limit()
