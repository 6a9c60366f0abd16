# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, overload

from pinning.plugin import MemoryDevice, VendorQueue
from pinning.queues.event import Event
from pinning.queues.order import History

_E = TypeVar("_E", bound=Event)
_K = TypeVar("_K")
_V = TypeVar("_V")

class Submitter:
    """What a `Queue` is made of: lanes of the vendor, and one way to submit.

    Each lane is a vendor's in-order queue. A queue in order has one; one out of order has a few, made as operations
    come that find none idle.
    """

    def __init__(self, device: MemoryDevice, ordered: bool, vendor: VendorQueue | None = None) -> None: ...
    @property
    def device(self) -> Any:
        """The `MemoryDevice` it is of."""

    @property
    def order(self) -> str:
        """``"in_order"`` or ``"out_of_order"``."""

    @property
    def moves_parts(self) -> bool:
        """Whether the vendor's queue has a kernel that copies many parts at once."""

    @property
    def waits_for_values(self) -> bool:
        """Whether the vendor's queues have `wait_value` and `write_value`, without which nothing can be staged."""

    @property
    def closed(self) -> bool: ...
    @property
    def usable(self) -> bool:
        """Neither closed nor of a parent process."""

    @overload
    def submit(
        self,
        work: Callable[[VendorQueue], object] | None,
        wait_for: Iterable[Event] = (),
        keep: Iterable[object] = (),
    ) -> Event: ...
    @overload
    def submit(
        self,
        work: Callable[[VendorQueue], object] | None,
        wait_for: Iterable[Event],
        keep: Iterable[object],
        kind: Callable[[], _E],
    ) -> _E:
        """Have `work` make its calls of the vendor's queue, in its turn.

        Parameters
        ----------
        work : callable or None
            Is called at once with the `VendorQueue` to submit to. None: only a point in the queue, which is reached
            when the wait list is and, in order, all before it.
        wait_for : iterable of Event
            What must be over before. Any queue's, any vendor's.
        keep : iterable
            Objects that stay alive until the operation is over. They are let go of within a fraction of a second.
        kind : callable
            Makes the event: a subclass of `Event`, or anything that returns a new one.

        Raises
        ------
        Exception
            What `work` raised. `keep` is kept all the same: some of it may have been submitted.
        VendorError
            The vendor refused to wait or to record; nothing was submitted.
        PinningError
            The queue is closed, or the process has forked since.
        """

    def wait_for(self, *events: Event) -> None:
        """Have all later work wait for these. If one fails, later work does not fail with it."""

    def record(self) -> Event:
        """An event after all work so far, whose vendor event is made now: it tells exact times."""

    def history(self, wait_for: Iterable[Event] = ()) -> History:
        """All that an operation with this wait list would come after, if it were submitted now or later."""

    def poll(self) -> bool:
        """Ask the vendor how far it has come, make that known, and let go of what is no longer needed.

        Returns whether all that was submitted is over. Costs no event, and raises nothing of what the vendor says.
        """

    def done(self) -> bool:
        """Whether all that was submitted is over.

        Raises
        ------
        VendorError
            Work failed, and no event was there to tell.
        """

    def synchronize(self) -> None:
        """Block this thread until all that was submitted by now is over; other threads run. Raises as `done`."""

    def share(self) -> int:
        """The vendor's handle of the first lane. From now on its events are made at once, for others submit there."""

    def close(self) -> None:
        """Wait until all work is over, and give the vendor's queue back. Again: nothing. Events stay valid.

        Raises
        ------
        VendorError
            Work failed, and no event was there to tell. Or the vendor refused to take the queue back; then it is
            still open, unless the vendor refuses everything, as that of a lost device does.
        """

def replace(where: dict[_K, _V], key: _K, old: _V | None, new: _V) -> bool:
    """Set an entry if it is still `old`, None for none, in one step; whether it was."""
