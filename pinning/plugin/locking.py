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
class Device(Protocol):
    """One device; a `PinnedMap` needs its methods alone. Calls come from any thread, several at once, under no lock."""

    @property
    def name(self) -> str:
        """Vendor and index, such as ``"cuda:0"``."""

    @property
    def vendor(self) -> str:
        """The plugin's name, such as ``"cuda"``."""

    @property
    def index(self) -> int:
        """Which of the vendor's devices it is."""

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        """Page-lock ``[ptr, ptr + size)`` and return its device-accessible pointer.

        Parameters
        ----------
        ptr, size : int
            A host range in bytes, of any alignment. It shares no byte with a range this map has locked here before.
        read_only : bool or None
            Whether the mapping may be read only: True, False, or None for "find out".

        Raises
        ------
        AlreadyPinnedError
            Another owner has pinned some of it.
        VendorError
            The vendor refused; nothing is locked.
        """

    def data_unlock(self, ptr: int) -> None:
        """Undo the `data_lock` of the range that starts at host address `ptr`. After an error it is still locked."""

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned range around host address `ptr`, pinned by any owner, as far as the vendor can tell."""


@runtime_checkable
class UncertainDevice(Device, Protocol):
    """A device whose driver may lack what it takes to lock host memory."""

    @property
    def can_lock(self) -> bool:
        """Whether it can lock any at all; one that cannot is no default device. Asked often, so the answer is kept."""


@runtime_checkable
class LimitedDevice(Device, Protocol):
    """A device whose vendor bounds how much may be locked, or how much in one call."""

    def lock_limit(self) -> LockLimit | None:
        """The limit in force for this process; None when there is none."""

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take; a larger lock is made of several."""


@runtime_checkable
class LocatedDevice(Device, Protocol):
    """A device that says where on the machine it is, so that memory can be near it."""

    @property
    def pci_address(self) -> str | None:
        """On the PCI bus, such as ``"0000:3b:00.0"``; None where that is unknown."""


@runtime_checkable
class LinkedDevice(Device, Protocol):
    """A device that says whether its vendor's own links join it to another, beside the PCI bus."""

    def link_to(self, other: Device) -> str | None:
        """What their makers call such links, as ``"NVLink"``; None where there is none to that device."""


@runtime_checkable
class CoarseDevice(Device, Protocol):
    """A device that says whether locked memory is coherent, which is to say fine-grained.

    Coherent: what the host writes, a running kernel can see, and what the kernel writes, the host can see before the
    kernel has ended. Coarse-grained: either side is sure to see the other's writes only once the kernel has ended.
    """

    @property
    def coherence(self) -> frozenset[bool]:
        """What is supported: True for coherent, False for coarse-grained. Empty: the vendor promises neither."""

    def data_lock(self, ptr: int, size: int, read_only: bool | None, coherent: bool = True) -> int:
        """As `Device.data_lock`. `coherent` is given as False, and only where `coherence` has it."""
