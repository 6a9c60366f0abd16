# SPDX-License-Identifier: Apache-2.0
"""Many copies as one: thousands of blocks between pools of the host and of a device, in one call.

For <pinning/batch.hpp>, the caller's arguments are read into arrays of 64-bit words, or used in place if they are such
arrays already: a single batch pays for each object that it touches.
"""

cimport cython
from cpython.buffer cimport PyBUF_STRIDES, PyBuffer_Release, PyObject_GetBuffer
from cython.operator cimport dereference
from libc.stdint cimport int64_t, uint64_t
from libcpp.vector cimport vector

from pinning.copies.ends cimport End, is_foreign, out_of_reach, resolve_end
from pinning.copies.work cimport CopyOperation, NativeCopy
from pinning.locking.lock cimport map_of
from pinning.map.adapters cimport vendor_of
from pinning.map.native cimport CPinnedMap
from pinning.map.pinned_map cimport unlock_orphans
from pinning.plugin.native cimport CopyItem, VendorDevice, VendorQueue, raise_in_python
from pinning.queues.lane cimport Lane
from pinning.queues.staging cimport CopyLimits, limits_of
from pinning.queues.submitter cimport Submitter, events_of

from typing import TYPE_CHECKING

import numpy

from pinning.copies.batch_plan import how, plan_of_item, plan_of_parts
from pinning.copies.copy import resubmitted
from pinning.copies.costs import costs
from pinning.copies.direct import copy_async, explain
from pinning.copies.work import submit_native
from pinning.errors import ArgumentError, InvalidRangeError
from pinning.queues import Queue, default_queue
from pinning.queues.staging import staging_of
from pinning.runtime.arguments import byte_count, describe, integer

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from numpy.typing import NDArray

    from pinning.copies.batch_plan import BatchPlan, Engine
    from pinning.copies.work import Copy
    from pinning.locking.lock import Lock
    from pinning.queues import Event
    from pinning.runtime.buffers import Buffer

cdef extern from "<pinning/batch.hpp>" namespace "pinning" nogil:
    cppclass PartList:
        uint64_t size() noexcept
        uint64_t bytes() noexcept

    cppclass Parts:
        PartList by_kernel
        vector[CopyItem] by_engine
        vector[CopyItem] to_device
        vector[CopyItem] to_host
        vector[CopyItem] on_host
        uint64_t written
        uint64_t written_end

    uint64_t bytes_of(const vector[CopyItem]& parts) noexcept

    cppclass Span:
        uint64_t start
        uint64_t end

    cppclass Items:
        const uint64_t* dsts
        const uint64_t* srcs
        const uint64_t* sizes
        uint64_t size_step
        uint64_t count
        Span span() noexcept

    enum class CEngine "pinning::Engine":
        automatic
        copy
        kernel

    cppclass Batch(CopyOperation):
        Batch(CPinnedMap& map, VendorDevice& device, VendorQueue& queue, const Items& items, CEngine engine,
              const CopyLimits& limits) except +raise_in_python
        const Parts& parts() noexcept
        void check_mapped() except +raise_in_python
        uint64_t plain() noexcept

cdef dict ENGINES = {"auto": CEngine.automatic, "copy": CEngine.copy, "kernel": CEngine.kernel}
cdef uint64_t UNKNOWN = <uint64_t>-1  # the size of memory given by its address
cdef object ndarray = numpy.ndarray
cdef object INT64 = numpy.dtype("int64")
cdef object UINT64 = numpy.dtype("uint64")


