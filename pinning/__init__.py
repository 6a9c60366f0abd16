# SPDX-License-Identifier: Apache-2.0
"""Page-locked host memory for devices: any number of callers share one registration.

    with pinning.lock(array) as lock:
        ...  # copies between `array` and the device take the fast path; lock.device_ptr is its device address

`lock` accepts NumPy arrays, mapped files, shared memory, CPU tensors and more. Locks are counted: the same buffer, or a
part of it, may be locked any number of times. Each device has a `PinnedMap`, which holds its locked regions in a
`pagetable`.
"""

from pinning.runtime import main_interpreter as _main_interpreter  # noqa: F401

# isort: split
from importlib import import_module
from typing import TYPE_CHECKING

import pagetable as _pagetable  # noqa: F401  # says so if this is a source tree
from pinning.budget.limits import Budget, budget, give_back_idle
from pinning.copies import (
    Copy,
    copy,
    copy_2d,
    copy_2d_async,
    copy_async,
    copy_batch,
    copy_batch_async,
    copy_blocks,
    copy_blocks_async,
    explain,
    explain_batch,
    fill,
    fill_async,
)
from pinning.errors import (
    AlreadyPinnedError,
    ArgumentError,
    FileError,
    FileFormatError,
    GraphCaptureError,
    InvalidRangeError,
    LayoutError,
    LockLimitError,
    NotLockedError,
    OutOfMemoryError,
    PartialOverlapError,
    PinningError,
    PluginUnavailableError,
    PoolLimitError,
    RegistrarError,
    StillInUseError,
    StillLockedError,
    VendorError,
)
from pinning.locking import mapped as _mapped  # noqa: F401  gives devices lock_mapped
from pinning.locking.devices import default_device, device, devices, pinned_map, plugins, regions
from pinning.locking.lock import Lock, find, is_locked, lock, locked, unlock
from pinning.locking.lock_async import PendingLock, lock_async
from pinning.map.pinned_map import PinnedMap, Region
from pinning.memory import Allocation, Context, Pool, alloc, free, memory_connection, memory_info
from pinning.plugin import MemoryConnection, MemoryKind, PinnedInfo
from pinning.queues import Event, Queue
from pinning.runtime.buffers import Buffer

if TYPE_CHECKING:
    from pinning import arrays as arrays
    from pinning import build as build
    from pinning import cuda_core as cuda_core
    from pinning import cupy as cupy
    from pinning import dask as dask
    from pinning import nixl as nixl
    from pinning import numba as numba
    from pinning import ray as ray
    from pinning import sleeping as sleeping
    from pinning import torch as torch
    from pinning.arena import Arena
    from pinning.files import copy_file, copy_file_async, load_file, save_file, save_file_async

__all__ = [
    "Allocation",
    "AlreadyPinnedError",
    "Arena",
    "ArgumentError",
    "Budget",
    "Buffer",
    "Context",
    "Copy",
    "Event",
    "FileError",
    "FileFormatError",
    "GraphCaptureError",
    "InvalidRangeError",
    "LayoutError",
    "Lock",
    "LockLimitError",
    "MemoryConnection",
    "MemoryKind",
    "NotLockedError",
    "OutOfMemoryError",
    "PartialOverlapError",
    "PendingLock",
    "PinnedInfo",
    "PinnedMap",
    "PinningError",
    "PluginUnavailableError",
    "Pool",
    "PoolLimitError",
    "Queue",
    "Region",
    "RegistrarError",
    "StillInUseError",
    "StillLockedError",
    "VendorError",
    "alloc",
    "budget",
    "copy",
    "copy_2d",
    "copy_2d_async",
    "copy_async",
    "copy_batch",
    "copy_batch_async",
    "copy_blocks",
    "copy_blocks_async",
    "copy_file",
    "copy_file_async",
    "default_device",
    "device",
    "devices",
    "explain",
    "explain_batch",
    "fill",
    "fill_async",
    "find",
    "free",
    "give_back_idle",
    "is_locked",
    "load_file",
    "lock",
    "lock_async",
    "locked",
    "memory_connection",
    "memory_info",
    "pinned_map",
    "plugins",
    "regions",
    "save_file",
    "save_file_async",
    "unlock",
]


# Imported on first access: some import another library, and many programs need none of them.
_OTHERS = ("cuda_core", "cupy", "dask", "nixl", "numba", "ray", "torch")
_ON_DEMAND = {"arena", "arrays", "build", "files", "sleeping", *_OTHERS}
_PARTS = ("copies", "errors", "memory", "plugin", "queues")  # of the public interface
_MODULE_OF = {
    "Arena": "pinning.arena",
    **dict.fromkeys(("copy_file", "copy_file_async", "load_file", "save_file", "save_file_async"), "pinning.files"),
}


__version__: str


if not TYPE_CHECKING:  # otherwise a type checker would accept any name as one of this module

    def __getattr__(name: str) -> object:
        if name in _ON_DEMAND:
            try:
                return import_module(f"pinning.{name}")
            except ImportError as error:  # a library is missing: `hasattr` and `help` go on without it
                raise AttributeError(str(error)) from error
        if name in _MODULE_OF:
            value = globals()[name] = getattr(import_module(_MODULE_OF[name]), name)
            return value
        if name == "__version__":
            from importlib.metadata import version

            return version("pinning")
        raise AttributeError(f"module 'pinning' has no attribute {name!r}")


def __dir__() -> list[str]:
    own = ("__all__", "__doc__", "__file__", "__name__", "__path__", "__version__")
    return sorted({*__all__, *_ON_DEMAND, *_PARTS, *own})
