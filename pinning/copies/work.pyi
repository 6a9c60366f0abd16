# SPDX-License-Identifier: Apache-2.0
"""What copies put into queues."""

from collections.abc import Callable, Iterable

from pinning.copies.plan import Path
from pinning.plugin import VendorQueue
from pinning.queues import Event, Queue

class Copy(Event):
    """A copy under way: an `Event` that also says how the bytes travel.

    Attributes
    ----------
    path : Path
        ``"direct"``, ``"staged"``, ``"lock"`` or ``"plain"``.
    reason : str
        Why.
    """

    path: Path
    reason: str

def count_moved(path: Path, size: int) -> None:
    """Note that so many bytes have been submitted on a path; `copy_async` does so itself where it is one call."""

def bytes_moved() -> dict[Path, int]:
    """Bytes that copies of this process have been submitted for, by path."""

def submit_planned(
    queue: Queue,
    calls: Callable[[VendorQueue], object],
    dst: int,
    size: int,
    wait_for: Iterable[Event],
    keep: tuple[object, ...],
) -> Copy:
    """As `Queue.submit`, of calls that write nothing but so many bytes at `dst`."""