def copy_batch_async(
    dsts: Sequence[Buffer | Lock] | NDArray[Any],
    srcs: Sequence[Buffer | Lock] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    engine: Engine = "auto",
) -> Copy:
    """Copy many ranges in a queue, as one operation; return when it is submitted.

    Item `i` is copied from ``srcs[i]`` to ``dsts[i]``. The batch starts when earlier work of the queue and `wait_for`
    are complete, and has one event. The order of items is not defined: if two write the same byte, either may be last,
    and an item that reads what another writes may see the old or the new bytes.

    Parameters
    ----------
    dsts, srcs : sequence of objects, or array of addresses
        Each like an end of `copy_async`; or, for many thousands of items, arrays of integers, shape (n,): addresses of
        host or device memory, which the caller keeps until the copy is complete.
    sizes : int or array of int, optional
        Bytes of every item, or of each, shape (n,). By default all of each buffer; needed with addresses.
    queue : Queue or object with ``__cuda_stream__``, optional
        By default the default queue of the device whose memory the first item uses.
    wait_for : iterable of Event
        Events that must complete first.
    engine : {"auto", "copy", "kernel"}
        What copies locked memory: the copy engines, with one descriptor per item; or a kernel on a few multiprocessors,
        which is far faster for items below about 64 KiB. ``"auto"`` uses the kernel for several small items, unless the
        queue's last kernel has waited for multiprocessors for longer than the engines take.

    Returns
    -------
    Copy
        Its `path` and `reason` tell how the parts were copied. One item is copied as by `copy_async`.

    Raises
    ------
    InvalidRangeError
        The numbers of items differ, or an item is empty, not a range of memory, read-only or larger than its buffer;
        the message names it, and nothing is copied.
    ArgumentError
        `engine` is invalid, or a buffer is memory of a device of another vendor than the queue's.
    PinningError
        `engine` asks for a kernel that the device does not have.
    VendorError
        The vendor refused. Parts submitted before are complete by then.

    Examples
    --------
    >>> parts = [numpy.full(100, each, "u1") for each in range(8)]
    >>> with pinning.Queue() as queue, pinning.alloc(800, "host", device=queue.device) as memory:
    ...     places = numpy.asarray(memory).reshape(8, 100)
    ...     pinning.copy_batch_async(list(places), parts, queue=queue).wait()
    ...     print(places[:, 0])
    ...     del places
    [0 1 2 3 4 5 6 7]
    """
    cdef CEngine chosen = engine_of(engine)
    check_counts(dsts, srcs)
    if len(dsts) == 1 and chosen != CEngine.kernel:
        return of_only_item(copy_async, dsts, srcs, sizes, (queue, wait_for))
    return submitted(wanted_of(dsts, srcs, sizes, queue, chosen), wait_for)


def copy_blocks_async(
    dst: Buffer | Lock,
    dst_indices: Sequence[int] | NDArray[Any],
    src: Buffer | Lock,
    src_indices: Sequence[int] | NDArray[Any],
    block_bytes: int,
    queue: Queue | object | None = None,
    wait_for: Iterable[Event] = (),
    engine: Engine = "auto",
) -> Copy:
    """Copy blocks of one pool to blocks of another: block ``src_indices[i]`` to ``dst_indices[i]``; as `copy_batch_async`.

    Parameters
    ----------
    dst, src : object
        The pools, each an end as in `copy_async` whose size is known; block `k` begins at byte
        ``k * block_bytes``.
    dst_indices, src_indices : sequence of int, or array, shape (n,)
        Block numbers, from 0. A destination that occurs twice gets either block.
    block_bytes : int
        Bytes of a block.
    queue, wait_for, engine
        As for `copy_batch_async`.

    Raises
    ------
    InvalidRangeError
        A block lies outside of its pool; the message names it. Otherwise as `copy_batch_async`.
    """
    cdef Wanted wanted = Wanted.__new__(Wanted)
    wanted.engine = engine_of(engine)
    wanted.queue = queue_of(queue)
    cdef uint64_t size = byte_count(block_bytes, "block_bytes")
    preferred = None if wanted.queue is None else wanted.queue.device
    cdef End to = resolve_end(dst, preferred)
    cdef End origin = resolve_end(src, preferred)
    if to.read_only:
        raise InvalidRangeError(f"dst at {to.ptr:#x} is read-only; copy into writable memory")
    wanted.dsts = blocks_of("dst", to, dst_indices, size)
    wanted.srcs = blocks_of("src", origin, src_indices, size)
    wanted.sizes = one_number(size)
    if wanted.dsts.count != wanted.srcs.count:
        raise InvalidRangeError(f"there are {wanted.dsts.count} dst_indices and {wanted.srcs.count} src_indices; "
                                "give as many of each")
    wanted.owners, wanted.bare = (to.owner, origin.owner), to.owner is None or origin.owner is None
    if wanted.queue is None:
        wanted.queue = default_queue(origin.device if to.device is None else to.device)
    check_vendors([end.device for end in (to, origin) if end.device is not None], wanted.queue)
    return submitted(wanted, wait_for)


