# SPDX-License-Identifier: Apache-2.0
"""A plugin in 50 lines, for a device that sees the host's memory at other addresses.

    pip install ./examples/plugin hypothesis pytest
    pytest --pyargs pinning.conformance --device fake:0

Its "driver" is madvise(MADV_WILLNEED), which locks nothing, but fails if no memory is mapped.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os

from pinning.errors import AlreadyPinnedError, PluginUnavailableError, VendorError
from pinning.plugin import AutomaticLocking, PinnedInfo

OFFSET = 2**52  # between a host address and the device's

_driver = ctypes.CDLL(None, use_errno=True)  # ctypes releases the GIL during a call, as a plugin must
_driver.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)


class FakeDevice(AutomaticLocking):
    """Three methods and a name. Calls come from any thread, several at a time."""

    name = "fake:0"

    def __init__(self) -> None:
        self._held: dict[int, int] = {}  # base: size; a real driver keeps this itself
        os.register_at_fork(after_in_child=self._held.clear)  # locks stay with the parent

    def data_lock(self, ptr: int, size: int, read_only: bool | None) -> int:
        """Call the vendor's lock. If it fails, nothing is locked."""
        if any(ptr < base + length and base < ptr + size for base, length in list(self._held.items())):
            raise AlreadyPinnedError("fake_lock", 7, "FAKE_ALREADY_LOCKED")
        start = ptr & -mmap.PAGESIZE
        if ptr + size > 2**64 or _driver.madvise(start, ptr + size - start, mmap.MADV_WILLNEED):
            raise VendorError("madvise", ctypes.get_errno(), errno.errorcode.get(ctypes.get_errno(), "unknown"))
        self._held[ptr] = size
        return ptr + OFFSET

    def data_unlock(self, ptr: int) -> None:
        """Call the vendor's unlock. If it fails, the range is still locked."""
        if self._held.pop(ptr, None) is None:
            raise VendorError("fake_unlock", 8, "FAKE_NOT_LOCKED")

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned range around `ptr`, locked by any owner."""
        for base, size in list(self._held.items()):
            if base <= ptr < base + size:
                return PinnedInfo(base, size, base + OFFSET)
        return None


class FakePlugin:
    """Names the vendor and its devices; the vendor is not called before `device_count`."""

    name = "fake"

    def __init__(self) -> None:
        self._device = FakeDevice()

    def device_count(self) -> int:
        return 1

    def device(self, index: int) -> FakeDevice:
        if index != 0:
            raise PluginUnavailableError(f"there is no device fake:{index}; the only one is fake:0")
        return self._device


plugin = FakePlugin()
