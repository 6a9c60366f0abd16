# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""How operations get into the vendor's queues, and what is remembered of them. The stub says what it is for.

The mutex of a lane is the only lock: it is held while the vendor is called, for a vendor's queue takes one submission at
a time. All else that is remembered is changed by C code that the GIL guards.
"""

cimport cython
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.weakref cimport PyWeakref_NewRef
from libc.stdint cimport uint64_t

from pinning.queues.event cimport Event, Place
from pinning.queues.order cimport Line, covers, history_of, merged, point_at

import atexit
import os
from collections import deque

from pinning.errors import PinningError
from pinning.queues import pending
from pinning.queues.gate import gate_for

cdef enum:
    LANES = 4  # of the vendor's, at most, for an out-of-order queue
    LOOK_EVERY = 64  # operations, after which the vendor is asked how far it is

cdef long generation = 0  # counts forks
cdef bint ended = False  # the program has: what is left goes with the process
cdef dict NOTHING = {}
cdef list NONE = []


def _after_fork_in_child():
    global generation
    generation += 1


@atexit.register
def _at_exit():
    global ended
    ended = True


os.register_at_fork(after_in_child=_after_fork_in_child)


cdef check_generation(long made_in):
    if made_in != generation:
        raise PinningError(f"this queue belongs to the process that made it, and this is a fork of it, process "
                           f"{os.getpid()}; make queues after the fork, or start processes with \"spawn\"")


cdef class Lane:
    """One vendor's queue."""

    def __init__(self, vendor, Line line, bint shared):
        self.vendor = vendor
        self.line = line
        self.shared = shared
        self.kept = deque()
        self.markers = deque()
        self.generation = generation
        pending.know(self)

    def check_process(self):
        check_generation(self.generation)

    # ---- submitting ----

    cdef bint enter(self) except *:
        """Have the vendor's queue alone. False where this thread has it already.

        That is so when an object is collected in the middle of a submission, and its end submits something.
        """
        if self.owner == PyThread_get_thread_ident():
            return False
        self.mutex.acquire()
        self.owner = PyThread_get_thread_ident()
        return True

    cdef leave(self, bint outermost):
        if outermost:
            self.complete = self.submitted
            self.owner = 0
            self.mutex.release()

    cdef put(self, Event event, object work, list vendor_waits, list gates, tuple keep):
        cdef bint outermost = self.enter()
        cdef Place place = None
        try:
            if self.closed:
                raise PinningError("the queue was closed meanwhile")
            if work is None and not vendor_waits and not gates and outermost:
                place = None if self.last is None else self.last()
                self.hold(keep)
            else:
                self.give(work, vendor_waits, gates, keep)
            if place is None:
                place = Place.__new__(Place)
                place.lane = self
                self.last = PyWeakref_NewRef(place, None)
            self.submitted += 1
            event.place = place
            event.line = self.line
            event.position = self.submitted
            event.settled = False
            if place.vendor_event is None and (self.shared or not outermost):
                try:
                    place.vendor_event = self.vendor.record()
                except Exception:  # then when it is needed, as in other queues: the work is submitted
                    pass
        finally:
            self.leave(outermost)

    cdef give(self, object work, list vendor_waits, list gates, tuple keep):
        self.flush()
        for vendor_event in vendor_waits:
            self.vendor.wait(vendor_event)
        try:
            for gate in gates:
                self.hold((gate,))
                self.vendor.call(gate.function, gate.argument)
            self.hold(keep)
            if work is not None:
                work(self.vendor)
        except BaseException:
            # Some of it may be submitted: what is kept stays until all that was submitted by now is over.
            self.submitted += 1
            self.last = None
            raise

    cdef flush(self):
        """Make the vendor's event of the last place, if anybody could still want it, before more is submitted."""
        cdef Place place = None if self.last is None else self.last()
        if place is not None and place.vendor_event is None:
            place.vendor_event = self.vendor.record()

    def record(self, Place place not None):
        """Make the vendor's event of a place."""
        check_generation(self.generation)
        cdef bint outermost = self.enter()
        try:
            if self.closed:
                raise PinningError("the queue is closed, and nobody has asked it for this event before")
            if place.vendor_event is None:
                place.vendor_event = self.vendor.record()
        finally:
            self.leave(outermost)

    def share(self):
        """From now on others submit here too: what they submit is not to come before a vendor's event of ours."""
        cdef bint outermost = self.enter()
        try:
            if not self.shared:
                self.flush()
                self.shared = True
        finally:
            self.leave(outermost)

    # ---- what is kept ----

    cdef hold(self, tuple keep):
        """Keep objects until the operation that is being submitted is over."""
        if keep:
            self.kept.append((self.submitted + 1, keep))
            if not self.watched:
                self.watched = True
                pending.watch(self)

    def uses(self, thing):
        """The operations that keep this very object."""
        return [point_at(self.line, position) for position, keep in list(self.kept)
                if any([thing is each for each in keep])]

    def unwatch(self):
        """Whether nothing is kept, and so nobody need look."""
        self.watched = False
        self.watched = bool(self.kept)
        return not self.watched

    cdef look(self):
        if self.submitted - self.looked >= LOOK_EVERY:
            self.looked = self.submitted
            if not self.poll() and (self.kept or not self.line.ordered):
                self.mark()

    cdef mark(self):
        """Have the vendor say when it is here: a queue that is never idle says nothing else without being waited for."""
        cdef bint outermost = self.enter()
        try:
            if not self.closed:
                position = self.complete
                self.markers.append((position, self.vendor.record()))
        except Exception as error:
            self.blame(error)
        finally:
            self.leave(outermost)

    def poll(self):
        """Ask the vendor how far it is, and let go of what is kept no longer. Whether all is over."""
        check_generation(self.generation)
        cdef uint64_t submitted = self.complete
        if self.line.reached < submitted or self.kept:
            try:
                if self.vendor.done():
                    self.markers.clear()
                    self.reach(submitted)
                else:
                    self.read_markers()
            except Exception as error:
                self.blame(error)
        return self.line.reached >= self.submitted and not self.kept

    def ask_for_all(self, Place place not None, bint block):
        """Learn whether all is over, or wait until it is, if nothing was submitted after this place."""
        if self.closed or self.last is None or self.last() is not place:
            return
        cdef uint64_t submitted = self.complete
        try:
            if block:
                self.vendor.synchronize()
            elif not self.vendor.done():
                return
            self.reach(submitted)
        except Exception as error:
            self.blame(error)

    cdef read_markers(self):
        while self.markers:
            marker = self.markers[0]
            if not marker[1].done():
                break
            self.reach(marker[0])
            if self.markers and self.markers[0] is marker:  # no other thread was here meanwhile
                self.markers.popleft()

    cdef blame(self, object error):
        """The vendor has told of an error that it may not tell again."""
        cdef Place place = None if self.last is None else self.last()
        if place is not None and place.vendor_event is None:
            place.error = error
        elif self.error is None:
            self.error = error

    cdef reach(self, uint64_t position):
        self.line.reach(position)
        cdef list free = []
        while self.kept and self.kept[0][0] <= position:
            free.append(self.kept.popleft())

    # ---- the end ----

    def synchronize(self):
        """Block until all that was submitted by now is over. Raises what went wrong that no event has told."""
        check_generation(self.generation)
        cdef uint64_t submitted = self.complete
        try:
            self.vendor.synchronize()
        except Exception as error:
            self.blame(error)
            self.error = None
            raise
        self.reach(submitted)
        self.raise_error()

    def retire(self):
        """Nobody will submit here any more."""
        self.retired = True

    cdef raise_error(self):
        error, self.error = self.error, None
        if error is not None:
            raise error

    def finish(self):
        """Wait until all is over, and give the vendor's queue back.

        Raises what went wrong. Where the vendor refused to take the queue back, it is still open.
        """
        first = None
        cdef int refused = 0
        for _ in range(2):  # the first error may be that of the work
            try:
                self.synchronize()
                break
            except Exception as error:
                first = first or error
                refused += 1
        try:
            self.close()
        except Exception as error:
            first = first or error
            self.closed = refused == 2  # the device is lost, and the queue with it
        if self.closed:
            self.reach(self.submitted)
        if first is not None:
            raise first

    def close(self):
        """Give the vendor's queue back, whose work is over."""
        cdef bint outermost = self.enter()
        try:
            if not self.closed:
                try:
                    self.flush()
                except Exception:  # the device is lost; the event will say so itself
                    pass
                self.vendor.close()
                self.closed = True
                self.markers.clear()
        finally:
            self.leave(outermost)
        self.reach(self.submitted)


