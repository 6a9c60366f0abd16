# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""One vendor's queue: the submission of operations, and their state until they are over.

The mutex of a lane is the only lock. It is held while something is submitted, because a vendor's queue takes one
submission at a time, and while the queue is given back; not while the vendor is polled or waited for, which may take
long. All other state is changed by C code that the GIL guards.
"""

from cpython.object cimport PyObject
from cpython.pythread cimport PyThread_get_thread_ident
from cpython.ref cimport Py_DECREF, Py_INCREF
from cpython.weakref cimport PyWeakref_NewRef
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from posix.unistd cimport usleep

from pinning.map.adapters cimport native_queue
from pinning.plugin.native cimport VendorQueue
from pinning.queues.event cimport Event, Place
from pinning.queues.order cimport Timeline, point_at
from pinning.runtime.process cimport generation

import os
from collections import deque
from contextlib import suppress
from time import monotonic

from pinning.errors import GraphCaptureError, PinningError
from pinning.queues import pending
from pinning.queues.staging import Staged

cdef extern from "<sched.h>" nogil:
    int sched_yield()

cdef enum:
    LOOK_EVERY = 64  # operations, after which the vendor is polled
    LOST = 8  # consecutive failed polls, after which the device counts as lost

cdef double SPIN = 100e-6  # seconds for which a waiting thread polls before it records an event and sleeps
NONE = []
ONCE = "this work is done once, when it is submitted"


cdef bint keeps(object kept, object thing):
    if isinstance(kept, Work):
        return (<Work>kept).keeps(thing)
    for each in <tuple>kept:
        if each is thing:
            return True
    return False


cdef check_process(long made_in):
    if made_in != generation():
        raise PinningError(f"this queue belongs to the process that made it, and this is a fork of it, process "
                           f"{os.getpid()}; make queues after the fork, or start processes with \"spawn\"")


cdef class Work:
    cdef submit(self, Lane lane):
        raise NotImplementedError

    cdef bint keeps(self, object thing):
        return False

    cdef str unrecordable(self):
        return ONCE


cdef class Lane:
    def __init__(self, vendor, Timeline timeline, bint adopted, device, stream=None):
        self.vendor = vendor
        self.device = device
        self.stream = stream
        self.native = native_queue(vendor)
        self.queue = self.native.vendor
        self.timeline = timeline
        self.shared = self.adopted = adopted
        self.unsettled = deque()
        self.markers = deque()
        self.asking = []
        self.generation = generation()
        pending.know(self)

    def check_process(self):
        check_process(self.generation)

    def check_uncaptured(self, what):
        """Raise GraphCaptureError, with `what` as the reason, while the stream is being captured."""
        if self.capture() != 0:
            raise GraphCaptureError(f"this queue's stream is being captured into a graph, and {what}: do that before the "
                                    "capture, after it, or in another queue")

    # ---- submitting ----

    cdef bint enter(self) except *:
        """Acquire exclusive use of the vendor's queue; False if this thread already holds it.

        It does if an object is collected in the middle of a submission, and its destructor submits something.
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

    cdef uint64_t capture(self) except? 0:
        """The capture whose graph records what is submitted; 0 if there is none."""
        cdef VendorQueue* queue = self.queue
        cdef uint64_t capture
        if not self.shared or self.closed:
            return 0
        with nogil:
            capture = queue.capture()
        return capture

    cdef bint busy_here(self) except *:
        """Whether this very thread is in the middle of a vendor call, in which an object was collected."""
        ident = PyThread_get_thread_ident()
        return self.owner == ident or ident in self.asking

    cdef Place last_place(self):
        return None if self.last is NULL else <Place>self.last

    cdef put(self, Event event, object work, list vendor_waits, list foreign_waits, tuple keep):
        cdef bint outermost = self.enter()
        cdef Place place = None
        try:
            if self.closing or self.closed:
                raise PinningError("the queue was closed meanwhile; nothing can be submitted to it")
            if work is None and not vendor_waits and not foreign_waits and outermost:
                place = self.last_place()
                self.hold(keep)
            else:
                self.give(work, vendor_waits, foreign_waits, keep)
            if place is None:
                place = Place.__new__(Place)
                place.lane = self
                place.known_as = &self.last
                self.last = <void*>place
            self.submitted += 1
            event.place = place
            event.timeline = self.timeline
            event.position = self.submitted
            event.settled = False
            if event.sources:
                self.unsettled.append((event.position, PyWeakref_NewRef(event, None)))
            if place.vendor_event is None and (self.shared or not outermost):
                try:
                    place.vendor_event = self.vendor.record()
                except Exception:  # the work is submitted; the event is made when needed, as in other queues
                    pass
            if self.shared and place.vendor_event is not None:
                self.markers.append((event.position, place.vendor_event))
        finally:
            self.leave(outermost)

    cdef give(self, object work, list vendor_waits, list foreign_waits, tuple keep):
        self.flush()
        if vendor_waits or foreign_waits or (work is not None and not isinstance(work, Work)):
            self.writes.add_unknown(self.submitted + 1)
        for vendor_event in vendor_waits:
            self.vendor.wait(vendor_event)
        try:
            for foreign_wait in foreign_waits:
                self.hold((foreign_wait,))
                foreign_wait.submit(self.vendor, self.device)
            self.hold(keep)
            if isinstance(work, Work):
                self.hold(work)
                if (<Work>work).written_size:
                    self.writes.add(self.submitted + 1, (<Work>work).written, (<Work>work).written_size)
                (<Work>work).submit(self)
            elif work is not None:
                work(self.vendor)
        except BaseException:
            # Some of it may have been submitted: objects are kept until all that was submitted by now is over.
            self.submitted += 1
            self.last = NULL
            if self.shared:
                with suppress(Exception):
                    self.markers.append((self.submitted, self.vendor.record()))
            raise

    cdef flush(self):
        """Make the vendor's event of the last place, if it may still be needed, before more is submitted."""
        cdef Place place = self.last_place()
        if place is not None and place.vendor_event is None:
            place.vendor_event = self.vendor.record()

    def record(self, Place place not None):
        """Make the vendor's event of a place."""
        check_process(self.generation)
        # A submitting thread makes it first, and may then block, with the mutex, in a copy that waits for this thread.
        ident = PyThread_get_thread_ident()
        while place.vendor_event is None and self.owner != 0 and self.owner != ident:
            with nogil:
                usleep(20)
        if place.vendor_event is not None:
            return
        cdef bint outermost = self.enter()
        try:
            if place.vendor_event is None:
                if self.closed:
                    raise PinningError("the queue is closed, and this event was not recorded before")
                self.check_uncaptured("an event cannot stand in a graph")
                place.vendor_event = self.vendor.record()
        finally:
            self.leave(outermost)

    def share(self):
        """From now on others submit here too; what they submit must not come before a vendor's event of ours."""
        cdef bint outermost = self.enter()
        try:
            if not self.shared:
                self.flush()
                self.markers.append((self.submitted, self.vendor.record()))
                self.shared = True
        finally:
            self.leave(outermost)

    # ---- what is kept ----

    cdef hold(self, object thing):
        """Keep a tuple of objects, or a Work, until the operation that is being submitted is over."""
        if type(thing) is tuple and not thing:
            return
        cdef Reference reference
        reference.position, reference.thing = self.submitted + 1, <PyObject*>thing
        self.kept.push_back(reference)
        Py_INCREF(thing)
        if not self.watched:
            pending.look_after(self)  # in C: Ctrl-C could end a Python function before it has done this
            self.watched = True

    def uses(self, thing):
        """The operations that keep this very object."""
        cdef size_t i = 0
        cdef list positions = []
        while i < self.kept.size():
            if keeps(<object>self.kept.at(i).thing, thing):
                positions.append(self.kept.at(i).position)
            i += 1
        return [point_at(self.timeline, position) for position in positions]

    def unwatch(self):
        """Whether polling is not needed, because nothing is kept and nothing was submitted since the last call.

        Watching a lane again wakes a thread, which would delay each copy of a program that copies now and then.
        """
        self.watched = not self.kept.empty() or self.submitted != self.unwatched
        self.unwatched = self.submitted
        return not self.watched

    cdef bint may_write(self, uint64_t start, uint64_t size) noexcept:
        """Whether a pending operation, as far as it is known here, may write a range of the host."""
        return self.writes.meet(self.over_upto(), start, size)

    # ---- how far the vendor is ----

    cdef look(self):
        if self.submitted - self.looked >= LOOK_EVERY:
            self.looked = self.submitted
            if not self.poll() and not self.shared and (
                not self.kept.empty() or self.unsettled or not dereference(self.timeline.native).ordered()
            ):
                self.mark()

    cdef mark(self):
        """Record a vendor's event here: otherwise only a wait shows the progress of a queue that is never idle."""
        cdef bint outermost = self.enter()
        try:
            if not self.closed:
                position = self.complete
                self.markers.append((position, self.vendor.record()))
        except Exception as error:
            self.blame(error)
        finally:
            self.leave(outermost)

    cdef bint ask(self, bint block) except *:
        """Whether the vendor has done all; if `block`, wait until it has. Meanwhile the queue is not given back."""
        cdef bint over = True
        cdef VendorQueue* queue = self.queue
        self.check_uncaptured("cannot be asked or waited for")
        ident = PyThread_get_thread_ident()
        self.asking.append(ident)
        try:
            if block:
                self.vendor.synchronize()
            else:
                with nogil:
                    over = queue.done()
            self.refusals = 0
        except Exception as error:
            self.refusals += 1
            if self.refusals == LOST:
                self.give_signals()
            self.blame(error)
            raise
        finally:
            self.asking.remove(ident)
        return over

    cdef give_signals(self):
        """Set all signals, because the device is lost and queues of other vendors must not wait for it."""
        cdef size_t i = 0
        while i < self.kept.size():
            kept = <object>self.kept.at(i).thing
            for each in kept if type(kept) is tuple else ():
                for signal in each if type(each) is list else ():
                    if isinstance(signal, Staged):
                        signal.give()
            i += 1

    def poll(self):
        """Poll the vendor, and release what finished work has kept. Returns whether all work is over."""
        check_process(self.generation)
        cdef uint64_t submitted = self.complete
        if not self.closed and (self.over_upto() < submitted or not self.kept.empty() or self.unsettled):
            try:
                if self.shared:
                    self.read_markers()
                elif self.ask(False):
                    self.markers.clear()
                    self.reach(submitted)
                else:
                    self.read_markers()
            except Exception:  # the error is kept until the event or the queue is queried
                return False
        return self.over_upto() >= self.submitted and self.kept.empty()

    cdef bint is_over(self) except *:
        """`poll`, and whether what others have submitted is over."""
        cdef bint over = self.poll()
        cdef uint64_t submitted = self.complete
        if self.shared and not self.closed:
            try:
                over = self.ask(False)
                if over:
                    self.reach(submitted)
            except Exception:  # the error is kept until it is raised
                pass
        return over

    def ask_for_all(self, Place place not None, bint block):
        """Poll whether all is over, as long as nothing is submitted after this place; for up to `SPIN` if `block`.

        A wait for all would include what others submit meanwhile, which may in turn wait for this thread.
        """
        cdef double end = monotonic() + SPIN if block else 0
        cdef uint64_t submitted
        try:
            while not self.closed and self.last is <void*>place:
                submitted = self.complete
                if self.ask(False):
                    self.reach(submitted)
                    return
                if monotonic() >= end:
                    return
                with nogil:
                    sched_yield()
        except Exception:  # the place has the error
            pass

    @property
    def silent(self):
        """Whether polling shows no progress, because others submit here too and the vendor has refused the last event."""
        return self.shared and not self.markers

    @property
    def reached(self):
        """The last operation that is known to be over, as counted by `count`."""
        return self.over_upto()

    cdef uint64_t over_upto(self) noexcept:
        return dereference(self.timeline.native).reached()

    @property
    def owner_device(self):
        return self.device

    @property
    def count(self):
        """How many operations were submitted so far."""
        return self.submitted

    @property
    def lost(self):
        """Whether the vendor now reports nothing but errors."""
        return self.refusals >= LOST

    cdef read_markers(self):
        while self.markers:
            marker = self.markers[0]
            try:
                if not marker[1].done():
                    break
                self.reach(marker[0])
                error = None
            except Exception as raised:
                error = raised  # a later marker, or the queue itself, will show the progress
            if self.markers and self.markers[0] is marker:  # else another thread has asked meanwhile, and has the answer
                self.markers.popleft()
                if error is not None:
                    self.blame(error)

    cdef blame(self, object error):
        """Store an error that the vendor has reported, because it may not report it again."""
        cdef Place place = self.last_place()
        if place is not None and place.vendor_event is None:
            place.error = error
            self.last = NULL  # later events do not get this error
        elif self.error is None:
            self.error = error

    def arrive(self, uint64_t position):
        """Note that all up to here is over, as an event has reported."""
        self.reach(position)

    cdef reach(self, uint64_t position):
        cdef Event event
        dereference(self.timeline.native).reach(position)
        self.writes.reach(position)
        cdef object upto = position
        cdef PyObject* thing
        while not self.kept.empty() and self.kept.front().position <= position:
            thing = self.kept.front().thing
            self.kept.pop_front()
            Py_DECREF(<object>thing)  # may run any code, also this function
        # Otherwise they hold those that they wait for, and these theirs, for ever if the last one is never queried.
        while self.unsettled and self.unsettled[0][0] <= upto:
            event = self.unsettled.popleft()[1]()
            if event is not None and not event.settled:
                event._ask(False)

    # ---- the end ----

    def synchronize(self):
        """Block until all that was submitted by now is over. Raises an error that no event has reported."""
        check_process(self.generation)
        cdef uint64_t submitted = self.complete
        if not self.closed:
            try:
                self.ask(True)
            except Exception:
                gone, self.error = self.error, None
                raise
            self.reach(submitted)
        self.raise_error()

    cdef drain(self):
        """Wait until all that was submitted here is over. Raises as `synchronize`."""
        if not self.adopted:
            self.synchronize()
            return
        while self.markers:
            with suppress(Exception):  # `read_markers` gets the error once more
                self.markers[0][1].wait()
            self.read_markers()
        self.raise_error()

    cdef raise_error(self):
        error, self.error = self.error, None
        if error is not None:
            raise error

    def retire(self):
        """Note that no more work will be submitted here."""
        self.retired = True

    def finish(self):
        """Wait until all work is over, and give the vendor's queue back.

        Raises the first error. If the vendor has refused to take the queue back, it is still open.
        """
        if self.busy_here():
            pending.retire(self)  # the service thread will do it, once this call has ended
            return
        first = None
        self.check_uncaptured("cannot be asked or waited for")
        cdef bint outermost = self.enter()  # waits for a submission in progress
        self.closing = True
        self.leave(outermost)
        try:
            if self.silent and self.over_upto() < self.submitted:
                self.show_end()
            try:
                self.drain()
            except Exception as error:
                first = error
                try:
                    self.drain()  # the first error may be that of the work
                except Exception:
                    self.refusals = LOST
            try:
                self.close()
            except Exception as error:
                first = first or error
        finally:
            self.closing = False
        if first is not None:
            raise first

    cdef show_end(self):
        """Try once more to record the event that the vendor has refused, after all work."""
        cdef bint outermost = self.enter()
        try:
            marker = self.vendor.record()
            self.markers.append((self.submitted, marker))
        except Exception:  # the end of the work is not seen
            pass
        finally:
            self.leave(outermost)

    def close(self):
        """Give the vendor's queue back; its work is over, as far as it is seen. If the device is lost, so is the queue."""
        cdef bint outermost = self.enter()
        try:
            if self.closed:
                return
            try:
                self.flush()
            except Exception:  # the device is lost, as the event itself will report
                pass
            self.closed = True  # so that no thread begins to poll
            while self.asking:
                with nogil:
                    usleep(50)
            try:
                self.vendor.close()
            except BaseException:
                self.closed = self.lost
                raise
            finally:
                if self.closed:
                    self.markers.clear()
        finally:
            self.leave(outermost)
            if self.closed:
                if self.adopted and not self.lost and self.over_upto() < self.submitted:
                    self.kept.clear()  # without releasing it: its owner's stream may still use it
                self.reach(self.submitted)
