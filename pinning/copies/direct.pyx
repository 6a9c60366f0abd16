# SPDX-License-Identifier: Apache-2.0
"""Copies and fills.

The common copy is one vendor call, and the steps around it, here, cost less than that call. <pinning/copy_plan.hpp>
plans all other copies.
"""

cimport cython
from cpython.object cimport PyObject
from cpython.weakref cimport PyWeakref_GetObject
from cython.operator cimport dereference
from libc.stdint cimport uint64_t
from libcpp.optional cimport optional

from pinning.copies.ends cimport End, refuse_other_order, resolve_end
from pinning.copies.work cimport Copy, DirectCopy, DirectFill, count_bytes, way_direct, way_plain
from pinning.interop.memory_of cimport kind_of
from pinning.locking.lock cimport map_of
from pinning.map.native cimport CRegion
from pinning.map.pinned_map cimport Hold, PinnedMap
from pinning.memory.allocation cimport Allocation
from pinning.plugin.native cimport Coherence
from pinning.queues.event cimport Event
from pinning.queues.lane cimport Lane, begin_submission, end_submission
from pinning.queues.submitter cimport Submitter, events_of

from functools import partial
from mmap import PAGESIZE
from numbers import Integral, Real
from typing import TYPE_CHECKING

from pinning.copies import links
from pinning.copies.copy import check_addresses, copy_planned, explain_copy, resubmitted
from pinning.copies.costs import costs
from pinning.copies.links import copy_divided, copy_in_rounds, explained, ways_of
from pinning.copies.plan import CopyPath, too_small
from pinning.errors import ArgumentError, InvalidRangeError, VendorError
from pinning.locking.devices import default_device
from pinning.plugin import host_work
from pinning.queues import Queue, default_queue
from pinning.queues.queue import default_queues
from pinning.runtime.arguments import describe, integer

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal, SupportsIndex

    from pinning.copies.plan import Plan
    from pinning.locking.lock import Lock
    from pinning.runtime.buffers import Buffer

cdef extern from "<sys/mman.h>":
    int MS_ASYNC
    int msync(void* start, size_t size, int flags) noexcept nogil

cdef extern from "Python.h":
    PyObject* PyDict_GetItem(object dictionary, object key)

cdef enum:
    MIB = 1 << 20  # less is never divided between links

cdef uint64_t PAGE = PAGESIZE
cdef dict defaults = default_queues  # weak references
cdef object DIRECT = CopyPath.DIRECT
cdef object PLAIN = CopyPath.PLAIN
cdef str LOCKED = "the host's memory is locked"
cdef object last_name = None  # of a device
cdef str last_reason = None


def copy_async(
    dst: Buffer | Lock,
    src: Buffer | Lock,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    *,
    src_access_order: Literal["stream", "any"] = "stream",
) -> Copy:
    """Copy bytes in a queue; return when the copy is submitted.

    The memory of both ends is kept alive until the copy is complete. Later work in the queue sees the data. A copy on
    the path ``"plain"`` blocks the caller while the vendor reads or writes pageable memory.

    Parameters
    ----------
    dst, src : object
        Each an `Allocation`, a `Lock` that is held, anything that `pinning.lock` takes and whose bytes are contiguous,
        an object with ``__cuda_array_interface__`` or DLPack's C exchange API, such as a torch tensor, or an address of
        host or device memory (with `nbytes`).
    nbytes : int, optional
        By default all bytes; both ends must then have the same size.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device whose memory is an end.
    wait_for : iterable of Event, optional
        Events that must complete first.
    src_access_order : {"stream", "any"}
        When the source may be read, as in CUDA. ``"stream"``: when the queue reaches the copy, or earlier if pending
        work of the queue cannot write the source. ``"any"``: immediately, because nothing pending writes the source;
        this lets consecutive copies of pageable memory overlap.

    Raises
    ------
    TypeError
        An end is not a buffer, or its bytes are references to Python objects, even if it is a `Lock`.
    InvalidRangeError
        The sizes differ, or the orders of two arrays' elements; or an end is too small, read-only or not contiguous.
    ArgumentError
        An end is memory of a device of another vendor than the queue's.
    VendorError
        The vendor refused. Later failures are reported by the `Copy`.

    Examples
    --------
    >>> array = numpy.arange(1000.0)
    >>> with pinning.Queue() as queue, pinning.alloc(8000, device=queue.device) as memory, pinning.lock(array):
    ...     copied = pinning.copy_async(memory, array, queue=queue)
    ...     copied.wait()
    ...     print(copied.path, "because", copied.reason)
    direct because ...
    """
    return submitted(dst, src, nbytes, queue, wait_for, src_access_order, False)


