# SPDX-License-Identifier: Apache-2.0
# cython: nonecheck=True
"""Locks that are taken in the background.

Each map with pending locks has one thread, which takes them one after another; a vendor locks no faster with two. State
is changed in C while the GIL is held, so neither another thread nor Ctrl-C can come between.
"""

cimport cython
from libc.stdint cimport uint64_t
from libcpp.optional cimport optional

from pinning.interop.memory_of cimport Bytes
from pinning.locking.lock cimport (
    Call, Lock, Pace, check_anew, description_of, is_decided, map_of, pace_of, show, this_call, unlocked, warn_of_drop,
)
from pinning.map.pinned_map cimport PinnedMap, lock_options
from pinning.plugin.native cimport LockOptions
from pinning.runtime.process cimport generation, is_parents, keep_for_ever

import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from pinning.errors import InvalidRangeError, PinningError
from pinning.machine.populate import Populating, is_resident
from pinning.runtime.arguments import integer, seconds
from pinning.runtime.handles import refuse_copy
from pinning.runtime.process import at_exit, start_thread

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator
    from types import TracebackType
    from typing import Any, overload

    from pinning.plugin import Device, LockDevice
    from pinning.runtime.buffers import Buffer

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

cdef double SLICE = 0.05  # seconds between two checks for signals
cdef double EXIT_SECONDS = 60

cdef dict workers = {}  # those that have a thread, by map
cdef unsigned made_in = generation()  # of `workers`


@cython.no_gc_clear
cdef class Job:
    """One lock to take, shared by the thread and the PendingLock."""
    cdef Lock lock
    cdef PinnedMap pinned_map
    cdef Pace pace
    cdef tuple description
    cdef LockOptions options
    cdef unsigned made_in
    cdef bint unwanted, over, unlisted
    cdef dict how  # its pages are populated: arguments of Populating
    cdef object error
    cdef uint64_t left  # serial of the region that it has left half unlocked, or 0
    cdef list listeners  # called once it is over
    cdef object __weakref__

    def __dealloc__(self):
        if self.pace is not None and self.is_parents():
            self.pace.pieces = NULL  # leaked: destroying it would wait for its waiters, threads that do not exist here

    cdef bint is_parents(self) noexcept:
        """Whether this is a forked child: the thread does not exist here."""
        return is_parents(self.made_in)

    cdef run(self):
        try:
            if not self.unwanted:
                self.take()
            if self.unwanted:
                self.lock.release()
        except BaseException as error:
            self.error = error
            self.left = self.pinned_map.map.half_unlocked_at(self.lock.ptr)
        self.finish()

    cdef take(self):
        cdef Lock lock = self.lock
        cdef uint64_t ptr = lock.ptr, size = lock.size
        if not lock.try_take(self.pinned_map, ptr, size, self.options.coherence):
            self.take_anew(ptr, size)
            show(lock, self.description)
        if not self.unlisted:
            lock.enter()

    cdef take_anew(self, uint64_t ptr, uint64_t size):
        cdef PinnedMap pinned_map = self.pinned_map
        pinned_map.check_open()
        if is_decided(ptr, size, pinned_map):
            self.lock.take_in_pieces(pinned_map, ptr, size, self.options, self.pace.pieces)
            return
        resident = is_resident(ptr, size)
        if not check_anew(ptr, size, pinned_map, resident) or resident:
            self.lock.take_in_pieces(pinned_map, ptr, size, self.options, self.pace.pieces)
            return
        self.pace.pieces.bring_in(0)
        populating = Populating(ptr, size, self.bring_in, **self.how)
        try:
            self.lock.take_in_pieces(pinned_map, ptr, size, self.options, self.pace.pieces)
        except BaseException:
            populating.stop()
            if populating.error is not None:
                raise populating.error
            raise
        populating.stop()

    def bring_in(self, size):
        """Note that `size` bytes are in memory; None: no more will be."""
        if size is None:
            self.pace.pieces.end()
        else:
            self.pace.pieces.bring_in(size)

    cdef finish(self):
        self.over = True
        if not self.lock.counted:
            self.lock.owner = None
        self.pace.pieces.finish(self.lock.size if self.lock.counted else 0)
        cdef list listeners = self.listeners
        self.listeners = []
        for each in listeners:
            with suppress(RuntimeError):  # the loop is closed
                each()

    cdef drop(self):
        """Make it end soon, and be undone: it is no longer wanted."""
        self.unwanted = True
        self.pace.pieces.end()
        cdef Worker worker = workers.get(<size_t><void*>self.pinned_map)
        if worker is not None and self in worker.jobs:
            worker.jobs.remove(self)
            self.finish()

    cdef int wait(self, uint64_t size, double seconds) except -1:
        """Wait until `size` bytes are locked, or it is over; signals are handled."""
        cdef double end = time.monotonic() + seconds
        cdef double left = seconds
        while not self.over and self.pace.pieces.held() < size and left > 0:
            self.wait_briefly(size, min(left, SLICE))
            PyErr_CheckSignals()
            left = end - time.monotonic()
        return 0

    cdef int wait_briefly(self, uint64_t size, double seconds) except -1:
        pieces = self.pace.pieces
        with nogil:
            pieces.wait(size, seconds)
        return 0