def explain_batch(
    dsts: Sequence[Buffer | Lock] | NDArray[Any],
    srcs: Sequence[Buffer | Lock] | NDArray[Any],
    sizes: int | Sequence[int] | NDArray[Any] | None = None,
    queue: Queue | object | None = None,
    engine: Engine = "auto",
) -> BatchPlan:
    """How `copy_batch_async` would copy these now; nothing is copied. Raises the same errors as `copy_batch_async`.

    Parameters
    ----------
    dsts, srcs, sizes, queue, engine
        As for `copy_batch_async`.

    Returns
    -------
    BatchPlan
        How many parts and bytes are copied by which method, and why.
    """
    cdef CEngine chosen = engine_of(engine)
    check_counts(dsts, srcs)
    if len(dsts) == 1 and chosen != CEngine.kernel:
        return plan_of_item(of_only_item(explain, dsts, srcs, sizes, (queue,)))
    cdef BatchCopy work = planned(wanted_of(dsts, srcs, sizes, queue, chosen))
    cdef const Parts* parts = &work.batch.parts()
    sizes = (parts.by_kernel.bytes(), bytes_of(parts.by_engine), bytes_of(parts.to_device), bytes_of(parts.to_host),
             bytes_of(parts.on_host))
    return plan_of_parts(work.counts(), sizes)


def copy_rows_in_turn(
    End to not None,
    uint64_t dst_pitch,
    End origin not None,
    uint64_t src_pitch,
    uint64_t width,
    uint64_t height,
    Submitter queue not None: Queue,
    wait_for: Iterable[Event],
) -> Copy | None:
    """Copy rows of the host as a batch, whose sources are read when the queue reaches it.

    To a device, None if there is no need: nothing that is pending may write them, or the vendor's own copy reads no source
    before its turn. Within the host, a vendor may refuse rows that cross the border of a lock.
    """
    if to.device is not None and not (
        queue.reads_early() and queue.is_to_be_written(origin.ptr, src_pitch * (height - 1) + width, wait_for)
    ):
        return None
    cdef Wanted wanted = Wanted.__new__(Wanted)
    wanted.engine, wanted.queue, wanted.owners = CEngine.automatic, queue, (to.owner, origin.owner)
    wanted.dsts, wanted.srcs = starts_of_rows(to, dst_pitch, height), starts_of_rows(origin, src_pitch, height)
    wanted.sizes = one_number(width)
    return submitted(wanted, wait_for)


@cython.final
cdef class Words:
    """Addresses, sizes or numbers of blocks; of a list of buffers also their sizes, owners and devices."""

    cdef Py_buffer view  # of an array that has them in the form needed
    cdef vector[uint64_t] own
    cdef const uint64_t* data
    cdef uint64_t count
    cdef vector[uint64_t] known, room  # bytes of each buffer, and from each address to the end of its allocation
    cdef list owners, devices

    def __dealloc__(self):
        PyBuffer_Release(&self.view)

    cdef Words made(self):
        self.data, self.count = self.own.data(), self.own.size()
        return self