cdef Copy submitted(object dst, object src, object nbytes, object queue, object wait_for, object src_access_order,
                    bint waited):
    """As `copy_async`; `waited`: the caller waits for the copy, so it may be submitted bit by bit."""
    cdef Submitter submitter = None if queue is None else queue_of(queue)
    cdef object preferred = None if submitter is None else submitter.device
    cdef End to = resolve_end(dst, preferred)
    cdef End origin = resolve_end(src, preferred)
    cdef uint64_t size = copied_size(dst, src, to, origin, nbytes)
    if src_access_order != "stream" and src_access_order != "any":
        raise ArgumentError(f"src_access_order is {describe(src_access_order)}; it must be 'stream' or 'any'")
    if submitter is None:
        submitter = default_of(to, origin)
    else:
        check_reach(to, origin, submitter)
    if size >= MIB and (to.device is None) is not (origin.device is None):
        wait_for = events_of(wait_for)  # iterated once more if the copy is not divided
        over = over_links(to, origin, size, submitter, wait_for, src_access_order == "any", waited)
        if over is not None:
            return over
    cdef Copy copy = Copy.__new__(Copy)
    cdef DirectCopy work = recognised(to, origin, size, submitter, copy)
    if work is not None and not work.pageable:
        submitter.enqueue(copy, work, wait_for, ())
        count_bytes(way_direct, size)
        return copy
    if work is not None:
        check_mapped(to if to.device is None else origin, size)
    wait_for = events_of(wait_for)
    early, in_turn = reading_of(origin, size, submitter, wait_for, src_access_order == "any")
    if work is not None and not in_turn and submitted_plain(copy, work, size, submitter, wait_for):
        return copy
    return copy_planned(to, origin, size, submitter, wait_for, early, in_turn)


def copy(
    dst: Buffer | Lock, src: Buffer | Lock, nbytes: int | None = None, queue: Queue | object | None = None
) -> Copy:
    """`copy_async`, and wait until it is complete.

    All bytes are then in `dst`: work of any stream, thread or device finds them, also work that no event orders behind
    the copy.

    Parameters
    ----------
    dst, src, nbytes, queue
        As for `copy_async`, including the errors.

    Returns
    -------
    Copy
        The completed copy.

    Examples
    --------
    >>> array, back = numpy.arange(1000.0), numpy.empty(1000)
    >>> with pinning.alloc(8000) as memory:
    ...     there = pinning.copy(memory, array)
    ...     home = pinning.copy(back, memory)
    >>> (back == array).all()
    np.True_
    """
    cdef Event done = submitted(dst, src, nbytes, queue, (), "stream", True)
    done.wait()
    return done


def explain(
    dst: Buffer | Lock, src: Buffer | Lock, nbytes: int | None = None, queue: Queue | object | None = None
) -> Plan:
    """Which path `copy_async` would take now, and why; nothing is copied. Raises the same errors as `copy_async`.

    Parameters
    ----------
    dst, src, nbytes, queue
        As for `copy_async`.

    Returns
    -------
    Plan
        Its `path` and `reason`, and the `steps` of which it is made.

    Examples
    --------
    >>> array = numpy.ones(1000)
    >>> with pinning.alloc(8000) as memory, pinning.lock(array):
    ...     print(pinning.explain(memory, array).path)
    direct
    """
    cdef Submitter submitter = None if queue is None else queue_of(queue)
    cdef object preferred = None if submitter is None else submitter.device
    cdef End to = resolve_end(dst, preferred)
    cdef End origin = resolve_end(src, preferred)
    size = copied_size(dst, src, to, origin, nbytes)
    if submitter is None:
        submitter = default_of(to, origin)
    else:
        check_reach(to, origin, submitter)
    plan = explain_copy(to, origin, size, submitter)
    return explained(plan, size, submitter)


cdef int check_reach(End to, End origin, Submitter queue) except -1:
    """As `End.check_reach`, for both; memory of two devices may go through the host, which the plan says."""
    if to.device is None or origin.device is None or to.device is origin.device:
        to.check_reach(queue)
        origin.check_reach(queue)
    return 0


cdef (bint, bint) reading_of(End origin, uint64_t size, Submitter submitter, tuple wait_for, bint early) except *:
    """`early` and `in_turn`, as for `RangeCopy`; given whether the caller lets the source be read at once."""
    cdef bint written = not early and origin.device is None and submitter.is_to_be_written(origin.ptr, size, wait_for)
    cdef bint in_turn = written and submitter.reads_early()
    early = early or not written and not submitter.is_shared()
    return early, in_turn


