# SPDX-License-Identifier: Apache-2.0
"""Large memory that is locked once: hundreds of GiB, or memory that several processes share.

- ``arena``: `Arena`, and ``ready``, which populates its pages and locks them in the background;
- ``space``: which bytes are allocated, and `ArenaAllocation`;
- ``mapping`` and ``memory``: where the memory comes from, and its owner;
- ``names``: segments that processes share, and their removal after processes have died.
"""

from pinning.arena.arena import Arena
from pinning.arena.names import abandoned, remove_abandoned
from pinning.arena.space import ArenaAllocation

__all__ = ["Arena", "ArenaAllocation", "abandoned", "remove_abandoned"]
