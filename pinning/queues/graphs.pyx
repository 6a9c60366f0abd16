# SPDX-License-Identifier: Apache-2.0
"""Objects that recorded operations use: they stay alive, and locked, as long as their graph can be launched.

The driver reports that a graph is gone on a thread of its own, which may make no calls and only puts a node on a list.
The service thread releases what the node keeps within 0.1 s.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from pinning.queues.lane cimport keeps

from pinning.queues import pending
from pinning.runtime.process import at_fork

cdef extern from "<pinning/graph_references.hpp>" namespace "pinning" nogil:
    cppclass Recorded:
        PyObject* kept
        Recorded* previous
        Recorded* next
        Recorded* next_released

    Recorded* new_recorded(PyObject* kept) except +
    void delete_recorded(Recorded* recorded) noexcept
    void release_recorded(void* object) noexcept
    Recorded* take_released() noexcept

cdef Recorded* live = NULL  # the latest of the operations that graphs keep


cdef class Graphs:
    """All graphs of the process, with the methods by which the service thread polls a lane."""

    cdef object __weakref__
    cdef bint known, watched

    closed = retired = False
    owner_device = None  # of no device: launches of graphs are not seen
    lost = True  # so that the exit does not wait for graphs
    count = 0

    def poll(self):
        """Release what destroyed graphs have kept. Returns whether no graph keeps anything now."""
        cdef Recorded* recorded = take_released()
        cdef Recorded* following
        while recorded is not NULL:
            following = recorded.next_released
            let_go(recorded)
            recorded = following
        return live is NULL

    def ask_last(self):
        """Nothing more: a graph that is gone tells so."""

    def unwatch(self):
        """Whether no graph keeps anything, so that polling is not needed."""
        self.watched = live is not NULL
        return not self.watched

    def uses(self, thing):
        """As `Lane.uses`; what a graph keeps is never over."""
        cdef Recorded* recorded = live
        while recorded is not NULL:
            work, kept = <tuple>recorded.kept
            if keeps(work, thing) or keeps(kept, thing):
                return [(self, 0)]
            recorded = recorded.previous
        return []

    cdef watch(self):
        if not self.known:
            pending.track(self)
            self.known = True
        if not self.watched:
            pending.look_after(self)
            self.watched = True


cdef Graphs graphs = Graphs()


cdef let_go(Recorded* recorded):
    global live
    cdef object kept = <object>recorded.kept
    if recorded.next is not NULL:
        recorded.next.previous = recorded.previous
    else:
        live = recorded.previous
    if recorded.previous is not NULL:
        recorded.previous.next = recorded.next
    delete_recorded(recorded)
    Py_DECREF(kept)  # `kept` is now the last reference, whose release may run any code


cdef keep_with_graph(VendorQueue* queue, object work, tuple kept):
    """Keep both until the graph that the queue is captured into is gone. After GraphCaptureError nothing is kept."""
    global live
    cdef tuple both = (work, kept)
    cdef Recorded* recorded = new_recorded(<PyObject*>both)
    Py_INCREF(both)
    recorded.previous = live
    if live is not NULL:
        live.next = recorded
    live = recorded
    graphs.watch()
    with nogil:
        queue.keep_with_graph(recorded, &release_recorded)


def graphs_alive() -> bool:
    """Whether any graph keeps something, as far as drivers have reported."""
    return not graphs.poll()


def _after_fork_in_child():
    global live
    take_released()
    live = NULL  # what the parent's graphs keep is never released here
    graphs.known = graphs.watched = False


at_fork(_after_fork_in_child)
