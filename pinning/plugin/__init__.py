# SPDX-License-Identifier: Apache-2.0
"""What a vendor's plugin provides. Plugins import this package and `pinning.errors`, nothing else of ours.

A distribution announces its plugin as an entry point of the group ``pinning.plugins``, naming an object that has the
members of `Plugin`. The documentation has the smallest example. A device is what it can do:

- `Device` locks host memory, and that is all it must do; its base class `NamedDevice` takes vendor and index from the
  name; `UncertainDevice`, `LimitedDevice`, `CoarseDevice`, `LocatedDevice` and `LinkedDevice` say more about it;
- `CopyDevice` has memory of its own; `MemoryDevice` has kinds of memory, and queues.

`pinning.plugin.native` has the base class of devices whose vendor is native.
"""

from pinning.plugin.automatic import AutomaticLocking
from pinning.plugin.locking import (
    CoarseDevice,
    Device,
    LimitedDevice,
    LinkedDevice,
    LocatedDevice,
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
