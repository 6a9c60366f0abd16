# SPDX-License-Identifier: Apache-2.0
"""Memory of every kind, and who owns it.

- ``context``: `Context`, the devices that own an allocation together, and `alloc` and `free`;
- ``backing``: what these devices have allocated from their vendors;
- ``allocation``: `Allocation`, one piece of memory, and which one holds an address;
- ``info``: `memory_info`, of any address;
- ``connection``: `memory_connection`, whose memory a device can use.

Nothing here knows of pools, and of queues only that work in them may use memory.
"""

from pinning.memory.allocation import Allocation
from pinning.memory.connection import memory_connection
from pinning.memory.context import Context, alloc, default_context, free
from pinning.memory.info import AllocationInfo, memory_info

__all__ = [
    "Allocation",
    "AllocationInfo",
    "Context",
    "alloc",
    "default_context",
    "free",
    "memory_connection",
    "memory_info",
]
