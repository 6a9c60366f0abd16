# SPDX-License-Identifier: Apache-2.0
"""What comes after what, for Python: see native/include/pinning/order.hpp."""

from cython.operator cimport dereference
from libc.stdint cimport uintptr_t

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NoReturn


cdef class TimelinePoint:
    """The position of an operation: enough, without its `Event`, to know later whether it is over.

    It keeps neither the event nor the queue alive, and needs no vendor call.

    Attributes
    ----------
    position : int
        Its position among the operations of its lane: 1 for the first one.
    """

    def __init__(self):
        raise TypeError("a TimelinePoint comes from an Event")

    @property
    def reached(self) -> bool:
        """Whether the operation is known to be over. Does not poll: see `Queue.poll`."""
        return dereference(self.timeline).reached() >= self.position

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimelinePoint):
            return NotImplemented
        return (self.timeline.get() == (<TimelinePoint>other).timeline.get() and
                self.position == (<TimelinePoint>other).position)

    def __hash__(self) -> int:
        return hash((<uintptr_t>self.timeline.get(), self.position))

    def __repr__(self):
        return f"<TimelinePoint {self.position}, {'over' if self.reached else 'pending'}>"


cdef class Dependencies:
    """All that an operation comes after, through queues and wait lists.

    It contains every operation of an in-order queue up to a position, and single operations of an out-of-order queue.
    An operation that is known to be over is in every `Dependencies`. Its length is the number of positions and
    operations that it consists of.
    """

    def __init__(self) -> NoReturn:
        raise TypeError("a Dependencies comes from an Event or a Queue")

    def __contains__(self, TimelinePoint point not None) -> bool:
        return self.native.covers(dereference(point.timeline), point.position)

    def __len__(self) -> int:
        return self.native.size()

    def __repr__(self):
        return f"<Dependencies of {len(self)} points>"


cdef TimelinePoint point_at(const SharedTimeline& timeline, uint64_t position):
    cdef TimelinePoint point = TimelinePoint.__new__(TimelinePoint)
    point.timeline = timeline
    point.position = position
    return point


cdef Dependencies empty():
    return Dependencies.__new__(Dependencies)
