# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable

from pinning.copies.ends import End
from pinning.copies.plan import CopyPath, Plan
from pinning.plugin import VendorQueue
from pinning.queues import Event, Queue

class Copy(Event):
    path: CopyPath
    reason: str

def count_moved(path: CopyPath, size: int) -> None: ...
def bytes_moved() -> dict[CopyPath, int]: ...
def submit_plan(
    queue: Queue,
    plan: Plan,
    to: End,
    origin: End,
    size: int,
    wait_for: Iterable[Event],
    held: list[object],
    early: bool,
) -> Copy: ...
def submit_planned(
    queue: Queue,
    calls: Callable[[VendorQueue], object],
    dst: int,
    size: int,
    wait_for: Iterable[Event],
    keep: tuple[object, ...],
    direct: bool,
) -> Copy: ...
