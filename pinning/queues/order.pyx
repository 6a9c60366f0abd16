# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What depends on what."""

from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import NoReturn


cdef class Timeline:
    """The operations of one in-order lane of a vendor, by position: 1, 2, 3 and so on.

    Attributes
    ----------
    reached : int
        The last position that is known to be over. It only grows.
    ordered : bool
        Whether each operation comes after all before it. In the lanes of an out-of-order queue they happen to run in
        order, but nothing may rely on it.
    """

    def __init__(self, bint ordered) -> None:
        self.ordered = ordered

    def __repr__(self):
        return f"<Timeline, {'in' if self.ordered else 'out of'} order, over up to {self.reached}>"

    cdef void reach(self, uint64_t position) noexcept:
        if position > self.reached:
            self.reached = position


cdef class TimelinePoint:
    """The position of an operation: enough, without its `Event`, to know later whether it is over.

    It keeps neither the event nor the queue alive, and needs no vendor call.

    Attributes
    ----------
    timeline : Timeline
        The timeline of the operation.
    position : int
        Its position there: 1 for the first operation.
    """

    def __init__(self):
        raise TypeError("a TimelinePoint comes from an Event")

    @property
    def reached(self) -> bool:
        """Whether the operation is known to be over. Does not poll: see `Queue.poll`."""
        return self.timeline.reached >= self.position

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TimelinePoint):
            return NotImplemented
        return self.timeline is (<TimelinePoint>other).timeline and self.position == (<TimelinePoint>other).position

    def __hash__(self) -> int:
        return hash((self.timeline, self.position))

    def __repr__(self):
        return f"<TimelinePoint {self.position} of {self.timeline!r}>"


cdef class Dependencies:
    """All that an operation comes after, through queues and wait lists.

    It contains every operation of an in-order queue up to a position, and single operations of an out-of-order queue.
    An operation that is known to be over is in every `Dependencies`.
    """

    def __init__(self) -> NoReturn:
        raise TypeError("a Dependencies comes from an Event or a Queue")

    def __contains__(self, TimelinePoint point not None) -> bool:
        return point.timeline.reached >= point.position or covers(self.latest, point.timeline, point.position)

    def __repr__(self):
        return f"<Dependencies of {len(self.latest)} points>"

    @property
    def positions(self) -> Mapping[object, int]:
        """Its contents, from which tests see how much it has grown."""
        return MappingProxyType(self.latest)


cdef object key_of(Timeline timeline, uint64_t position):
    return timeline if timeline.ordered else (timeline, position)


cdef bint covers(dict latest, Timeline timeline, uint64_t position):
    upto = latest.get(timeline)
    if upto is not None and upto >= position:
        return True
    return not timeline.ordered and (timeline, position) in latest


cdef dict merged(dict one, dict other):
    # What is over needs no entry, and so dependencies do not grow for ever.
    cdef dict result = {}
    for latest in (one, other):
        for key, position in latest.items():
            if not is_over(key, position) and result.get(key, 0) < position:
                result[key] = position
    return result


cdef bint is_over(object key, uint64_t position):
    cdef Timeline timeline = key if isinstance(key, Timeline) else (<tuple>key)[0]
    return timeline.reached >= position


cdef TimelinePoint point_at(Timeline timeline, uint64_t position):
    cdef TimelinePoint point = TimelinePoint.__new__(TimelinePoint)
    point.timeline = timeline
    point.position = position
    return point


cdef Dependencies dependencies_of(dict latest):
    cdef Dependencies dependencies = Dependencies.__new__(Dependencies)
    dependencies.latest = latest
    return dependencies
