# SPDX-License-Identifier: Apache-2.0
"""What devices have allocated for a context: the vendor's calls, and the maps that are told of HOST memory."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from weakref import WeakSet

from pinning.devices import pinned_map
from pinning.errors import InvalidRangeError, PinningError, StillInUseError
from pinning.plugin import MemoryDevice, MemoryKind, WriteCombiningDevice


class Backing:
    """Memory that devices have allocated together.

    Attributes
    ----------
    devices : tuple of MemoryDevice
        HOST memory enters the pinned maps of all of them, so that every copy knows it as locked.
    closed : bool
        Whether there will be no more.
    """

    def __init__(self, devices: tuple[MemoryDevice, ...]) -> None:
        self.devices = devices
        self.closed = False
        self._live: dict[tuple[int, int], tuple[int, MemoryKind]] = {}  # by id of the device and first address
        _backings.add(self)

    def allocate(self, device: MemoryDevice, length: int, kind: MemoryKind, write_combined: bool = False) -> int:
        """Have a device allocate; on failure nothing is allocated.

        Raises
        ------
        PinningError
            The device has no such memory, another one cannot reach it, or this is closed.
        VendorError
            The vendor refused.
        """
        if self.closed:
            raise PinningError(f"the context of {self} is closed; nothing can be allocated in it")
        if kind not in device.memory_kinds:
            has = ", ".join(sorted(each.name for each in device.memory_kinds))
            raise PinningError(f"{device.name} has no memory of kind {kind.name}; it has {has}")
        if not write_combined:
            base = device.allocate(length, kind)
        elif kind is MemoryKind.HOST and isinstance(device, WriteCombiningDevice):
            base = device.allocate_write_combined(length)
        else:
            raise PinningError(f"{device.name} has no write-combined memory of kind {kind.name}; allocate it without")
        try:
            on = self.devices if kind is MemoryKind.HOST else ()
            _register(base, length, [(each, device_address(each, base)) for each in on])
        except BaseException:
            device.free(base, kind)
            raise
        self._live[id(device), base] = length, kind
        return base

    def free(self, device: MemoryDevice, base: int) -> None:
        """Undo `allocate`; on failure nothing has changed.

        Raises
        ------
        InvalidRangeError
            It is no longer allocated.
        StillLockedError
            Someone holds a lock in this HOST memory.
        VendorError
            The vendor refused.
        """
        try:
            length, kind = self._live[id(device), base]
        except KeyError:
            raise InvalidRangeError(
                f"nothing is allocated at {base:#x} on {device.name}: someone has freed that through the vendor"
            ) from None
        # First, because afterwards the vendor can give the same address to another thread.
        registered = _unregister(base, length, self.devices if kind is MemoryKind.HOST else ())
        del self._live[id(device), base]
        try:
            device.free(base, kind)
        except BaseException:
            self._live[id(device), base] = length, kind
            _register(base, length, registered)
            raise

    def close(self) -> None:
        """Allocate nothing any more.

        Raises
        ------
        StillInUseError
            Something is still allocated.
        """
        if self._live:
            ((_, base), (length, kind)), *others = self._live.items()
            more = f" and {len(others)} more" if others else ""
            raise StillInUseError(
                f"the context of {self} still owns {length} bytes of {kind.name} at {base:#x}{more}: "
                "free them, and close its pools, first"
            )
        self.closed = True

    def forget(self) -> None:
        """In a child process: all of this is its parent's."""
        self._live.clear()

    def __str__(self) -> str:
        return ", ".join(each.name for each in self.devices)


def device_address(device: MemoryDevice, ptr: int) -> int:
    """The address that HOST memory at `ptr` has for a device."""
    info = device.is_pinned_ptr(ptr)
    if info is None:
        raise PinningError(f"{device.name} cannot reach the HOST memory at {ptr:#x}: use a context without it")
    return info.device_ptr + (ptr - info.base)


def _register(base: int, length: int, places: Iterable[tuple[MemoryDevice, int]]) -> None:
    with ExitStack() as undo:
        for device, address in places:
            pinned_map(device).register(base, length, address)
            undo.callback(pinned_map(device).unregister, base)
        undo.pop_all()


def _unregister(base: int, length: int, devices: Iterable[MemoryDevice]) -> list[tuple[MemoryDevice, int]]:
    """Returns where it was registered, and its address there."""
    places: list[tuple[MemoryDevice, int]] = []
    with ExitStack() as undo:
        for device in devices:
            region = pinned_map(device).find(base)
            if region is None:  # the map was closed
                continue
            pinned_map(device).unregister(base)
            undo.callback(pinned_map(device).register, base, length, region.device_ptr)
            places.append((device, region.device_ptr))
        undo.pop_all()
    return places


_backings: WeakSet[Backing] = WeakSet()


def _after_fork_in_child() -> None:
    for backing in list(_backings):
        backing.forget()


os.register_at_fork(after_in_child=_after_fork_in_child)
