# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable

from pinning.copies.plan import Path
from pinning.plugin import VendorQueue
from pinning.queues import Event, Queue

class Copy(Event):
    path: Path
    reason: str

def count_moved(path: Path, size: int) -> None: ...
def bytes_moved() -> dict[Path, int]: ...
def submit_planned(
    queue: Queue,
    calls: Callable[[VendorQueue], object],
    dst: int,
    size: int,
    wait_for: Iterable[Event],
    keep: tuple[object, ...],
) -> Copy: ...
