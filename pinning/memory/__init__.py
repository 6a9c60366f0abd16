# SPDX-License-Identifier: Apache-2.0
"""Memory of every kind, and its owners.

- ``context``: `Context`, the devices that own an allocation together, and `alloc` and `free`;
- ``backing``: what these devices have allocated from their vendors;
- ``allocation``: `Allocation`, one range of memory, and which one holds an address;
- ``info``: `memory_info`, of any address;
- ``connection``: `memory_connection`, whose memory a device can use;
- ``pool``: `Pool`, memory allocated and freed in the order of queues; `alloc_in`, which `Queue.alloc` calls;
- ``pool_store``: the allocations of a pool, and `free_in`, which `Queue.free` calls. The pool itself is in
  ``<pinning/pool.hpp>``; how its memory is cut into blocks, and when one may be reused, in ``<pinning/blocks.hpp>``.

Only the last two use pools; the others know of queues only that work in them may use memory.
"""

import sys

from pinning.memory.allocation import Allocation
from pinning.memory.connection import memory_connection
from pinning.memory.context import Context, alloc, default_context, free
from pinning.memory.info import AllocationInfo, memory_info
from pinning.memory.pool import Pool, alloc_in, default_pool
from pinning.memory.pool_store import free_in
from pinning.queues import Queue

Queue._pools = sys.modules[__name__]

__all__ = [
    "Allocation",
    "AllocationInfo",
    "Context",
    "Pool",
    "alloc",
    "alloc_in",
    "default_context",
    "default_pool",
    "free",
    "free_in",
    "memory_connection",
    "memory_info",
]
