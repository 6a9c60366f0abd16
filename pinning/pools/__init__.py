# SPDX-License-Identifier: Apache-2.0
"""Memory that is allocated and freed in the order of queues.

- ``pool``: `Pool`; `alloc_in`, which `Queue.alloc` calls;
- ``store``: the memory that a pool has, and how it is given out and comes back; `free_in`, which `Queue.free` calls.
  How memory is cut into blocks, and who may use a free one, is in ``<pinning/blocks.hpp>``.
"""

import sys

from pinning.pools.pool import Pool, alloc_in, default_pool
from pinning.pools.store import free_in
from pinning.queues import Queue

Queue._pools = sys.modules[__name__]

__all__ = ["Pool", "alloc_in", "default_pool", "free_in"]
