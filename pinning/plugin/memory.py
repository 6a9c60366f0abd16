# SPDX-License-Identifier: Apache-2.0
"""A device as the memory layer sees it: something that allocates memory and copies it."""

from __future__ import annotations

from enum import Enum
from typing import Literal, NamedTuple, Protocol, runtime_checkable

from pinning.plugin.locking import Device
from pinning.plugin.queues import VendorQueue


class MemoryKind(Enum):
    """Which processors can reach an allocation, and where it lives."""

    HOST = "host"  #: pinned host memory, which devices reach over the bus
    DEVICE = "device"  #: memory of one device
    SHARED = "shared"  #: moves between host and devices as it is used


MemoryKindLike = MemoryKind | Literal["host", "device", "shared"]  # what users may give for a kind


class MemoryConnection(Enum):
    """What one device, in its context, can do with another's memory."""

    NONE = "none"  #: neither use it nor copy it directly: copies go through the host
    MIGRATABLE = "migratable"  #: not use it, but copy it without the host
    UNIFIED = "unified"  #: use it as it is


class MemoryInfo(NamedTuple):
    """An allocation as its vendor knows it.

    Attributes
    ----------
    kind : MemoryKind
        HOST also if the vendor has only registered the memory.
    base : int
        Its first byte: the host address of HOST memory, else the device's.
    size : int
        Bytes.
    device : int or None
        Index, within the plugin, of the device that it is on; None if it is on none.
    """

    kind: MemoryKind
    base: int
    size: int
    device: int | None


@runtime_checkable
class CopyDevice(Device, Protocol):
    """A device with memory of its own, for the copies of ``pinning bench``."""

    @property
    def description(self) -> str:
        """Human-readable name, such as ``"NVIDIA H200"``."""

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of device memory."""

    def free(self, ptr: int) -> None:
        """Give back what `allocate` returned."""

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done."""


@runtime_checkable
class MemoryDevice(CopyDevice, Protocol):
    """A device with kinds of memory and with queues, for `pinning.Context`, `pinning.Queue` and `pinning.copy`.

    It may also have ``allocate_write_combined(size)``: as `allocate` of kind HOST and freed in the same way, but memory
    that the host does not cache, for data that the host only writes.
    """

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """The kinds that `allocate` takes."""

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """Allocate exactly `size` bytes, aligned to at least 16. HOST memory is pinned for all devices of the plugin.

        Returns
        -------
        int
            The host address of HOST memory, whose device pointer `is_pinned_ptr` returns; else the device address.

        Raises
        ------
        VendorError
            The vendor refused, perhaps because memory ran out; nothing is allocated.
        """

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned for this kind. After an error it is still allocated."""

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation or registration around `ptr`, of any owner; None if the vendor knows none."""

    def connection(self, other: Device) -> MemoryConnection:
        """What the device `other` can do with DEVICE memory of this one. NONE for other vendors' devices."""

    def make_queue(self) -> VendorQueue:
        """Make an in-order queue."""

    def adopt_queue(self, handle: int) -> VendorQueue:
        """Wrap another owner's in-order queue, by the vendor's handle; `close` leaves the queue itself open."""

    def synchronize(self) -> None:
        """Wait until all work submitted to this device is done."""