@cython.final
cdef class Wanted:
    """A batch as requested: addresses, and one size for all items or one for each."""

    cdef Words dsts, srcs, sizes
    cdef tuple owners
    cdef Submitter queue
    cdef CEngine engine
    cdef bint bare  # whether addresses are given, of memory that nothing keeps

    cdef Items items(self):
        cdef Items items
        items.dsts, items.srcs, items.sizes = self.dsts.data, self.srcs.data, self.sizes.data
        items.count, items.size_step = self.dsts.count, self.sizes.count == self.dsts.count
        return items

    cdef tuple span(self):
        """The start and the size of a range that contains all sources and destinations."""
        cdef Span span = self.items().span()
        return span.start, span.end - span.start


@cython.final
@cython.no_gc_clear
cdef class BatchCopy(NativeCopy):
    """A batch, as it is planned now."""

    cdef Batch* batch  # the same as `operation`

    cdef tuple counts(self):
        """Numbers of parts copied by the kernel, by the engines, from and into pageable memory, and within the host."""
        cdef const Parts* parts = &self.batch.parts()
        return (parts.by_kernel.size(), parts.by_engine.size(), parts.to_device.size(), parts.to_host.size(),
                parts.on_host.size())


cdef BatchCopy planned(Wanted wanted):
    cdef BatchCopy work = BatchCopy.__new__(BatchCopy)
    cdef Items items = wanted.items()
    cdef CopyLimits limits = limits_of(costs)
    cdef object device = wanted.queue.device
    cdef VendorDevice* vendor = vendor_of(device)
    cdef VendorQueue* queue = (<Lane>wanted.queue.lanes[0]).queue
    work.map, work.staging, work.owners = map_of(device), staging_of(device), wanted.owners
    try:
        with nogil:
            work.batch = new Batch(dereference(work.map.map), dereference(vendor), dereference(queue), items, wanted.engine,
                                   limits)
    finally:
        unlock_orphans()
    work.native = work.operation = work.batch
    if wanted.bare:
        with nogil:
            work.batch.check_mapped()
    return work


cdef object submitted(Wanted wanted, object wait_for):
    cdef tuple waits = events_of(wait_for)

    def attempt():
        cdef BatchCopy work = planned(wanted)
        copy = submit_native(wanted.queue, work, waits)
        copy.path, copy.reason = how(work.counts(), work.batch.plain())
        return copy

    return resubmitted(attempt, wanted.queue.device, lambda: wanted.span())


# ---- the caller's arguments ----


cdef CEngine engine_of(object engine) except *:
    if isinstance(engine, str) and engine in ENGINES:
        return ENGINES[engine]
    raise ArgumentError(f"engine is {describe(engine)}; it must be 'auto', 'copy' or 'kernel'")


cdef Submitter queue_of(object queue):
    return queue if queue is None or isinstance(queue, Queue) else Queue.adopt(queue)


cdef int check_counts(object dsts, object srcs) except -1:
    for name, ends in (("dsts", dsts), ("srcs", srcs)):
        if not hasattr(ends, "__len__"):
            raise TypeError(f"{name} is {describe(ends)}; it must be a sequence of ends, or an array of addresses")
    if len(dsts) != len(srcs):
        raise InvalidRangeError(f"there are {len(dsts)} dsts and {len(srcs)} srcs; a batch needs one of each per item")
    if len(dsts) == 0:
        raise InvalidRangeError("the batch has no items; give at least one dst and one src")
    return 0


cdef object of_only_item(object function, object dsts, object srcs, object sizes, tuple more):
    """Call a function for one copy with the only item; its errors name the item."""
    dst = addresses_of(dsts, "dsts").data[0] if isinstance(dsts, ndarray) else dsts[0]
    src = addresses_of(srcs, "srcs").data[0] if isinstance(srcs, ndarray) else srcs[0]
    size = sizes if sizes is None or isinstance(sizes, int) else given_sizes(sizes, 1).data[0]
    try:
        return function(dst, src, size, *more)
    except (InvalidRangeError, TypeError) as error:
        said = str(error).replace("nbytes", "sizes")  # the name of that argument here
        raise type(error)(f"item 0 of the batch: {said}") from None


