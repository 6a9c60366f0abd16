# SPDX-License-Identifier: Apache-2.0
"""Events."""

cimport cython
from cython.operator cimport dereference
from pinning.map.adapters cimport event_object
from pinning.queues.order cimport CDependencies

from time import monotonic
from typing import TYPE_CHECKING

from pinning.errors import PinningError
from pinning.runtime.arguments import describe
from pinning.runtime.handles import refuse_copy

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from typing import Any

    from pinning.plugin import VendorEvent


@cython.trashcan(True)  # events hold those that they wait for, and such a chain can be long
cdef class Event:  # type: Coroutine[Any, Any, None]
    """Event()\n--\n\nAn operation in a queue, which can be waited for.

    The vendor's event behind it is recorded directly after the operation, and only when it is needed: when something
    waits for it, or when the next operation is submitted while this object still exists. An `Event` that is dropped
    before makes no vendor call.

    It fails if its operation, or any event in the operation's wait list, failed. Failed operations before it in an
    in-order queue do not make it fail.

    An `Event` made by calling the class is already complete. The event of an operation recorded into a
    graph never completes: `done` and `wait` raise `GraphCaptureError`.

    ``await event`` in asyncio is `wait` without blocking the loop, and ``asyncio.create_task(event)`` makes a task of it.
    Cancelling the task does not affect the operation.

    Attributes
    ----------
    queue : Queue or None
        The queue to which it was submitted, if any.
    error : BaseException or None
        Why it failed, if that is already known. Reading it does not poll the vendor.
    """

    def __cinit__(self):
        self.sources = ()
        self.resolved = True  # until it is submitted

    def __dealloc__(self):
        if self.native.is_last_user():
            with nogil:
                self.native = CEvent()

    def __init__(self) -> None:
        pass

    @classmethod
    def _over(cls, queue: Any = None, error: BaseException | None = None) -> Self:
        """Make an event that is complete from the start, or has failed with `error`. It has no vendor event."""
        cdef Event event = cls()
        event.queue = queue
        if error is not None:
            if not isinstance(error, BaseException):
                raise TypeError(f"error is {describe(error)}; it must be an exception, such as a RuntimeError")
            event.fail(error)
        return event

    @property
    def _position(self) -> int:
        """Its position among the operations of its lane, from 1 on; 0 if it was complete from the start."""
        return 0 if self.native.timeline().get() is NULL else self.native.position()

    @property
    def vendor_event(self) -> VendorEvent | None:
        """The vendor's event behind it; None if there is none yet."""
        return event_object(self.native.if_recorded())

    cdef bint known_over(self):
        return self.native.is_over()

    def _comes_after(self, Event other not None) -> bool:
        """Whether `other` is this operation, or one that it starts after, or one that is already complete."""
        cdef CDependencies history
        self.native.add_history(history)
        return other._position == 0 or history.covers(dereference(other.native.timeline()), other.native.position())

    cdef fail(self, error):
        """Make it fail with `error` once it is over. The first error stays."""
        if self.error is None:
            self.error = error
            self.traceback = error.__traceback__

    def done(self) -> bool:
        """Whether the operation is complete.

        Raises
        ------
        Exception
            What went wrong in this operation or in one of its wait list.
        PinningError
            The process has forked since the event was submitted.
        """
        if not self.resolved and not self._ask(block=False):
            return False
        self.raise_error()
        return True

    def wait(self) -> None:
        """Block this thread, without the GIL, until the operation is complete. Raises as `done`."""
        if not self.resolved:
            self._ask(block=True)
        self.raise_error()

    def elapsed(self, since: Event) -> float:
        """Seconds from the end of the operation of `since` to the end of this one. Waits for both.

        The times are those of the vendor's events. A vendor's event that is made only when it is first needed, long
        after the operation was complete, has that later time. `Queue.record` makes it at once.

        Raises
        ------
        PinningError
            One of them was complete from the start, or they are of different vendors.
        """
        if not isinstance(since, Event):
            raise TypeError(f"since is {describe(since)}; it must be the event from which time is measured")
        cdef Event event, first = since
        for event in (first, self):
            try:
                event.recorded()
            except Exception:  # waiting for it raises the reason
                pass
        first.wait()
        self.wait()
        first.recorded()
        self.recorded()
        if first.queue.device.vendor != self.queue.device.vendor:
            raise PinningError(f"{since!r} and {self!r} are of two vendors, whose times cannot be compared")
        cdef CEvent end = self.native, begin = first.native
        cdef double seconds
        with nogil:
            seconds = end.seconds_since(begin, &handle_signals)
        return seconds

    cdef shared_ptr[CVendorEvent] recorded(self) except *:
        """The vendor's event, made now if there is none yet."""
        cdef shared_ptr[CVendorEvent] vendor
        if self.lane is None:
            raise PinningError(f"{self!r} was complete when it was made, so it has no time; use queue.record()")
        self.lane.check_process()
        cdef CEvent native = self.native
        with nogil:
            vendor = native.recorded()
        return vendor

    cdef bint _ask(self, bint block) except *:
        """Whether the operation is over; if so, resolve it. Then see to the others of its lane."""
        try:
            return self.ask_alone(block)
        finally:
            self.lane.attend()

    cdef bint ask_alone(self, bint block) except *:
        """The same, but for this event alone."""
        cdef cbool over = True, interrupted = False
        cdef CEvent native = self.native  # without the GIL only a copy is used: see `resolve`
        self.lane.check_process()
        try:
            with nogil:
                native.make_askable(block)
            try:
                with nogil:
                    over = ask_and_handle_signals(native, block, interrupted)
            except Exception as error:
                if interrupted:
                    raise
                self.fail(error)
        finally:
            with nogil:
                native = CEvent()
        if over:
            self.resolve()
        return over

    cdef resolve(self):
        """Learn the outcome of this event, which is over, and first of those it waited for, which are over too."""
        # Without recursion, because the chain can be long.
        cdef list path = [self]
        cdef Event event, source
        cdef CEvent forgotten
        while path:
            event = path[-1]
            if event.error is None:
                for source in event.sources:
                    if not source.resolved:
                        path.append(source)
                        break
                if path[-1] is not event:
                    continue
            event.learn_error(event is not self)
            if event.error is not None:  # else it would keep it, and so the frames that this passed, unseen by the collector
                forgotten = event.native
                event.native.forget()  # with the GIL: another thread may be about to ask the same event
                with nogil:
                    forgotten = CEvent()
            gone = event.sources  # holds the old value until replaced: see docs/concurrency.md
            event.sources = ()
            event.resolved = True
            path.pop()

    cdef learn_error(self, bint ask):
        cdef Event source
        if self.error is None:
            try:
                self.native.raise_error()
                vendor = self.vendor_event if ask else None
                if vendor is not None:
                    vendor.done()
            except Exception as error:
                self.fail(error)
        for source in self.sources:
            if source.error is not None:
                self.fail(source.error)

    cdef raise_error(self):
        if self.error is not None:
            raise self.error.with_traceback(self.traceback)

    def __await__(self) -> Generator[Any, None, None]:
        return _wait_for(self).__await__()

    def send(self, value: None) -> Any:
        """For `asyncio.create_task`, which takes coroutines only: poll, and return a future to wait for before the next poll.

        Parameters
        ----------
        value : None
            As asyncio passes it.
        """
        import asyncio

        if self.done():
            raise StopIteration
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        loop.call_later(0.001, _end, future)
        return next(iter(future))

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """For asyncio, as `send`: raise an error in the task, which is cancelled, for example.

        Parameters
        ----------
        error : BaseException
            What to raise.
        value, traceback
            Not used.
        """
        raise error

    def close(self) -> None:
        """For asyncio, as `send`: do nothing."""

    def __reduce__(self):
        refuse_copy(self, "it belongs to this process; wait for it first")

    def __repr__(self):
        if self.capture:
            state = "recorded into a graph"
        elif self.error is not None:
            state = f"failed: {self.error!r}"
        elif self.resolved or self.known_over():
            state = "over"
        else:
            state = "pending"
        of = "" if self.queue is None else f" of {self.queue!r}"
        return f"<{type(self).__name__}{of}: {state}>"


def _end(future):
    if not future.done():  # else the task was cancelled
        future.set_result(None)


async def _wait_for(Event event):
    """Poll after each tenth of the time so far, and at least every 10 ms: neither a thread nor the loop is blocked."""
    import asyncio  # imported already: its loop runs this

    begin = monotonic()
    while not event.done():
        await asyncio.sleep(min(0.1 * (monotonic() - begin), 0.01))
