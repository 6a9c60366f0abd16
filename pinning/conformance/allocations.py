# SPDX-License-Identifier: Apache-2.0
"""Device memory for tests of queues, and a host function that queues can call."""

from __future__ import annotations

import ctypes

from pinning.conformance.holding import Buffer
from pinning.conformance.memory import has
from pinning.plugin import MemoryDevice, MemoryKind

DATA = bytes(range(256)) * 4
LIBC = ctypes.CDLL(None)
FREE = ctypes.cast(LIBC.free, ctypes.c_void_p).value or 0  # called with null, so it does nothing


class Allocations:
    """Memory that is freed at the end of a test."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device
        self._made: list[tuple[int, MemoryKind]] = []

    def __call__(self, kind: MemoryKind, data: bytes = bytes(len(DATA))) -> int:
        ptr = self._device.allocate(len(data), has(self._device, kind))
        self._made.append((ptr, kind))
        buffer = Buffer(data)
        self._device.copy(ptr, buffer.ptr, len(data))
        return ptr

    def read(self, ptr: int, size: int) -> bytes:
        """The bytes at `ptr`, on the device or on the host."""
        buffer = Buffer(bytes(size))
        self._device.copy(buffer.ptr, ptr, size)
        return buffer.bytes_

    def free(self) -> None:
        for ptr, kind in self._made:
            self._device.free(ptr, kind)