cdef Copy over_links(End to, End origin, uint64_t size, Submitter submitter, tuple wait_for, bint early, bint waited):
    """Submit a copy over several links; None if it is to use only one."""
    cdef tuple ways = ways_of(submitter) if size >= links.DIVIDED_FROM else ()
    if not ways:
        return None
    early, in_turn = reading_of(origin, size, submitter, wait_for, early)
    cdef End host = to if to.device is None else origin
    copies = copy_in_rounds if waited else partial(copy_divided, ways=ways)
    cdef tuple used = (to.owner, origin.owner)
    begin_submission(used)
    try:
        return resubmitted(lambda: copies(to, origin, size, submitter, wait_for, early, in_turn), submitter.device,
                           lambda: (host.ptr, size))
    finally:
        end_submission(used)


cdef bint submitted_plain(Copy copy, DirectCopy work, uint64_t size, Submitter submitter, tuple wait_for) except -1:
    """Submit a pageable copy; False if a part has been locked since, across whose border no vendor copies."""
    cdef End host = work.origin if work.origin.device is None else work.to
    try:
        submitter.enqueue(copy, work, wait_for, ())
    except VendorError:
        if not map_of(submitter.device)._changed_since(work.changes, host.ptr, size):
            raise
        return False
    count_bytes(way_plain, size)
    return True


cdef int check_mapped(End host, uint64_t size) except -1:
    """As `check_addresses`, in a third of a microsecond."""
    cdef uint64_t start = host.ptr & -PAGE
    if host.owner is None and msync(<void*>start, host.ptr - start + size, MS_ASYNC) != 0:
        check_addresses((host, size))
    return 0


cdef DirectCopy recognised(End to, End origin, uint64_t size, Submitter submitter, Copy copy):
    """A copy that is one vendor call, with its path and reason set in `copy`; None for all that must be planned."""
    global last_name, last_reason
    cdef End host
    cdef Hold hold = None
    cdef PinnedMap map
    cdef DirectCopy work
    cdef uint64_t changes
    cdef optional[CRegion] region
    if to.device is None:
        if origin.device is None:
            return None
        host = to
    elif origin.device is None:
        host = origin
    elif to.device is origin.device:
        name = to.device.name
        if name is not last_name:
            last_reason = f"both ends are memory of {name}"
            last_name = name
        copy.path, copy.reason = DIRECT, last_reason
        return direct_copy(to, origin, size, None)
    else:
        return None
    if size >= (<Lane>submitter.lanes[0]).queue.turn_bytes():
        return None
    map = map_of(submitter.device)
    changes = map.map.changes()  # before the lookup
    region = map.map.find_registered(host.ptr, size)  # also idle: the vendor sees that as locked and would not wait
    if region.has_value():
        if not dereference(region).in_one_piece(host.ptr, size):
            return None
        if dereference(region).external and not dereference(region).registered:
            return None
        # An allocation is not freed while a queue keeps it, and nothing else removes its region.
        if not (dereference(region).registered and isinstance(host.owner, Allocation)):
            hold = Hold.__new__(Hold)
            if not hold.try_take(map, host.ptr, size, Coherence.unknown):
                return None  # it was unlocked just now
        copy.path, copy.reason = DIRECT, LOCKED
        return direct_copy(to, origin, size, hold)
    if map.map.any_invalidated():
        return None
    if size >= <uint64_t>costs.stage_from(host is origin) or map.map.has_any(host.ptr, size):
        return None
    copy.path, copy.reason = PLAIN, too_small(host is origin)
    work = direct_copy(to, origin, size, None)
    work.changes, work.pageable = changes, True
    return work


cdef DirectCopy direct_copy(End to, End origin, uint64_t size, Hold hold):
    cdef DirectCopy work = DirectCopy.__new__(DirectCopy)
    work.to, work.origin, work.hold = to, origin, hold
    work.owners = (to.owner, origin.owner)
    work.call.set(to.ptr, origin.ptr, size)
    return work


