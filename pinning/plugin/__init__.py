# SPDX-License-Identifier: Apache-2.0
"""The interface that a vendor's plugin implements. Plugins import only this package and `pinning.errors`.

A distribution announces its plugin as an entry point of the group ``pinning.plugins``, which names an object with the
members of `Plugin`. The documentation has a minimal example. A device implements the protocols of what it can do:

- `LockDevice` locks host memory: enough for an object that is passed as ``device=`` to `pinning.lock`;
- `Device` is also named, and is the only one that a plugin needs; the base class `NamedDevice` takes vendor and index
  from the name; `UncertainDevice`, `LimitedDevice`, `CoarseDevice`, `LocatedDevice` and `LinkedDevice` add properties;
- `CopyDevice` has memory of its own; `MemoryDevice` has several kinds of memory, and queues.

`pinning.plugin.native` has the base class of native vendors' devices.
"""

from pinning.plugin.automatic import AutomaticLocking
from pinning.plugin.locking import (
    CoarseDevice,
    Device,
    LimitedDevice,
    LinkedDevice,
    LocatedDevice,
    LockDevice,
    LockLimit,
    NamedDevice,
    PinnedInfo,
    UncertainDevice,
)
from pinning.plugin.memory import (
    CopyDevice,
    MemoryConnection,
    MemoryDevice,
    MemoryInfo,
    MemoryKind,
    MemoryKindLike,
    WriteCombiningDevice,
)
from pinning.plugin.queues import VendorEvent, VendorQueue
from pinning.plugin.vendor import ENTRY_POINT_GROUP, DescribedPlugin, DetectingPlugin, Library, Plugin

__all__ = [
    "ENTRY_POINT_GROUP",
    "AutomaticLocking",
    "CoarseDevice",
    "CopyDevice",
    "DescribedPlugin",
    "DetectingPlugin",
    "Device",
    "Library",
    "LimitedDevice",
    "LinkedDevice",
    "LocatedDevice",
    "LockDevice",
    "LockLimit",
    "MemoryConnection",
    "MemoryDevice",
    "MemoryInfo",
    "MemoryKind",
    "MemoryKindLike",
    "NamedDevice",
    "PinnedInfo",
    "Plugin",
    "UncertainDevice",
    "VendorEvent",
    "VendorQueue",
    "WriteCombiningDevice",
]
