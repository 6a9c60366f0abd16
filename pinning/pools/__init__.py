# SPDX-License-Identifier: Apache-2.0
"""Memory that is allocated and freed in the order of queues.

- ``pool.py``: `Pool`: allocating and freeing, in order;
- ``store.py``: the memory that it has from the vendor, with limits and figures;
- ``blocks.py``: how that is cut into blocks, and who may use a free one;
- ``allocation.py``: what it gives out;
- ``door.py``: `alloc_in` and `free_in`, which `Queue.alloc` and `Queue.free` call.
"""

import sys

from pinning.pools.door import alloc_in, default_pool, free_in
from pinning.pools.pool import Pool
from pinning.queues import Queue

Queue._pools = sys.modules[__name__]

__all__ = ["Pool", "alloc_in", "default_pool", "free_in"]
