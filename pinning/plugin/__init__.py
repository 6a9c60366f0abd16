# SPDX-License-Identifier: Apache-2.0
"""The interface that a vendor's plugin implements. Plugins import only this package and `pinning.errors`.

A distribution announces its plugin as an entry point of the group ``pinning.plugins``, which names an object with the
members of `Plugin`. The documentation has a minimal example. A device implements the protocols of what it can do:

- `LockDevice` locks host memory: enough for an object that is passed as ``device=`` to `pinning.lock`;
- `Device` is also named, and is the only one that a plugin needs; the base class `NamedDevice` takes vendor and index
  from the name;
- `CopyDevice` has memory of its own; `MemoryDevice` has several kinds of memory, and queues.

What a plugin or a device may have besides is listed where the protocol is: in `Plugin`, `Device` and `MemoryDevice`.

`pinning.plugin.native` has the base class of native vendors' devices.
"""

from pinning.plugin.automatic import AutomaticLocking
from pinning.plugin.locking import (
    Device,
    LockDevice,
    LockLimit,
    NamedDevice,
    PinnedInfo,
)
from pinning.plugin.memory import (
    CopyDevice,
    MemoryConnection,
    MemoryDevice,
    MemoryInfo,
    MemoryKind,
    MemoryKindLike,
)
from pinning.plugin.queues import VendorEvent, VendorQueue
from pinning.plugin.vendor import ENTRY_POINT_GROUP, Library, Plugin

__all__ = [
    "ENTRY_POINT_GROUP",
    "AutomaticLocking",
    "CopyDevice",
    "Device",
    "Library",
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
    "VendorEvent",
    "VendorQueue",
]
