# SPDX-License-Identifier: Apache-2.0
"""One vendor's queue: a thin wrapper of <pinning/lane.hpp>."""

from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_NewRef
from cython.operator cimport dereference
from libcpp.utility cimport move

from pinning.map.adapters cimport native_queue, vendor_of
from pinning.plugin.native cimport NativeQueue
from pinning.runtime.process cimport generation, is_parents

import os
from collections import deque

from pinning.errors import PinningError
from pinning.queues import pending

ctypedef int (*Submit)(PyObject* work, PyObject* vendor, VendorQueue& queue) except -1
ctypedef cbool (*Keeps)(PyObject* work, const void* thing) noexcept

cdef extern from "<pinning/python_operation.hpp>" namespace "pinning":
    cppclass PythonOperation(Operation):
        PythonOperation(PyObject* work, PyObject* kept, PyObject* vendor, Operation* native, Span written,
                        cbool is_work, Submit submit, Keeps keeps) except +

    void release_dropped "pinning::PythonOperation::release_dropped" () noexcept

cdef extern from "<pinning/python_wait.hpp>" namespace "pinning" nogil:
    void synchronize_and_handle_signals(CLane& lane, cbool& interrupted) except +raise_in_python
    void drain_and_handle_signals(CLane& lane, cbool& interrupted) except +raise_in_python
    void close_and_handle_signals(CLane& lane, cbool& interrupted) except +raise_in_python

ONCE = "this work is done once, when it is submitted"


cdef int submit_work(PyObject* work, PyObject* vendor, VendorQueue& queue) except -1:
    if isinstance(<object>work, Work):
        (<Work>work).submit(&queue)
    else:
        (<object>work)(<object>vendor)
    return 0


cdef cbool work_keeps(PyObject* work, const void* thing) noexcept:
    return keeps(<object>work, <object>thing)


cdef bint keeps(object kept, object thing):
    # Under the lane's lock, so nothing is made here: that could begin a garbage collection.
    cdef tuple things = (<Work>kept).owners if isinstance(kept, Work) else <tuple>kept
    for each in things:
        if each is thing:
            return True
    return False


cdef int begin_submission(tuple kept) except -1:
    for each in kept:
        if isinstance(each, Freeable):
            (<Freeable>each).check_live()
    for each in kept:
        if isinstance(each, Freeable):
            (<Freeable>each).submissions += 1
    return 0


cdef void end_submission(tuple kept) noexcept:
    for each in kept:
        if isinstance(each, Freeable):
            (<Freeable>each).submissions -= 1


cdef check_process(unsigned made_in):
    if is_parents(made_in):
        raise PinningError(f"this queue belongs to the process that made it, and this is a fork of it, process "
                           f"{os.getpid()}; make queues after the fork, or start processes with \"spawn\"")


cdef class Freeable:
    cdef int check_live(self) except -1:
        return 0


cdef class Work:
    def __cinit__(self):
        self.owners = ()

    cdef submit(self, VendorQueue* queue):
        if self.native is NULL:
            raise NotImplementedError
        with nogil:
            self.native.submit(dereference(queue))

    cdef str unrecordable(self):
        return ONCE


def _handle_and_thread(device, uintptr_t handle):
    """What tells a device's streams apart: a handle, and the number of this thread if each has its own, else 0."""
    cdef CStreamKey key = key_of_stream(dereference(vendor_of(device)), handle)
    return key.handle, key.thread


