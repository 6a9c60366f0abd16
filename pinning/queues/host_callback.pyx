# SPDX-License-Identifier: Apache-2.0
"""Python functions that a vendor's queue calls."""

from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from pinning.map.adapters cimport native_queue
from pinning.plugin.native cimport VendorQueue as CVendorQueue
from pinning.queues.event cimport Event
from pinning.queues.lane cimport CLane

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from pinning.plugin import VendorQueue  # noqa: F401  of the declared attribute


cdef extern from "<pinning/call_in_python.hpp>" namespace "pinning":
    void call_in_python(void* callback) nogil


cdef class HostCallback:
    """A Python function that a queue calls in its turn, as a C function for `VendorQueue.call`.

    An exception of the function goes to `event`, or to `sys.unraisablehook` if the event is gone. `queue` is the one
    that calls it, once that is known; the function cannot wait for it.
    """

    cdef object __weakref__
    cdef object python
    cdef public object queue  # type: VendorQueue
    cdef object event  # a weak reference

    def __init__(self, function: Callable[[], object], event: Event) -> None:
        self.python = function
        self.event = weakref.ref(event)

    @property
    def function(self) -> int:
        return <uintptr_t>&call_in_python

    @property
    def argument(self) -> int:
        return <uintptr_t><PyObject*>self

    def __call__(self):
        # The function is not released here: destroying what it holds may call the vendor, which this thread must not.
        cdef const CVendorQueue* outer = CLane.set_caller(native_queue(self.queue).vendor)
        try:
            self.python()
        except BaseException as error:
            waiting = self.event()
            if waiting is None:
                raise
            if isinstance(error, StopIteration):  # which would end a task that waits, as if all were well
                stopped, error = error, RuntimeError(f"{self.python!r} raised StopIteration")
                error.__cause__ = stopped
            (<Event>waiting).fail(error)
        finally:
            CLane.set_caller(outer)

    def __repr__(self):
        return f"<{self.python!r}, called by a queue; its event was dropped>"