def fill_async(
    dst: Buffer | Lock,
    value: SupportsIndex | bytes,
    nbytes: int | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
) -> Event:
    """Fill memory of a device or of the host with a value, in a queue; return when that is submitted.

    Parameters
    ----------
    dst : object
        As in `copy_async`.
    value : int or bytes
        A byte, as an integer (also NumPy's) between 0 and 255; or 1, 2 or 4 bytes that are repeated.
    nbytes : int, optional
        A multiple of the value's length; all of `dst` by default.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device whose memory it is.
    wait_for : iterable of Event
        Events that must complete first.

    Raises
    ------
    InvalidRangeError
        The value is not a byte, has another length, or does not fit a whole number of times; or memory of a device begins
        at no multiple of its length.
    ArgumentError
        It is memory of a device of another vendor than the queue's.
    TypeError
        It is a float.
    """
    pattern = pattern_of(value)
    cdef unsigned width = len(pattern)
    cdef Submitter submitter = None if queue is None else queue_of(queue)
    cdef End to = resolve_end(dst, None if submitter is None else submitter.device)
    if to.read_only:
        raise read_only(to)
    cdef uint64_t size = size_between(to, to, nbytes)
    if size % width:
        raise InvalidRangeError(f"nbytes is {size}; it must be a multiple of the value's {width} bytes")
    if submitter is None:
        submitter = default_of(to, to)
    else:
        to.check_reach(submitter)
    if to.device is None:
        check_addresses((to, size))
        return submitter._call(lambda: host_work.fill(to.ptr, pattern, size // width), wait_for, (to.owner,))
    if to.ptr % width:
        raise InvalidRangeError(f"dst begins at {to.ptr:#x}; a device fills from a multiple of the value's {width} bytes on")
    cdef DirectFill work = DirectFill.__new__(DirectFill)
    work.to, work.owners = to, (to.owner,)
    work.call.set(to.ptr, int.from_bytes(pattern, "little"), width, size // width)
    return submitter.enqueue(Event.__new__(Event), work, wait_for, ())


cdef bytes pattern_of(object value):
    if type(value) is bool:
        raise TypeError(f"the value is {value}; give a byte, such as 1")
    if type(value) is int or isinstance(value, Integral):  # NumPy's too
        if not 0 <= value <= 255:
            raise InvalidRangeError(f"the value {value} is not a byte; it must lie between 0 and 255, or be given as bytes")
        return bytes((value,))
    if isinstance(value, Real) or not kind_of(value).buffer:  # NumPy's floats are buffers
        raise TypeError(
            f"{describe(value)} is not a byte; give an integer between 0 and 255, or the 1, 2 or 4 bytes to repeat"
        )
    pattern = bytes(value)
    if len(pattern) not in (1, 2, 4):
        raise InvalidRangeError(f"the value has {len(pattern)} bytes; it must have 1, 2 or 4")
    return pattern


# ---- shared by copies and fills ----


cdef uint64_t copied_size(object dst, object src, End to, End origin, object nbytes) except 0:
    """The bytes of a copy, of which all that does not depend on its queue is checked."""
    cdef uint64_t size = size_between(to, origin, nbytes)
    if to.read_only:
        raise read_only(to)
    if to.transposed != origin.transposed and nbytes is None:
        refuse_other_order(dst, src, to)
    return size


cdef uint64_t size_between(End to, End origin, object nbytes) except 0:
    cdef uint64_t least = to.bytes if to.bytes and (to.bytes < origin.bytes or not origin.bytes) else origin.bytes
    if nbytes is None:
        if not least:
            raise InvalidRangeError("an address does not say how many bytes it has: give nbytes")
        if to.bytes and origin.bytes and to.bytes != origin.bytes:
            raise InvalidRangeError(f"dst has {to.bytes} bytes and src {origin.bytes}; give nbytes to copy a part")
        to.check_room(least)
        origin.check_room(least)
        return least
    if type(nbytes) is not int:
        nbytes = integer(nbytes, "nbytes")
    if nbytes <= 0 or (least and nbytes > least) or nbytes >= 1 << 63:
        raise InvalidRangeError(f"nbytes is {nbytes}; it must lie between 1 and {least or '2**63 - 1'}")
    cdef uint64_t size = nbytes
    cdef uint64_t ptr = max(to.ptr, origin.ptr)
    if ptr + (size - 1) < ptr:
        raise InvalidRangeError(f"{size} bytes at {ptr:#x} run past the top of the address space")
    to.check_room(size)
    origin.check_room(size)
    return size


cdef read_only(End to):
    return InvalidRangeError(f"dst at {to.ptr:#x} is read-only; copy into writable memory")


cdef Submitter queue_of(object queue):
    cdef Submitter given = queue if isinstance(queue, Queue) else Queue.adopt(queue)
    given.check()  # one of a subclass that has not called __init__ has no lanes
    return given


cdef Submitter default_of(End to, End origin):
    """`default_queue`, without asking whether the device has queues every time."""
    device = to.device if to.device is not None else origin.device
    if device is None:
        device = default_device()
    cdef PyObject* queue = PyDict_GetItem(defaults, <uint64_t><void*>device)
    if queue is not NULL:
        queue = PyWeakref_GetObject(<object>queue)
        if queue is not <PyObject*>None and (<Submitter>queue).is_usable():
            return <Submitter>queue
    return default_queue(device)
