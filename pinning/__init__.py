# SPDX-License-Identifier: Apache-2.0
"""Lock host memory for devices: once, however many parts of a program ask.

    with pinning.lock(array) as lock:
        ...  # copies between `array` and the device take the fast path; lock.device_ptr is its address there

`lock` takes NumPy arrays, mapped files, shared memory, CPU tensors and more. Locks are counted: the same buffer, or a
part of it, may be locked by many. `PinnedMap` is the map beneath, one for each device; `pagetable` the index beneath
that.
"""

from pathlib import Path

from pagetable import include_dir as _pagetable_include_dir
from pinning.devices import PluginReport, default_device, device, devices, pinned_map, plugins
from pinning.errors import (
    AlreadyPinnedError,
    InvalidRangeError,
    LockLimitError,
    NotLockedError,
    PartialOverlapError,
    PinningError,
    PluginUnavailableError,
    StillLockedError,
    VendorError,
)
from pinning.locks import Lock, find, is_locked, lock, locked, regions, unlock
from pinning.map import PinnedMap, Region
from pinning.plugin import (
    CoarseDevice,
    CopyDevice,
    Device,
    LimitedDevice,
    LockLimit,
    MemoryConnection,
    MemoryDevice,
    MemoryInfo,
    MemoryKind,
    PinnedInfo,
    Plugin,
)

__all__ = [
    "AlreadyPinnedError",
    "CoarseDevice",
    "CopyDevice",
    "Device",
    "InvalidRangeError",
    "LimitedDevice",
    "Lock",
    "LockLimit",
    "LockLimitError",
    "MemoryConnection",
    "MemoryDevice",
    "MemoryInfo",
    "MemoryKind",
    "NotLockedError",
    "PartialOverlapError",
    "PinnedInfo",
    "PinnedMap",
    "PinningError",
    "Plugin",
    "PluginReport",
    "PluginUnavailableError",
    "Region",
    "StillLockedError",
    "VendorError",
    "default_device",
    "device",
    "devices",
    "find",
    "include_dirs",
    "is_locked",
    "lock",
    "locked",
    "pinned_map",
    "plugins",
    "regions",
    "unlock",
]


def include_dirs() -> list[Path]:
    """The folders to give a C++ compiler for ``<pinning/pinned_map.hpp>``."""
    return [Path(__file__).parent / "include", _pagetable_include_dir()]
