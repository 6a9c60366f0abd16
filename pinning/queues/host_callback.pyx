# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""Functions of Python that a vendor's queue calls."""

from cpython.object cimport PyObject
from libc.stdint cimport uintptr_t

from pinning.queues.event cimport Event

import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


cdef extern from *:
    """
    #include <pinning/gil.hpp>

    // On a thread of the vendor's, which may be the first to come to Python.
    static void call_in_python(void* callback) {
      pinning::Gil const gil;
      PyObject* const result = PyObject_CallNoArgs(static_cast<PyObject*>(callback));
      if (result == nullptr) PyErr_WriteUnraisable(static_cast<PyObject*>(callback));
      Py_XDECREF(result);
    }
    """
    void call_in_python(void* callback) nogil


cdef class HostCallback:
    """A Python function that a queue calls in its turn, as a C function for `VendorQueue.call`.

    What the function raises goes to `event`, or where that is gone, to `sys.unraisablehook`.
    """

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
        # It stays until the queue lets go of this: what it holds may call the vendor when it goes, and must not here.
        try:
            self.python()
        except BaseException as error:
            waiting = self.event()
            if waiting is None:
                raise
            (<Event>waiting).fail(error)

    def __repr__(self):
        return f"<{self.python!r}, called by a queue; its event was dropped>"