cdef class Worker:
    """The thread that takes the locks of one map, while there are any."""
    cdef PinnedMap pinned_map
    cdef object jobs  # those that have not begun
    cdef Job job

    cdef bint advance(self) except -1:
        last = self.job  # dropped last: destructors may let another thread run, which would add to an ending worker
        self.job = self.jobs.popleft() if self.jobs else None
        if self.job is None:
            workers.pop(<size_t><void*>self.pinned_map, None)
        return self.job is not None

    def run(self):
        while self.advance():
            self.job.run()


cdef int begin(Job job) except -1:
    restart()
    cdef Worker worker = workers.get(<size_t><void*>job.pinned_map)
    if worker is not None:
        worker.jobs.append(job)
        return 0
    worker = Worker.__new__(Worker)
    worker.pinned_map, worker.jobs = job.pinned_map, deque([job])
    workers[<size_t><void*>job.pinned_map] = worker
    try:
        start_thread(worker.run)
    except BaseException:  # also of a lack of memory
        del workers[<size_t><void*>job.pinned_map]
        raise
    return 0


cdef class PendingLock:  # type: Coroutine[Any, Any, Lock]
    """A lock that is being taken in the background. Made by `lock_async`; a context manager, which cancels at the end.

    It can be awaited in any asyncio event loop, ``lock = await pending``, also as ``asyncio.create_task(pending)``.
    Cancelling the waiting task does not cancel the lock, and neither does Ctrl-C in `wait`.

    If it is dropped before it is done, it is undone and warns, as a `Lock` does. When the program exits, all that are
    left are undone. In a forked child it is not held: page locks stay with the parent.

    Attributes
    ----------
    ptr, size : int
        The bytes that are to be locked.
    device : Device
        Where it is locked.
    """

    cdef Job job
    cdef readonly uint64_t ptr
    cdef readonly uint64_t size
    cdef Call made_by
    cdef object __weakref__

    def __init__(self):
        raise TypeError("a PendingLock comes from pinning.lock_async")

    @property
    def device(self) -> Device:
        return self.job.pinned_map.device

    def done(self) -> bool:
        """Whether it has succeeded, failed or been cancelled; `wait` says which."""
        return self.job.over or self.job.is_parents()

    @property
    def progress(self) -> int:
        """Bytes from the start that are locked; 0 once it has failed or was cancelled."""
        if self.job.is_parents():
            return 0
        return (self.size if self.job.lock.counted else 0) if self.job.over else self.job.pace.pieces.held()

    # @overload
    # def wait(self, nbytes: None = None, timeout: float | None = None) -> Lock: ...
    # @overload
    # def wait(self, nbytes: int, timeout: float | None = None) -> None: ...
    def wait(self, nbytes=None, timeout=None):
        """Wait until it is done, or until the first bytes are locked. Ctrl-C ends the wait, not the lock.

        Parameters
        ----------
        nbytes : int, optional
            Wait only until this many bytes from the start are locked.
        timeout : float, optional
            Seconds.

        Returns
        -------
        Lock or None
            The lock, the same one each time: keep it, because dropping it unlocks. None if `nbytes` is given.

        Raises
        ------
        TimeoutError
            It takes longer; the lock continues.
        PinningError
            It was cancelled, or this is a fork of the process that began it. Otherwise as `lock`: InvalidRangeError,
            PartialOverlapError, StillLockedError, LockLimitError, VendorError. Nothing is locked then.
        """
        cdef uint64_t wanted = self.size + 1
        if nbytes is not None:
            first = integer(nbytes, "nbytes")
            if not 0 <= first <= self.size:
                raise InvalidRangeError(f"nbytes is {first}; it must lie between 0 and the lock's {self.size} bytes")
            wanted = first
        patience = seconds(timeout)
        cdef Job job = self.job
        self.check_here()
        job.wait(wanted, 1e9 if patience is None else patience)
        if job.over:
            return self.outcome(nbytes is None)
        if nbytes is not None and job.pace.pieces.held() >= wanted:
            return None
        raise TimeoutError(f"{job.pace.pieces.held()} bytes of {self!r} are locked after {timeout} s")

    cdef check_here(self):
        if self.job.is_parents():
            raise PinningError(f"{self!r} belongs to the parent process and is not held in this fork; lock it here")

    cdef outcome(self, bint whole):
        if self.job.error is not None:
            raise self.job.error
        if self.job.unwanted:
            raise PinningError(f"{self!r} was cancelled; lock the buffer again")
        if whole:
            self.job.lock.made_by = this_call()
        return self.job.lock if whole else None

    def cancel(self) -> None:
        """End it after the piece that is being locked, undo it, and wait for that; if it is done, unlock it.

        If others hold locks in the part locked so far, that part stays locked until the last of them is unlocked.

        Raises
        ------
        VendorError
            The vendor refused to unlock. If the lock was done it is still held, and this can be called again; else its
            region is half unlocked, and `pinning.unlock` of the buffer tries again.
        """
        cdef Job job = self.job
        if job.is_parents():
            return
        job.drop()
        job.wait(self.size + 1, 1e9)
        job.lock.release()
        if self.is_half_unlocked():
            raise job.error

    cdef bint is_half_unlocked(self) noexcept:
        return self.job.left != 0 and self.job.pinned_map.map.half_unlocked_at(self.ptr) == self.job.left

    def _undo(self) -> None:
        """`cancel`, once more after a refusal: the vendor is asked again."""
        if self.is_half_unlocked():
            self.job.pinned_map.unlock(self.ptr)
        else:
            self.cancel()

    def _abandon(self) -> None:
        """Make it end soon, without waiting; `cancel` then undoes what is locked."""
        if not self.job.is_parents():
            self.job.drop()

    def __await__(self) -> Generator[Any, None, Lock]:
        future = end_of(self)
        if future is not None:
            yield from future
        return self.outcome(True)

    def send(self, value: None) -> Any:
        """For `asyncio.create_task`, which takes coroutines only: return a future to wait for.

        Parameters
        ----------
        value : None
            As asyncio passes it.
        """
        future = end_of(self)
        if future is None:
            raise StopIteration(self.outcome(True))
        return next(iter(future))

    def throw(self, error: Any, value: Any = None, traceback: Any = None, /) -> Any:
        """For asyncio, as `send`: raise an error in the task, which is cancelled, for example.

        Parameters
        ----------
        error : BaseException
            What to raise.
        value, traceback
            Not used.
        """
        raise error

    def close(self) -> None:
        """For asyncio, as `send`: do nothing. `cancel` ends the lock."""

    def __reduce__(self):
        refuse_copy(self, "it stands for one lock; lock the buffer once more")

    cdef bint listen(self, function) except -1:
        """Have `function` called once it is over; False if it is over already."""
        self.check_here()
        if not self.job.over:
            self.job.listeners.append(function)
        return not self.job.over

    def __enter__(self) -> Self:
        if self.job.unwanted:
            self.outcome(True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.cancel()

    def __del__(self):
        if self.job is None or self.done() or self.job.unwanted:
            return
        try:
            warn_of_drop(self, self.made_by, "was dropped before it was done; wait for it or cancel it")
        finally:
            self.job.drop()

    def __dealloc__(self):
        if self.job is not None and not self.job.over and not self.job.is_parents():
            self.job.drop()

    def __repr__(self):
        job = self.job
        state = (
            "of the parent process" if job.is_parents()
            else f"{self.progress} bytes locked" if not job.over
            else "cancelled" if job.unwanted
            else f"failed: {job.error!r}" if job.error is not None
            else "done"
        )
        device = getattr(self.device, "name", self.device)
        end = int(self.ptr) + self.size
        return f"<PendingLock of [{self.ptr:#x}, {end:#x}), {self.size} bytes, on {device}: {state}>"


cdef object end_of(PendingLock pending):
    """A future of the running loop that is done once the lock is; None if it is already."""
    import asyncio  # loaded already: its loop runs this

    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def resolve():
        if not future.done():
            future.set_result(None)

    return future if pending.listen(lambda: loop.call_soon_threadsafe(resolve)) else None


def lock_async(
    buffer: Buffer,
    size: int | None = None,
    *,
    device: LockDevice | str | None = None,
    read_only: bool | None = None,
    piece: int | None = None,
    unit: int | None = None,
    stall_ms: float | None = None,
    coherent: bool | None = None,
) -> PendingLock:
    """Lock a buffer's memory for a device in the background.

    Several threads populate pages ahead of the lock. With pieces (`unit`, `stall_ms` or `piece`), the part that is
    locked so far is already found and used by copies, and a lock inside it is counted immediately; a lock beyond it
    waits until that much is locked. Without pieces the lock is one vendor call, so that any library may copy across the
    whole buffer; a GPU then stalls for 18 to 54 ms per GiB.

    Locks of one device are taken one after another, in the order of these calls.

    Parameters
    ----------
    buffer, size, device, read_only, coherent
        As for `lock`.
    piece : int, optional
        Lock in pieces of this many bytes.
    unit : int, optional
        Bytes that are copied at a time, such as a block of a cache or a row, counted from the
        buffer's start. It is locked in pieces of whole units: no copy of a unit crosses a border.
    stall_ms : float, optional
        How long a GPU may stall for one piece, in milliseconds; 3 by default if `unit` is given. The size of
        the pieces follows from the time that each takes; it is a multiple of at least 16 MiB, or of `unit` if that is
        larger. Use it without `unit` only for memory that no other library copies.

    Returns
    -------
    PendingLock
        Keep it, until you have its `Lock`: dropping it undoes the lock.

    Raises
    ------
    TypeError, InvalidRangeError, PluginUnavailableError
        As `lock`. Other errors are raised by `wait`.
    PinningError
        The map is closed, or no thread can be started.

    Examples
    --------
    >>> cache = numpy.zeros((16, 512), "u1")
    >>> with pinning.lock_async(cache, unit=512) as pending:
    ...     lock = pending.wait()
    ...     lock.size
    8192
    """
    return pending(buffer, size, device, read_only, piece, unit, stall_ms, coherent, False, {})


def lock_unlisted(buffer: Buffer, device: Device, unit: int | None, how: dict[str, Any]) -> PendingLock:
    """`lock_async` for a caller that gives parts of the buffer to others: it must not count as one of their locks.

    `how` are further arguments of `pinning.machine.populate.Populating`.
    """
    return pending(buffer, None, device, None, None, unit, None, None, True, how)


cdef PendingLock pending(buffer, size, device, read_only, piece, unit, stall_ms, coherent, bint unlisted, dict how):
    cdef Bytes found
    cdef Job job = Job.__new__(Job)
    job.unlisted, job.how = unlisted, how
    job.lock = unlocked(buffer, size, &found)
    job.pinned_map = map_of(device)
    job.pace = pace_of(job.pinned_map.largest, job.lock, piece, unit, stall_ms)
    if read_only is None and found.read_only >= 0:
        read_only = bool(found.read_only)
    job.options = lock_options(read_only, coherent)
    job.made_in = generation()
    job.listeners = []
    job.description = (b"pinning.Arena", b"") if unlisted else description_of(buffer)
    job.pinned_map.check_open()
    cdef PendingLock handle = PendingLock.__new__(PendingLock)
    handle.job, handle.ptr, handle.size = job, found.ptr, found.size
    handle.made_by = job.lock.made_by = this_call()
    if job.lock.try_take(job.pinned_map, found.ptr, found.size, job.options.coherence):
        if not unlisted:
            job.lock.enter()
        job.finish()
    else:
        begin(job)
    return handle


cdef restart():
    """Restart in a forked child; does nothing the second time."""
    global workers, made_in
    if is_parents(made_in):
        keep_for_ever(workers)  # their threads do not exist here
        workers, made_in = {}, generation()


def _end_all():
    restart()
    cdef Worker worker
    cdef Job job
    cdef list left = []
    for worker in list(workers.values()):
        left += [job for job in (worker.job, *worker.jobs) if job is not None]
    for job in left:
        job.drop()
    for job in left:
        job.wait(job.lock.size + 1, EXIT_SECONDS)


at_exit(_end_all)
