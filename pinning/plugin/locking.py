# SPDX-License-Identifier: Apache-2.0
"""A device as the pinned map sees it: something that locks host memory."""

from __future__ import annotations

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
    """One device of a plugin."""

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


@runtime_checkable
class UncertainDevice(Device, Protocol):
    """A device whose driver may be unable to lock host memory."""

    @property
    def can_lock(self) -> bool:
        """Whether it can lock any; otherwise it is never the default device. Read often, so it should be cached."""


@runtime_checkable
class LimitedDevice(Device, Protocol):
    """A device whose vendor limits how much may be locked, in total or in one call."""

    def lock_limit(self) -> LockLimit | None:
        """The limit in force for this process; None if there is none."""

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take; a larger lock is made of several."""


@runtime_checkable
class LocatedDevice(Device, Protocol):
    """A device that knows its place in the machine, so that memory can be allocated near it."""

    @property
    def pci_address(self) -> str | None:
        """Its PCI address, such as ``"0000:3b:00.0"``; None if unknown."""


@runtime_checkable
class LinkedDevice(Device, Protocol):
    """A device that knows whether links of its vendor connect it to another, apart from the PCI bus."""

    def link_to(self, other: Device) -> str | None:
        """The vendor's name for its link to `other`, such as ``"NVLink"``; None if there is none."""


@runtime_checkable
class CoarseDevice(Device, Protocol):
    """A device that knows whether locked memory is coherent (fine-grained).

    Coherent: the host and a running kernel can see each other's writes. Coarse-grained: each side is sure to see the
    other's writes only after the kernel has ended.
    """

    @property
    def coherence(self) -> frozenset[bool]:
        """What is supported: True for coherent, False for coarse-grained. Empty: the vendor promises neither."""

    def data_lock(self, ptr: int, size: int, read_only: bool | None, coherent: bool = True) -> int:
        """As `Device.data_lock`. `coherent` is only ever passed as False, and only if `coherence` contains that."""
