# SPDX-License-Identifier: Apache-2.0
"""The locks that a test makes by the device itself, so that they can be undone whatever happens."""

from __future__ import annotations

import threading
from contextlib import suppress

from pinning.plugin import Device


class Held:
    """The device's own calls, counted by base."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self._count: dict[int, int] = {}
        self._mutex = threading.Lock()

    def lock(self, ptr: int, size: int, read_only: bool | None = None, *, coherent: bool = True) -> int:
        """Call `Device.data_lock`; returns the device pointer."""
        how = {} if coherent else {"coherent": False}
        device_ptr = self.device.data_lock(ptr, size, read_only, **how)
        with self._mutex:
            self._count[ptr] = self._count.get(ptr, 0) + 1
        return device_ptr

    def unlock(self, ptr: int) -> None:
        """Call `Device.data_unlock`."""
        self.device.data_unlock(ptr)
        with self._mutex:
            self._count[ptr] -= 1

    def release(self) -> int:
        """Unlock what is left, ignoring failures; returns the number of locks left."""
        left = [ptr for ptr, count in self._count.items() for _ in range(count)]
        for ptr in left:
            with suppress(Exception):
                self.device.data_unlock(ptr)
        self._count.clear()
        return len(left)
