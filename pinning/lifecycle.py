# SPDX-License-Identifier: Apache-2.0
"""What becomes of locks when the process forks or exits.

fork: page locks belong to the process that made them. In the child every map is empty, as it was when it was made;
handles of the parent's locks do nothing there; the parent keeps all of its own.

exit: all maps are closed by `atexit`, which unlocks what is left. A lock that another thread is still waiting for then
is left to the operating system.
"""

from __future__ import annotations

import atexit
import os
from contextlib import suppress
from typing import Protocol
from weakref import WeakSet


class Map(Protocol):
    def close(self, *, wait: bool = True) -> None: ...
    def _after_fork_in_child(self) -> None: ...


_maps: WeakSet[Map] = WeakSet()


def watch(pinned_map: Map) -> None:
    """Have `pinned_map` emptied in a child process and closed at exit."""
    _maps.add(pinned_map)


@atexit.register
def _close_all() -> None:
    for pinned_map in list(_maps):
        with suppress(Exception):  # the others still want closing, and nobody is left to hear
            pinned_map.close(wait=False)


def _after_fork_in_child() -> None:
    for pinned_map in list(_maps):
        pinned_map._after_fork_in_child()


os.register_at_fork(after_in_child=_after_fork_in_child)
