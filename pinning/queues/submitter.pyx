# SPDX-License-Identifier: Apache-2.0
"""Submission to a queue: a thin wrapper of <pinning/queue.hpp>."""

from libcpp.vector cimport vector

from pinning.queues.cross_vendor_wait cimport cross_vendor_wait
from pinning.queues.graphs cimport keep_with_graph
from pinning.queues.lane cimport ONCE, Work, begin_submission, check_process, end_submission
from pinning.runtime.process cimport generation, is_parents, keep_for_ever

from typing import TYPE_CHECKING

from pinning.errors import GraphCaptureError, PinningError
from pinning.queues import pending
from pinning.runtime.arguments import describe
from pinning.runtime.process import at_exit

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any, Literal, TypeVar, overload

    from pinning.plugin import MemoryDevice, VendorQueue

    _E = TypeVar("_E", bound=Event)
    _K = TypeVar("_K")
    _V = TypeVar("_V")

cdef uint64_t CLOSED = <uint64_t>-1  # VendorQueue::closed_capture

cdef bint ended = False  # whether the program exits: what is left goes with the process


def _end():
    global ended
    ended = True


at_exit(_end)


cpdef tuple events_of(object wait_for):  # type: (Iterable[Event]) -> tuple[Event, ...]
    """The events of a wait list, or a single event, as a tuple, which can be iterated more than once."""
    if type(wait_for) is tuple:
        return <tuple>wait_for
    if isinstance(wait_for, Event):
        return (wait_for,)
    try:
        return tuple(wait_for)
    except TypeError:
        raise TypeError(f"wait_for is {describe(wait_for)}; it must be an event or several") from None


cdef tuple kept_of(object keep):
    try:
        return tuple(keep)
    except TypeError:
        raise TypeError(f"keep is {describe(keep)}; it must be several objects, such as a list of them") from None


cdef CEvents natives_of(tuple events, vector[CEvent]& copies):
    """The native events: copies, because another thread may resolve one, and forget its place, while the GIL is released."""
    cdef CEvents natives
    cdef Event event
    copies.reserve(len(events))
    for event in events:
        copies.push_back(event.native)
        natives.push_back(&copies.back())
    return natives


cdef bint is_among(CEvents& natives, const CEvent* one):
    for native in natives:
        if native is one:
            return True
    return False


