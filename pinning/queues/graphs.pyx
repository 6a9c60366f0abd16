# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What operations that were recorded into graphs keep: alive, and locked, for as long as the graph can be launched.

A driver says when a graph is gone, on a thread of its own that may call nothing. It only puts a node on a list; the
thread that looks after queues lets go of what the node keeps, within 0.1 s.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.stdint cimport uint64_t
from pinning.plugin.native cimport VendorQueue
from pinning.queues.lane cimport keeps
from pinning.queues.order cimport Timeline, point_at

from pinning.queues import pending
from pinning.runtime.process import Subsystem, at_fork

cdef extern from * nogil:
    """
    #include <atomic>

    // One recorded operation's references. The list of live ones is the GIL's; that of released ones any thread's.
    struct Recorded {
      PyObject* kept;  // a tuple: the work and a tuple of objects
      Recorded *previous, *next;
      Recorded* next_released;
    };

    static std::atomic<Recorded*> released_operations;

    static void release_recorded(void* object) {
      auto* const recorded = static_cast<Recorded*>(object);
      recorded->next_released = released_operations.load(std::memory_order_relaxed);
      while (!released_operations.compare_exchange_weak(recorded->next_released, recorded, std::memory_order_release,
                                                        std::memory_order_relaxed)) {
      }
    }

    static Recorded* new_recorded(PyObject* kept) { return new Recorded{kept, nullptr, nullptr, nullptr}; }
    static void delete_recorded(Recorded* recorded) { delete recorded; }
    static Recorded* take_released() { return released_operations.exchange(nullptr, std::memory_order_acquire); }
    """
    cppclass Recorded:
        PyObject* kept
        Recorded* previous
        Recorded* next
        Recorded* next_released

    Recorded* new_recorded(PyObject* kept) except +
    void delete_recorded(Recorded* recorded) noexcept
    void release_recorded(void* object) noexcept
    Recorded* take_released() noexcept

cdef Recorded* live = NULL  # the latest operation


cdef class Graphs:
    """All graphs of the process, as the thread that looks after queues sees a queue."""

    cdef object __weakref__
    cdef Timeline timeline
    cdef bint known, watched

    closed = retired = False
    owner_device = None  # when graphs are launched is not known
    lost = True  # the program's end does not wait for a graph

    def __init__(self):
        self.timeline = Timeline(True)  # whose end is never reached

    def poll(self):
        """Let go of what graphs that are gone have kept. Whether none is left."""
        cdef Recorded* recorded = take_released()
        cdef Recorded* following
        while recorded is not NULL:
            following = recorded.next_released
            let_go(recorded)
            recorded = following
        return live is NULL

    def unwatch(self):
        """Whether no graph is left, so that polling is not needed."""
        self.watched = live is not NULL
        return not self.watched

    def uses(self, thing):
        """The operations that keep this very object."""
        cdef Recorded* recorded = live
        while recorded is not NULL:
            work, kept = <tuple>recorded.kept
            if keeps(work, thing) or keeps(kept, thing):
                return [point_at(self.timeline, 1)]
            recorded = recorded.previous
        return []

    cdef watch(self):
        if not self.known:
            pending.know(self)
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
    Py_DECREF(kept)  # and `kept` is the last reference, which may run anything as it goes


cdef keep_with_graph(VendorQueue* queue, object work, tuple kept):
    """Keep both until the graph that the queue is captured into is gone. Raises GraphCaptureError, and keeps nothing."""
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
    """Whether any graph keeps something, as far as drivers have said."""
    return not graphs.poll()


def _after_fork_in_child():
    global live
    take_released()
    live = NULL  # what the parent's graphs keep is never let go here
    graphs.known = graphs.watched = False


at_fork(Subsystem.QUEUES, _after_fork_in_child)
