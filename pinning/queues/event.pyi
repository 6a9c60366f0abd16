# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable
from typing import Any, Self

from pinning.plugin import VendorEvent
from pinning.queues.order import History, Point

class Event:
    """An operation in a queue, to be waited for.

    The vendor's event behind it is made when somebody needs it, and always so that it stands right after the
    operation: when it is waited for, or when the next operation is submitted while this object is still there. An
    `Event` that was dropped by then cost nothing.

    It fails when its operation failed, or any that the wait list of its operation names. Operations before it in an
    in-order queue that failed do not make it fail.

    An `Event` that is made by calling the class is over already; see `over`.
    """

    def __init__(self) -> None: ...
    @classmethod
    def over(cls, queue: Any = None, error: BaseException | None = None) -> Self:
        """An event that is over from the start, perhaps because of an error. No vendor event is behind it."""

    @property
    def queue(self) -> Any:
        """The `Queue` it was submitted to, if any."""

    @property
    def error(self) -> BaseException | None:
        """Why it failed, as far as is known by now. Asks nobody."""

    @property
    def point(self) -> Point | None:
        """Where it stands; None for one that was over from the start."""

    @property
    def history(self) -> History:
        """All that it comes after, itself included."""

    def comes_after(self, point: Point) -> bool:
        """Whether this operation starts only when the one at `point` is over, or is it; also if that is over by now."""

    def done(self) -> bool:
        """Whether the operation is over.

        Raises
        ------
        Exception
            What went wrong, in this operation or in one of its wait list.
        PinningError
            The process has forked since.
        """

    def wait(self) -> None:
        """Block this thread until the operation is over; other threads run. Raises as `done`."""

    def elapsed(self, since: Event) -> float:
        """Seconds between the end of the operation of `since` and the end of this one. Waits for both.

        The times are those of the vendor's events, which stand right after their operations in the queue, but are
        taken when the vendor gets there: an event that nobody had asked for until long after its operation was over
        says so late. `Queue.record` takes the time at its place.

        Raises
        ------
        PinningError
            One of them was over from the start, or they are of different vendors.
        """

    # What the queue and the copy engine use.

    def fail(self, error: BaseException) -> None:
        """Have it fail with this error once it is over. The first error stays."""

    @property
    def vendor_event(self) -> VendorEvent | None:
        """The vendor's event behind it, if there is one by now."""

def joined(events: Iterable[Event]) -> History:
    """All that something comes after which waits for these."""
