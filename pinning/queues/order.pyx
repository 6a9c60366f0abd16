# SPDX-License-Identifier: Apache-2.0
# distutils: language = c++
# cython: language_level=3
"""What depends on what."""

from types import MappingProxyType


cdef class Line:
    """The operations of one in-order lane of a vendor, by position: 1, 2, 3 and so on.

    Attributes
    ----------
    reached : int
        The last position that is known to be over. It only grows.
    ordered : bool
        Whether each operation comes after all before it. In the lanes of an out-of-order queue they happen to run so,
        and nobody may rely on it.
    """

    def __init__(self, bint ordered):
        self.ordered = ordered

    def __repr__(self):
        return f"<Line, {'in' if self.ordered else 'out of'} order, over up to {self.reached}>"

    cdef void reach(self, uint64_t position) noexcept:
        if position > self.reached:
            self.reached = position


cdef class Point:
    """Where an operation stands: what is left of an `Event` for those who must know later whether it is over.

    It holds neither the event nor the queue, and costs the vendor nothing.

    Attributes
    ----------
    line : Line
        The operations among which it stands.
    position : int
        Which of them it is: 1 for the first.
    """

    def __init__(self):
        raise TypeError("a Point is had from an Event")

    @property
    def reached(self):
        """Whether the operation is known to be over. Asks nobody: see `Queue.poll`."""
        return self.line.reached >= self.position

    def __eq__(self, other):
        if not isinstance(other, Point):
            return NotImplemented
        return self.line is (<Point>other).line and self.position == (<Point>other).position

    def __hash__(self):
        return hash((self.line, self.position))

    def __repr__(self):
        return f"<Point {self.position} of {self.line!r}>"


cdef class History:
    """All that an operation comes after, through queues and wait lists.

    Of an in-order queue it has every operation up to a position; of an out-of-order queue single ones. What is known
    to be over is in every history.
    """

    def __init__(self):
        raise TypeError("a History is had from an Event or a Queue")

    def __contains__(self, Point point not None):
        return point.line.reached >= point.position or covers(self.found, point.line, point.position)

    def __repr__(self):
        return f"<History of {len(self.found)} points>"

    @property
    def positions(self):
        """What it is made of, to be looked at by tests: how much it has grown."""
        return MappingProxyType(self.found)


cdef object key_of(Line line, uint64_t position):
    return line if line.ordered else (line, position)


cdef bint covers(dict found, Line line, uint64_t position):
    upto = found.get(line)
    if upto is not None and upto >= position:
        return True
    return not line.ordered and (line, position) in found


cdef dict merged(dict one, dict other):
    # What is over needs no entry, and so histories do not grow for ever.
    cdef dict result = {}
    for found in (one, other):
        for key, position in found.items():
            if not is_over(key, position) and result.get(key, 0) < position:
                result[key] = position
    return result


cdef bint is_over(object key, uint64_t position):
    cdef Line line = key if isinstance(key, Line) else (<tuple>key)[0]
    return line.reached >= position


cdef Point point_at(Line line, uint64_t position):
    cdef Point point = Point.__new__(Point)
    point.line = line
    point.position = position
    return point


cdef History history_of(dict found):
    cdef History history = History.__new__(History)
    history.found = found
    return history
