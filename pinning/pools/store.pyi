# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

from pinning.memory import Allocation, Context
from pinning.plugin import MemoryKind
from pinning.queues import Event, Queue

class PoolAllocation(Allocation):
    """A block of a pool. Its `free` is one in the queue where it was allocated.

    Attributes
    ----------
    queue : Queue
        Where it was allocated.
    """

    @property
    def queue(self) -> Queue: ...

class Store:
    """What a pool has, and the giving out of it: all of `Pool` but its end."""

    def __init__(
        self,
        context: Context,
        kind: MemoryKind,
        release_threshold: int | None,
        maximum_size: int | None,
        zero_initialize: bool,
        read_only: bool,
    ) -> None: ...
    @property
    def context(self) -> Context: ...
    @property
    def kind(self) -> MemoryKind: ...
    @property
    def release_threshold(self) -> int | None: ...
    @property
    def maximum_size(self) -> int | None: ...
    @property
    def zero_initialize(self) -> bool: ...
    @property
    def read_only(self) -> bool: ...
    @property
    def closed(self) -> bool: ...
    @property
    def reserved(self) -> int: ...
    @property
    def used(self) -> int: ...
    @property
    def reserved_high(self) -> int: ...
    @property
    def used_high(self) -> int: ...
    def reset_high(self) -> None:
        """Have the high watermarks begin again, with what is reserved and used now."""

    def alloc(self, queue: Queue, nbytes: int, wait_for: Iterable[Event] = ()) -> tuple[Allocation, Event]:
        """Allocate in a queue; see `Queue.alloc`."""

    def trim_to(self, nbytes: int) -> None:
        """Give memory back until at most so many bytes are reserved, or what is left is in use or not over yet.

        Raises
        ------
        InvalidRangeError
            `nbytes` is negative.
        StillLockedError
            Someone holds a lock in memory that is free; the pool still has it.
        VendorError
            The vendor refused; the pool still has that memory.
        """

    def close(self) -> None:
        """Give all memory back, once the frees are over; nothing can be allocated here afterwards.

        Raises
        ------
        StillInUseError
            Something is still allocated.
        StillLockedError
            Someone holds a lock in its memory.
        VendorError
            The vendor refused.

        After an error the pool is open.
        """

def free_in(queue: Queue, allocation: object, wait_for: Iterable[Event]) -> Event:
    """Free in the order of a queue; see `Queue.free`.

    Raises
    ------
    InvalidRangeError
        It is freed already, or was not allocated in a queue.
    StillLockedError
        Someone holds a lock in it.
    StillInUseError
        A buffer of its bytes is out.
    """
