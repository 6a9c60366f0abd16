# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable

from pinning.copies.ends import End
from pinning.copies.plan import CopyPath, Plan, Reason
from pinning.plugin import MemoryDevice, VendorQueue
from pinning.queues import Event, Queue

class Copy(Event):
    path: CopyPath
    reason: str

class NativeCopy:
    @property
    def path(self) -> CopyPath: ...
    @property
    def reason_code(self) -> Reason: ...

class RangeCopy(NativeCopy):
    def __init__(
        self, to: End, origin: End, size: int, device: MemoryDevice, stages: bool, early: bool = False
    ) -> None: ...
    def plan(self) -> Plan: ...

def count_moved(path: CopyPath, size: int) -> None: ...
def bytes_moved() -> dict[CopyPath, int]: ...
def submit_native(queue: Queue, work: NativeCopy, wait_for: Iterable[Event]) -> Copy: ...
def submit_rows(
    queue: Queue,
    calls: Callable[[VendorQueue], object],
    dst: int,
    size: int,
    wait_for: Iterable[Event],
    keep: tuple[object, ...],
    direct: bool,
) -> Copy: ...