cdef class Submitter:
    def __cinit__(self, *args, **kwargs):
        self.lanes = []
        self.before = self.past = NOTHING
        self.barrier = ()
        self.generation = generation
        self.closed = True  # until it has what it needs

    def __init__(self, device, bint ordered, vendor=None):
        """Of a device; over a vendor's queue that others use too, if one is given."""
        self.device = device
        self.ordered = ordered
        self.vendor_name = device.name.partition(":")[0]
        self.lanes.append(Lane(vendor or device.make_queue(), Line(ordered), vendor is not None))
        self.closed = False

    def __del__(self):
        if ended:
            return
        if self.generation != generation:
            pending.abandon(self.lanes)
        elif not self.closed:
            for lane in self.lanes:
                pending.retire(lane)

    @property
    def order(self):
        return "in_order" if self.ordered else "out_of_order"

    @property
    def waits_for_values(self):
        cdef Lane lane = self.lanes[0]
        return lane.vendor.waits_for_values

    cdef check(self):
        check_generation(self.generation)
        if self.closed:
            raise PinningError(f"{self!r} is closed; nothing can be submitted to it")

    def submit(self, work, wait_for=(), keep=(), kind=Event):
        self.check()
        cdef Event event = Event.__new__(Event) if kind is Event else kind()
        cdef tuple kept = keep if type(keep) is tuple else tuple(keep)
        cdef list vendor_waits = NONE
        cdef list gates = NONE
        cdef tuple waits = ()
        cdef dict before = self.before
        cdef Event wait
        cdef Lane lane
        if wait_for or self.barrier:
            waits = self.waited_for(wait_for)
            event.sources = tuple([wait for wait in waits if not wait.settled or wait.error is not None])
            for wait in waits:
                before = merged(before, wait.found())
            self.barrier = tuple([wait for wait in self.barrier if not wait.known_over()])
            for wait in self.barrier:
                before = merged(before, wait.found())
        lane = self.lane_for(waits)
        for wait in waits + self.barrier if self.barrier else waits:
            if self.needs_waiting(wait, lane):
                if (<Submitter>wait.queue).vendor_name == self.vendor_name:
                    if vendor_waits is NONE:
                        vendor_waits = []
                    vendor_waits.append(wait.recorded())
                else:
                    if gates is NONE:
                        gates = []
                    gates.append(gate_for(wait))
        event.queue = self
        event.before = before
        lane.put(event, work, vendor_waits, gates, kept)
        if before is not NOTHING and before is not self.before:
            if self.ordered:
                self.before = merged(self.before, before)  # and not `before` alone: other threads submit meanwhile
            else:
                self.past = merged(self.past, before)
        lane.look()
        return event

    cdef tuple waited_for(self, object wait_for):
        cdef tuple waits = tuple(wait_for)
        cdef Event wait
        for each in waits:
            if not isinstance(each, Event):
                raise TypeError(f"wait_for takes a list of events, not one with {each!r} in it")
            wait = each
            if not wait.settled and wait.known_over():
                wait._ask(block=False)
        return waits

    cdef Lane lane_for(self, tuple waits):
        cdef Event wait
        cdef Lane lane, best
        if self.ordered:
            return self.lanes[0]
        for wait in waits:
            # Behind what it waits for, if nothing else has got in there: then it need not wait at all.
            if wait.queue is self and wait.place is not None and (<Lane>wait.place.lane).submitted == wait.position:
                return wait.place.lane
        for lane in self.lanes:
            if lane.poll():
                return lane
        if len(self.lanes) < LANES:
            lane = Lane(self.device.make_queue(), Line(False), False)
            self.lanes.append(lane)
            return lane
        best = self.lanes[0]
        for lane in self.lanes:
            if lane.submitted - lane.line.reached < best.submitted - best.line.reached:
                best = lane
        return best

    cdef bint needs_waiting(self, Event event, Lane lane):
        """Whether the vendor must be told, because nothing else has the lane wait for the event."""
        if event.place is None or event.place.lane is lane or event.known_over():
            return False
        return not (self.ordered and covers(self.before, event.line, event.position))

    def wait_for(self, *events):
        self.check()
        if self.ordered:
            self.submit(None, events)
        else:
            self.barrier += self.waited_for(events)

    def record(self):
        cdef Event event
        cdef Lane lane
        self.check()
        if self.ordered:
            event = self.submit(None)
        else:
            event = self.submit(None, [self.tail(lane) for lane in list(self.lanes)])
        event.recorded()
        return event

    cdef Event tail(self, Lane lane):
        """An event after all in a lane of an out-of-order queue."""
        cdef Event event = Event.__new__(Event)
        event.queue = self
        lane.put(event, None, NONE, NONE, ())
        event.before = {**self.past, lane.line: event.position}
        return event

    def history(self, wait_for=()):
        cdef dict found = self.before
        cdef Event wait
        cdef Lane lane
        for wait in self.waited_for(wait_for) + self.barrier:
            found = merged(found, wait.found())
        if self.ordered:
            lane = self.lanes[0]
            found = {**found, lane.line: lane.submitted}
        return history_of(found)

    @property
    def usable(self):
        return not self.closed and self.generation == generation

    def share(self):
        self.check()
        cdef Lane lane = self.lanes[0]
        handle = lane.vendor.handle
        lane.share()
        return handle

    def poll(self):
        check_generation(self.generation)
        cdef bint over = True
        for lane in self.lanes:
            over = lane.poll() and over
        return over

    def done(self):
        cdef Lane lane
        over = self.poll()
        for lane in self.lanes:
            lane.raise_error()
        return over

    def synchronize(self):
        check_generation(self.generation)
        first = None
        for lane in list(self.lanes):
            try:
                lane.synchronize()
            except Exception as error:
                first = first or error
        if first is not None:
            raise first

    def close(self):
        check_generation(self.generation)
        if self.closed:
            return
        self.closed = True  # first, so that nobody submits meanwhile
        first = None
        for lane in self.lanes:
            try:
                lane.finish()
            except Exception as error:
                first = first or error
        cdef bint given_back = all([lane.closed for lane in self.lanes])
        self.closed = given_back
        if given_back:
            self.barrier = ()
        if first is not None:
            raise first