cdef class Lane:
    def __init__(self, vendor, bint ordered, bint adopted, device, stream=None, uint64_t number=0):
        cdef NativeQueue native = native_queue(vendor)
        cdef VendorDevice* owner = vendor_of(device)
        self.vendor, self.device, self.stream = vendor, device, stream
        self.queue = native.vendor
        self.native = CLane.make(dereference(owner), native.owned, ordered, adopted)
        self.unresolved = deque()
        self.made_in, self.users, self.number = generation(), 1, number
        pending.track(self)

    def __dealloc__(self):
        with nogil:
            self.native.reset()

    def check_process(self):
        check_process(self.made_in)

    def check_uncaptured(self, what):
        """Raise GraphCaptureError, with `what` as the reason, while the stream is being captured."""
        if not self.native.get().is_shared():
            return
        cdef bytes reason = what.encode()
        cdef const char* text = reason
        with nogil:
            self.native.get().check_uncaptured(text)

    # ---- submission ----

    cdef uint64_t capture(self) except? 0:
        """The capture whose graph records what is submitted; 0 if there is none."""
        cdef uint64_t capture = 0
        if self.native.get().is_shared():
            with nogil:
                capture = self.native.get().capture()
        return capture

    cdef put(self, Event event, object work, const CEvents& after, tuple keep):
        """Submit work, or a point in the queue for None, behind the vendor's events of `after`."""
        cdef unique_ptr[Operation] operation
        cdef Operation* own = NULL
        cdef Span written
        cdef bint is_work = isinstance(work, Work)
        written.start = written.end = 0
        if is_work:
            own = (<Work>work).native
            written.start = (<Work>work).written
            written.end = written.start + (<Work>work).written_size
        if work is not None or keep:
            operation.reset(new PythonOperation(<PyObject*>work, <PyObject*>keep, <PyObject*>self.vendor, own, written,
                                                is_work, &submit_work, &work_keeps))
        try:
            if own is not NULL or not after.empty() or not self.native.get().submit_at_once(operation, event.native):
                with nogil:
                    event.native = self.native.get().submit_uncaptured(move(operation), after)
            event.lane, event.resolved = self, False
            if event.sources:
                self.unresolved.append((event.native.position(), PyWeakref_NewRef(event, None)))
        finally:
            if not self.watched and (is_work or keep) and self.native.get().keeps_any():
                pending.look_after(self)  # in C: Ctrl-C could end a Python function before it has done this
                self.watched = True
            self.attend()

    def share(self):
        """From now on others submit here too; what they submit must not come before a vendor's event of ours."""
        with nogil:
            self.native.get().share()

    # ---- what is kept, and how far the vendor is ----

    cpdef attend(self):
        """Release what finished work has kept. Resolve events that are over."""
        cdef Event event
        release_dropped()
        # Otherwise they hold those that they wait for, and these theirs, for ever if the last one is never queried.
        while self.unresolved and self.unresolved[0][0] <= self.reached_upto():
            event = self.unresolved.popleft()[1]()
            if event is not None and not event.resolved:
                event.ask_alone(False)  # not `_ask`, which calls this: no recursion as deep as there are events
                release_dropped()

    def uses(self, thing):
        """The operations that keep this very object, each as this lane and its position."""
        return [(self, position) for position in self.native.get().keeping(<PyObject*>thing)]

    def unwatch(self):
        """Whether polling is not needed, because nothing is kept and nothing was submitted since the last call.

        Watching a lane again wakes a thread, which would delay each copy of a program that copies now and then.
        """
        self.attend()  # another thread may have found out since the last poll
        self.watched = self.native.get().keeps_any() or self.count != self.unwatched
        self.unwatched = self.count
        return not self.watched

    def poll(self):
        """Poll the vendor, and release what finished work has kept. Returns whether all work is over."""
        check_process(self.made_in)
        cdef bint over
        try:
            with nogil:
                over = self.native.get().poll()
        finally:
            self.attend()
        return over

    def ask_last(self):
        """As `poll`, by the event of the last operation, which another queue may have waited for."""
        check_process(self.made_in)
        try:
            with nogil:
                self.native.get().ask_last()
        finally:
            self.attend()

    def done(self):
        """Whether all work is over, also what others have submitted. Raises an error that no event has reported."""
        check_process(self.made_in)
        cdef bint over
        try:
            with nogil:
                over = self.native.get().done()
        finally:
            self.attend()
        return over

    cdef synchronize(self, cbool& interrupted):
        """Block until all that was submitted by now is over. Raises as `done`.

        `interrupted` becomes true if what it raises is of the handler of a signal.
        """
        check_process(self.made_in)
        try:
            with nogil:
                synchronize_and_handle_signals(dereference(self.native), interrupted)
        finally:
            self.attend()

    cdef uint64_t reached_upto(self) noexcept:
        return dereference(self.native.get().timeline()).reached()

    @property
    def silent(self):
        """Whether polling shows no progress, because others submit here too and the vendor has refused the last event."""
        cdef bint silent
        with nogil:
            silent = self.native.get().is_silent()
        return silent

    @property
    def reached(self):
        """The last operation that is known to be over, as counted by `count`."""
        return self.reached_upto()

    @property
    def owner_device(self):
        return self.device

    @property
    def count(self):
        """How many operations were submitted so far."""
        return self.native.get().count()

    @property
    def lost(self):
        """Whether the vendor now reports nothing but errors."""
        return self.native.get().is_lost()

    @property
    def closed(self):
        return self.native.get().is_closed()

    # ---- the end ----

    def join(self, uint64_t number):
        """Note that one more queue submits here; False if that cannot be, or the handle is another stream's by now.

        `number` is that of the stream that has the handle, or 0 if the vendor does not tell.
        """
        if self.given_back or self.native.get().is_closed() or is_parents(self.made_in):
            return False
        if self.number and number and self.number != number:
            return False
        self.number = self.number or number
        self.users += 1
        return True

    def retire(self):
        """Note that a queue submits here no more."""
        self.users -= 1

    @property
    def retired(self):
        """Whether none does."""
        return self.users <= 0

    cdef drain(self, cbool& interrupted):
        """As `synchronize`, but not for what others have submitted."""
        if self.native.get().is_in_call():
            return
        try:
            with nogil:
                drain_and_handle_signals(dereference(self.native), interrupted)
        finally:
            self.attend()

    cdef finish(self, cbool& interrupted):
        """Wait until all work is over, and give the vendor's queue back.

        Raises the first error. If the vendor has refused to take the queue back, it is still open. So it is if the
        handler of a signal raises; then `interrupted` becomes true.
        """
        if self.native.get().is_in_call():
            pending.retire(self)  # the service thread will do it, once this call has ended
            return
        self.given_back = True
        try:
            with nogil:
                close_and_handle_signals(dereference(self.native), interrupted)
        finally:
            self.given_back = self.native.get().is_closed()
            self.attend()

    def close(self):
        """Give the vendor's queue back; its work is over, as far as it is seen. If the device is lost, so is the queue."""
        if not self.retired:  # a queue has joined meanwhile
            return
        self.given_back = True
        try:
            with nogil:
                self.native.get().give_back()
        finally:
            self.attend()
