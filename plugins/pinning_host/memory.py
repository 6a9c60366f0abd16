# SPDX-License-Identifier: Apache-2.0
"""Allocation by kind on the host, where all memory is ordinary memory; that of kind HOST is page-locked."""

from __future__ import annotations

from bisect import bisect_right, insort
from contextlib import suppress
from typing import NamedTuple, Protocol

from pinning.errors import InvalidRangeError, PinningError
from pinning.plugin import MemoryInfo, MemoryKind
from pinning_host import kernel


class Locks(Protocol):
    """What page-locks memory: the device."""

    @property
    def name(self) -> str: ...
    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int: ...
    def data_unlock(self, ptr: int) -> None: ...


class Allocated(NamedTuple):
    """One allocation."""

    size: int
    kind: MemoryKind


class Memory:
    """What a device has allocated."""

    def __init__(self, device: Locks) -> None:
        self._device = device
        self._allocated: dict[int, Allocated] = {}
        self._starts: list[int] = []  # its keys, ascending

    def allocate(self, size: int, kind: MemoryKind) -> int:
        """Exactly `size` bytes of zeroes, aligned to a page.

        Raises
        ------
        VendorError
            The kernel refused; nothing is allocated.
        """
        try:
            ptr = kernel.map_memory(size)
        except OSError as error:
            raise kernel.vendor_error("mmap", error, f"asked for {size} bytes") from None
        if kind is MemoryKind.HOST:
            try:
                self._device.data_lock(ptr, size, False)
            except BaseException:
                kernel.unmap_memory(ptr, size)
                raise
        self._allocated[ptr] = Allocated(size, kind)
        insort(self._starts, ptr)
        return ptr

    def free(self, ptr: int, kind: MemoryKind) -> None:
        """Give back what `allocate` returned for this kind.

        Raises
        ------
        InvalidRangeError
            There is no such allocation.
        VendorError
            The kernel refused; it is still allocated.
        """
        found = self._allocated.get(ptr)
        if found is None or found.kind is not kind or self._allocated.pop(ptr, None) is None:
            raise InvalidRangeError(f"{ptr:#x} is not {kind.name} memory that {self._device.name} has allocated")
        self._starts.remove(ptr)
        try:
            self._unmap(ptr, found)
        except BaseException:
            self._allocated[ptr] = found
            insort(self._starts, ptr)
            raise

    def _unmap(self, ptr: int, found: Allocated) -> None:
        if found.kind is MemoryKind.HOST:
            self._device.data_unlock(ptr)
        try:
            kernel.unmap_memory(ptr, found.size)
        except OSError as error:
            if found.kind is MemoryKind.HOST:
                with suppress(PinningError):
                    self._device.data_lock(ptr, found.size, False)
            raise kernel.vendor_error("munmap", error, "the memory is still allocated; try again") from None

    def info(self, ptr: int) -> MemoryInfo | None:
        """The allocation that holds the byte at `ptr`."""
        index = bisect_right(self._starts, ptr) - 1
        base = self._starts[index] if index >= 0 else ptr
        found = self._allocated.get(base)
        if found is None or ptr >= base + found.size:
            return None
        return MemoryInfo(found.kind, base, found.size, None if found.kind is MemoryKind.HOST else 0)
