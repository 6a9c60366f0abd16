# SPDX-License-Identifier: Apache-2.0
"""Much memory that is locked once: hundreds of GiB, or what several processes share.

- ``arena``: `Arena`, and ``ready``, which brings its pages in and locks them in the background;
- ``space``: what of it is whose, and `ArenaAllocation`;
- ``mapping`` and ``memory``: where the bytes come from, and what keeps them;
- ``names``: segments that processes share, and what becomes of them when processes die.
"""

from pinning.arena.arena import Arena
from pinning.arena.names import abandoned, remove_abandoned
from pinning.arena.space import ArenaAllocation

__all__ = ["Arena", "ArenaAllocation", "abandoned", "remove_abandoned"]