cdef Wanted wanted_of(object dsts, object srcs, object sizes, object queue, CEngine engine):
    cdef Wanted wanted = Wanted.__new__(Wanted)
    wanted.engine = engine
    wanted.queue = queue_of(queue)
    preferred = None if wanted.queue is None else wanted.queue.device
    wanted.dsts, wanted.srcs = side_of("dst", dsts, preferred), side_of("src", srcs, preferred)
    wanted.sizes = sizes_of(sizes, wanted.dsts, wanted.srcs)
    wanted.owners = (*wanted.dsts.owners, *wanted.srcs.owners)
    wanted.bare = len(wanted.owners) < wanted.dsts.count + wanted.srcs.count
    if wanted.queue is None:
        first = first_device(wanted.dsts)
        wanted.queue = default_queue(first_device(wanted.srcs) if first is None else first)
    check_vendors(wanted.dsts.devices + wanted.srcs.devices, wanted.queue)
    return wanted


cdef object first_device(Words side):
    if side.known.empty():
        return resolve_end(side.data[0], None).device
    return side.devices[0] if side.devices else None


cdef int check_vendors(list devices, Submitter queue) except -1:
    for device in devices:
        if is_foreign(device, queue):
            raise out_of_reach(device, queue)
    return 0


cdef Words side_of(str name, object ends, object preferred):
    cdef Words side
    cdef End end
    cdef uint64_t size
    if isinstance(ends, ndarray):
        side = addresses_of(ends, f"{name}s")
        side.owners, side.devices = [], []
        return side
    side = Words.__new__(Words)
    side.owners, side.devices = [], []
    for i, buffer in enumerate(ends):
        try:
            end = resolve_end(buffer, preferred)
        except (InvalidRangeError, TypeError) as error:
            raise type(error)(f"item {i} of the batch: {name}: {error}") from None
        if end.read_only and name == "dst":
            raise InvalidRangeError(f"item {i} of the batch: dst at {end.ptr:#x} is read-only")
        size = end.bytes if end.bytes else UNKNOWN
        side.own.push_back(end.ptr)
        side.known.push_back(size)
        side.room.push_back(end.room if end.room else UNKNOWN)
        if end.owner is not None:
            side.owners.append(end.owner)
        if end.device is not None and end.device not in side.devices:
            side.devices.append(end.device)
    return side.made()


cdef Words sizes_of(object sizes, Words to, Words origin):
    """One size for all items, or one for each, checked against the buffers of both sides."""
    cdef Words found = Words.__new__(Words) if sizes is None else given_sizes(sizes, to.count)
    cdef uint64_t i, room, other, size
    for i in range(to.count if sizes is None or not (to.known.empty() and origin.known.empty()) else 0):
        room = UNKNOWN if to.known.empty() else to.known[i]
        other = UNKNOWN if origin.known.empty() else origin.known[i]
        if sizes is None:
            if room != other and room != UNKNOWN and other != UNKNOWN:
                raise InvalidRangeError(f"item {i} of the batch: dst has {room} bytes and src {other}; give sizes to copy a part")
            if room == UNKNOWN and other == UNKNOWN:
                raise InvalidRangeError(f"item {i} of the batch: an address does not say how many bytes it has: give sizes")
            size = min(room, other)
            found.own.push_back(size)
        else:
            size = found.data[i % found.count]
            if size > min(room, other):
                raise InvalidRangeError(f"item {i} of the batch: its size is {size}, and a buffer of it has {min(room, other)} bytes")
        room = UNKNOWN if to.room.empty() else to.room[i]
        other = UNKNOWN if origin.room.empty() else origin.room[i]
        if size > min(room, other):
            raise InvalidRangeError(f"item {i} of the batch: its size is {size}, and the allocation around an address of it ends "
                                    f"after {min(room, other)} bytes")
    return found.made() if sizes is None else found


