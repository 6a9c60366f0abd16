# SPDX-License-Identifier: Apache-2.0
"""Memory of every kind, and who owns it.

- ``context.py``: `Context`, the devices that own an allocation together, and `alloc` and `free`;
- ``backing.py``: what these devices have allocated for it;
- ``allocation.py``: `Allocation`, one piece of memory; ``whole.py``: those that are a vendor's own;
- ``owned.py``: which allocation holds an address;
- ``info.py``: `memory_info`, of any address;
- ``connection.py``: `memory_connection`, whose memory a device can use.

Nothing here knows of queues or pools.
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
