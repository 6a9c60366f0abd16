# SPDX-License-Identifier: Apache-2.0
"""What a vendor's plugin provides. Plugins import this module and `pinning.errors`, nothing else of ours.

A distribution announces its plugin as an entry point of the group ``pinning.plugins``, naming an object that has the
members of `Plugin`. `pinning_host` is the smallest example.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

ENTRY_POINT_GROUP = "pinning.plugins"


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


@runtime_checkable
class Device(Protocol):
    """One device; all a `PinnedMap` needs. Calls come from any thread, several at a time, never under a lock."""

    @property
    def name(self) -> str:
        """Plugin and index, such as ``"cuda:0"``."""

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
            Someone else has pinned some of it.
        VendorError
            The vendor refused; nothing is locked.
        """

    def data_unlock(self, ptr: int) -> None:
        """Undo the `data_lock` of the range that starts at host address `ptr`. After an error it is still locked."""

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned range around host address `ptr`, whoever pinned it, as far as the vendor can tell."""


@runtime_checkable
class LimitedDevice(Device, Protocol):
    """A device whose vendor bounds how much may be locked, or how much in one call."""

    def lock_limit(self) -> LockLimit | None:
        """The limit in force for this process; None when there is none."""

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take; a larger lock is made of several."""


@runtime_checkable
class CopyDevice(Device, Protocol):
    """A device with memory of its own, for the copies of ``pinning demo`` and ``pinning bench``."""

    @property
    def description(self) -> str:
        """What a person calls it, such as ``"NVIDIA H200"``."""

    def allocate(self, size: int) -> int:
        """`size` bytes of device memory."""

    def free(self, ptr: int) -> None:
        """Give back what `allocate` returned."""

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done."""


class Plugin(Protocol):
    """A vendor. Importing its module must work without the vendor's driver."""

    @property
    def name(self) -> str:
        """The first part of its devices' names, such as ``"cuda"``."""

    def device_count(self) -> int:
        """Number of devices present. Raises `PluginUnavailableError` when the driver is missing."""

    def device(self, index: int) -> Device:
        """The device `index`, the same object each time."""