cdef Words given_sizes(object sizes, uint64_t items):
    if isinstance(sizes, (str, bytes)) or not getattr(sizes, "ndim", hasattr(sizes, "__len__")):
        return one_number(byte_count(sizes, "sizes"))
    found = words_of(sizes, "sizes")
    if found.count != items:
        raise InvalidRangeError(f"there are {found.count} sizes for {items} items; give one, or one for each")
    return found


cdef Words one_number(uint64_t number):
    cdef Words words = Words.__new__(Words)
    words.own.push_back(number)
    return words.made()


cdef Words blocks_of(str name, End pool, object indices, uint64_t block_bytes):
    """The addresses of the blocks with these numbers."""
    cdef Words numbers = words_of(indices, f"{name}_indices")
    cdef Words found = Words.__new__(Words)
    cdef uint64_t blocks = pool.bytes // block_bytes, i
    if not pool.bytes:
        raise InvalidRangeError(f"{name} is an address, which does not say how many blocks it has: give a buffer")
    found.own.resize(numbers.count)
    for i in range(numbers.count):
        if numbers.data[i] >= blocks:
            raise InvalidRangeError(f"item {i} of the batch: {name} has no block {numbers.data[i]}; its {pool.bytes} bytes are "
                                    f"{blocks} blocks of {block_bytes}")
        found.own[i] = pool.ptr + numbers.data[i] * block_bytes
    return found.made()


cdef Words starts_of_rows(End end, uint64_t pitch, uint64_t height):
    cdef Words found = Words.__new__(Words)
    cdef uint64_t row
    for row in range(height):
        found.own.push_back(end.ptr + row * pitch)
    return found.made()


cdef Words addresses_of(object values, str name):
    if values.dtype.itemsize != sizeof(uint64_t):
        raise TypeError(f"{name} is an array of {values.dtype}; addresses have 64 bits, and a buffer is an item of a list")
    return words_of(values, name)


cdef Words words_of(object values, str name):
    """Convert a sequence or an array to 64-bit words, at least one."""
    cdef Words words = Words.__new__(Words)
    cdef uint64_t i
    if isinstance(values, (list, tuple, range)):
        for value in values:
            if type(value) is not int:
                value = integer(value, f"item {words.own.size()} of {name}", "at least 0 and below 2**64")
            try:
                words.own.push_back(value)
            except OverflowError:
                raise no_word(words.own.size(), value, name) from None
        words.made()
    else:
        if type(values) is not ndarray or not (values.dtype is INT64 or values.dtype is UINT64) or values.ndim != 1:
            values = array_of(values, name)
        PyObject_GetBuffer(values, &words.view, PyBUF_STRIDES)
        if words.view.strides[0] != sizeof(uint64_t):
            PyBuffer_Release(&words.view)
            PyObject_GetBuffer(values.copy(), &words.view, PyBUF_STRIDES)
        words.data, words.count = <const uint64_t*>words.view.buf, words.view.shape[0]
        for i in range(words.count if values.dtype is INT64 else 0):
            if <int64_t>words.data[i] < 0:
                raise no_word(i, <int64_t>words.data[i], name)
    if words.count == 0:
        raise InvalidRangeError(f"{name} is empty: the batch has no items; give at least one")
    return words


cdef object array_of(object values, str name):
    try:
        given = numpy.asarray(values)
    except ValueError:  # nested sequences of different lengths
        given = numpy.empty((1, 1), object)
    if given.ndim != 1 or (given.size and given.dtype.kind not in "iu"):
        what = describe(values) if given.dtype == object else f"{given.dtype} of shape {given.shape}"
        raise TypeError(f"{name} is {what}; it must be whole numbers in one dimension")
    return given.astype(UINT64 if given.dtype.kind == "u" else INT64)


cdef object no_word(uint64_t item, object value, str name):
    why = "is negative" if value < 0 else "is not in [0, 2**64)"
    return InvalidRangeError(f"item {item} of the batch: {describe(value)} in {name} {why}")