cdef class Submitter:
    """The base of `Queue`: its lanes, each a vendor's in-order queue, and the submission to them.

    Attributes
    ----------
    device : MemoryDevice
        The device of the queue.
    closed : bool
        Whether `close` was called; nothing can be submitted then.
    """

    def __cinit__(self, *args, **kwargs):
        self.lanes = []
        self.made_in = generation()
        self.closed = True  # until __init__ has succeeded

    def __init__(self, device: MemoryDevice, bint ordered, Lane lane: Any = None) -> None:
        # Over `lane`, of which this is a user from now on; by default over a new vendor's queue.
        if self.lanes:
            raise TypeError("a Queue cannot be initialized again")
        self.device = device
        self.ordered = ordered
        cdef Lane first = lane or Lane(pending.vendor_queue(device), ordered, False, device)
        self.native.reset(new CQueue(first.native))
        self.lanes.append(first)
        self.closed = False

    def __dealloc__(self):
        with nogil:
            self.native.reset()

    def __del__(self):
        if ended or is_parents(self.made_in):
            keep_for_ever(self.lanes)
        elif not self.closed:
            for lane in self.lanes:
                pending.retire(lane)

    @property
    def order(self) -> Literal["in_order", "out_of_order"]:
        """``"in_order"`` or ``"out_of_order"``."""
        return "in_order" if self.ordered else "out_of_order"

    @property
    def moves_parts(self) -> bool:
        """Whether the vendor's queue has a kernel that copies many parts at once."""
        return getattr((<Lane>self.lanes[0]).vendor, "moves_parts", False)

    @property
    def waits_for_values(self) -> bool:
        """Whether the vendor's queues have `wait_value` and `write_value`, without which nothing can be staged."""
        cdef Lane lane = self.lanes[0]
        return lane.vendor.waits_for_values

    cdef check(self):
        check_process(self.made_in)
        if self.closed:
            raise PinningError(f"{self!r} is closed; nothing can be submitted to it")

    # @overload
    # def submit(
    #     self, work: Callable[[VendorQueue], object] | None, wait_for: Iterable[Event] = (), keep: Iterable[object] = ()
    # ) -> Event: ...
    # @overload
    # def submit(
    #     self,
    #     work: Callable[[VendorQueue], object] | None,
    #     wait_for: Iterable[Event],
    #     keep: Iterable[object],
    #     kind: Callable[[], _E],
    # ) -> _E: ...
    def submit(self, work, wait_for=(), keep=(), kind=Event):
        """Submit an operation: the calls that `work` makes to the vendor's queue.

        Parameters
        ----------
        work : callable or None
            Called at once with the `VendorQueue` to submit to. None: only a point in the queue, reached when the
            wait list and, in order, all earlier work are complete.
        wait_for : iterable of Event
            Events that must complete first, of any queue and any vendor.
        keep : iterable
            Objects to keep alive until the operation is over; they are released within a fraction of a second.
        kind : callable
            Makes the event: a subclass of `Event`, or anything that returns a new one.

        Raises
        ------
        Exception
            What `work` raised. `keep` is still kept alive, because part of the work may have been submitted.
        VendorError
            The vendor refused to wait or to record; nothing was submitted.
        PinningError
            The queue is closed, or the process has forked since.
        """
        self.check()
        if work is not None and not isinstance(work, Work) and not callable(work):
            raise TypeError(f"work is {describe(work)}; it must be a function of a VendorQueue, or None")
        if not callable(kind):
            raise TypeError(f"kind is {describe(kind)}; it must be a function that returns an Event")
        cdef Event event = Event.__new__(Event) if kind is Event else kind()
        return self.enqueue(event, work, wait_for, keep if type(keep) is tuple else kept_of(keep))

    cdef Event enqueue(self, Event event, object work, object wait_for, tuple kept):
        cdef tuple used = (<Work>work).owners if isinstance(work, Work) else kept
        begin_submission(used)
        try:
            return self.enqueue_live(event, work, wait_for, kept)
        finally:
            end_submission(used)

    cdef Event enqueue_live(self, Event event, object work, object wait_for, tuple kept):
        self.check()
        cdef Lane first = self.lanes[0]
        cdef uint64_t capture = first.capture()
        if capture != 0:
            return self.record_in_graph(first, capture, event, work, wait_for, kept)
        if type(wait_for) is not tuple and wait_for is not None:
            wait_for = events_of(wait_for)
        if not self.ordered or wait_for:
            return self.enqueue_in_turn(first, event, work, self.waited_for(wait_for) if wait_for else (), kept)
        cdef CEvents nothing
        event.queue = self
        first.put(event, work, nothing, kept)
        self.native.get().note(event.native)
        return event

    cdef Event enqueue_in_turn(self, Lane first, Event event, object work, tuple waits, tuple kept):
        cdef vector[CEvent] copies
        cdef CEvents awaited = natives_of(waits, copies)
        cdef CEvents nothing
        cdef CTurn turn
        cdef Event wait
        cdef Lane lane
        if waits:
            event.sources = tuple([wait for wait in waits if not wait.resolved or wait.error is not None])
        if self.ordered:
            turn = self.native.get().turn(awaited)
            lane = first
        else:
            with nogil:  # it polls
                turn = self.native.get().turn(awaited)
            lane = self.lane_of(turn)
        if not turn.foreign.empty():
            for i, wait in enumerate(waits):
                if is_among(turn.foreign, awaited[<size_t>i]):
                    foreign_wait = cross_vendor_wait(wait, self.device)
                    if foreign_wait is not None:
                        lane.put(Event.__new__(Event), foreign_wait, nothing, ())
        event.queue = self
        lane.put(event, work, turn.after, kept)
        self.native.get().note(turn, event.native)
        return event

    cdef Lane lane_of(self, CTurn& turn):
        """The lane of a turn of an out-of-order queue; a new one if it has none."""
        cdef Lane lane
        if turn.lane.get() is not NULL:
            for lane in self.lanes:
                if lane.native.get() is turn.lane.get():
                    return lane
        self.check()  # another thread may have closed it
        lane = Lane(pending.vendor_queue(self.device), False, False, self.device)
        self.native.get().add(turn, lane.native)
        self.lanes.append(lane)
        if self.closed:  # by another thread meanwhile, which may not have seen this lane
            pending.retire(lane)
            self.check()
        return lane

    cdef Event record_in_graph(self, Lane lane, uint64_t capture, Event event, object work, object wait_for, tuple keep):
        """Submit an operation to a stream under capture. Each launch of the graph does it; its event never completes.

        All that can be refused is refused before the driver is called, because the driver's refusal ends the capture.
        """
        cdef Event wait
        cdef str why = (<Work>work).unrecordable() if isinstance(work, Work) else ONCE
        if capture == CLOSED:
            why = "that capture takes no work: it has failed, or the vendor's captures cannot be recorded into"
        elif not self.ordered:
            why = "this queue runs out of order over several streams, of which one alone is captured"
        if why is not None:
            raise GraphCaptureError(f"{self!r} is being captured into a graph, and {why}. A graph can have copies of locked "
                                    "memory and of the device's own, batches of these, and fills of the device's memory: "
                                    "lock the buffer before, or submit to another queue")
        for wait in self.waited_for(wait_for, capture):
            if wait.capture == 0 and not wait.done():
                raise GraphCaptureError(f"{wait!r} is not complete, and a graph cannot wait for it: wait for it before the "
                                        "capture begins")
        cdef CLane* native = lane.native.get()
        with nogil:
            native.lock()
        try:
            native.check_open()
            if lane.recorder is None:
                keep_with_graph(lane.queue, work, keep)
            else:
                lane.recorder.append((work, keep))
            (<Work>work).submit(lane.queue)
        finally:
            native.unlock()
        event.queue, event.capture = self, capture
        event.fail(GraphCaptureError(f"this operation of {self!r} was recorded into a graph, which does it at each launch, so it "
                                     "has no end of its own: wait for the stream in which the graph was launched"))
        return event

    def _check_uncaptured(self, what: str) -> None:
        """Raise GraphCaptureError, with `what` as the reason, while the queue's stream is being captured."""
        cdef Lane lane = self.lanes[0]
        lane.check_uncaptured(what)

    @property
    def is_capturing(self) -> bool:
        """Whether the stream is under capture, so that what is submitted is recorded into a graph instead of done."""
        cdef Lane lane = self.lanes[0]
        return not self.closed and lane.capture() != 0

    def _record_to(self, list recorder: list[object] | None) -> None:
        """Make `recorder`, a list, keep what recorded operations use, instead of their graph; None: the graph again."""
        cdef Lane lane = self.lanes[0]
        lane.recorder = recorder

    cdef tuple waited_for(self, object wait_for, uint64_t capture=0):
        cdef tuple waits = events_of(wait_for)
        cdef Event wait
        for each in waits:
            if not isinstance(each, Event):
                raise TypeError(f"wait_for takes a list of events, not one with {describe(each)} in it")
            wait = each
            if wait.capture != capture and wait.capture != 0:
                wait.raise_error()
            if not wait.resolved and wait.known_over():
                wait._ask(block=False)
        return waits

    def wait_for(self, *events: Event) -> None:
        """Make all later work wait for these. If one fails, later work does not fail with it.

        Parameters
        ----------
        *events : Event
            Of any queue, of any vendor.
        """
        for each in events:
            if not isinstance(each, Event):
                raise TypeError(f"an argument is {describe(each)}; give each event as an argument of its own: wait_for(*events)")
        cdef Event point = self.submit(None, events)
        if not self.ordered:
            self.native.get().bar(point.native)

    def record(self) -> Event:
        """Return an event after all work so far. Its vendor event is made now, so that its time is exact."""
        cdef Event event = self.submit(None, () if self.ordered else self.tails())
        event.recorded()
        return event

    cdef list tails(self):
        """Events after all work so far, one in each lane: after a wait for them, all of it is known to be over."""
        self.check()
        return [self.submit(None)] if self.ordered else [self.tail(lane) for lane in list(self.lanes)]

    cdef Event tail(self, Lane lane):
        """An event after all work so far in a lane of an out-of-order queue."""
        cdef Event event = Event.__new__(Event)
        cdef CEvents nothing
        event.queue = self
        lane.put(event, None, nothing, ())
        self.native.get().note_tail(event.native)
        return event

    cdef int add_history(self, CDependencies& to, object wait_for) except -1:
        """Add all that an operation with this wait list would come after, if it were submitted now or later."""
        cdef vector[CEvent] copies
        if not self.lanes:
            self.check()
        self.native.get().add_history(to, natives_of(self.waited_for(wait_for), copies))
        return 0

    @property
    def usable(self) -> bool:
        """Whether it is neither closed nor of a parent process."""
        return self.is_usable()

    cdef bint is_usable(self) noexcept:
        return not self.closed and not is_parents(self.made_in)

    cdef bint is_to_be_written(self, uint64_t start, uint64_t size, object wait_for) except -1:
        """Whether pending work may write a range before a copy that is submitted now. Work of others is not known."""
        cdef vector[CEvent] copies
        cdef CEvents awaited = natives_of(self.waited_for(wait_for), copies)
        cdef Span range
        cdef bint may
        range.start, range.end = start, start + size
        try:
            with nogil:
                may = self.native.get().may_write(range, awaited)
        finally:
            for lane in self.lanes:
                lane.attend()
        return may

    cdef bint reads_early(self) noexcept:
        """Whether the vendor's own copy may read a pageable source, or its beginning, during the call."""
        return (<Lane>self.lanes[0]).queue.reads_early()

    @property
    def _reads_early(self) -> bool:
        return self.reads_early()

    cdef bint is_shared(self) noexcept:
        """Whether others may submit to one of the vendor's queues."""
        return self.native.get().is_shared()

    cdef bint may_be_read(self, uint64_t start, uint64_t size, object wait_for) except -1:
        return not self.is_shared() and not self.is_to_be_written(start, size, wait_for)

    def _share(self) -> Any:
        """The first lane. From now on its events are made at once: others submit there."""
        self.check()
        cdef Lane lane = self.lanes[0]
        lane.share()
        return lane

    def _lend(self) -> None:
        """From now on, do not count what is submitted here as work of its device: it is work for another device."""
        for lane in self.lanes:
            pending.lend(lane)

    def poll(self) -> bool:
        """Poll the vendor, update what is known to be over, and release what is no longer needed.

        Returns whether all that was submitted is over. Makes no event, and does not raise the vendor's errors.
        """
        check_process(self.made_in)
        cdef bint over = True
        for lane in self.lanes:
            over = lane.poll() and over
        return over

    def done(self) -> bool:
        """Whether all that was submitted is complete.

        Raises
        ------
        VendorError
            Work failed, and no event reports it.
        """
        check_process(self.made_in)
        cdef Lane lane
        cdef bint over = True
        for lane in self.lanes:
            over = lane.done() and over
        return over

    def synchronize(self) -> None:
        """Block this thread, without the GIL, until all that was submitted by now is complete. Raises as `done`."""
        check_process(self.made_in)
        cdef Lane lane
        cdef cbool interrupted = False
        first = None
        for lane in list(self.lanes):
            try:
                lane.synchronize(interrupted)
            except Exception as error:
                if interrupted:
                    raise
                first = first or error
        if first is not None:
            raise first

    def close(self) -> None:
        """See `Queue.close`."""
        check_process(self.made_in)
        cdef Lane lane
        cdef cbool interrupted = False
        self.closed = True  # first, so that nothing is submitted meanwhile
        first = None
        try:
            for lane in self.lanes:
                try:
                    if lane.users == 1 and not self.apart:
                        lane.finish(interrupted)
                        continue
                    lane.drain(interrupted)
                    if not self.apart:  # of two threads that close it, one
                        self.apart = True
                        pending.retire(lane)
                except Exception as error:
                    if interrupted:
                        raise
                    first = first or error
        finally:
            lanes = self.lanes  # holds the old value until replaced: see docs/concurrency.md
            open_ones = [lane for lane in lanes if not (self.apart or lane.closed or lane.retired)]
            self.closed = not open_ones
            self.lanes = open_ones or lanes  # lanes that were given back take no work
            if self.closed and lanes:
                with nogil:
                    self.native.get().lift()
        if first is not None:
            raise first


def replace(where not None: dict[_K, _V], key: _K, old: _V | None, new: _V) -> bool:
    """Set an entry in one step, if it is still `old` (None: if there is none). Returns whether it was set."""
    if where.get(key) is not old:
        return False
    where[key] = new
    return True
