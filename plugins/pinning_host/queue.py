# SPDX-License-Identifier: Apache-2.0
"""Queues of the host: a thread for each, which copies while other threads run Python."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue

from pinning.errors import InvalidRangeError, PinningError, VendorError
from pinning.plugin import VendorEvent, host_work

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # without the GIL, as are memmove and memset of ctypes
_EAGAIN = 11

Job = Callable[[], object]


class HostEvent:
    """A point in a `HostQueue`."""

    def __init__(self) -> None:
        self._shut = threading.Lock()  # until the point is reached
        self._shut.acquire()
        self._error: BaseException | None = None
        self._time: float | None = None

    def reach(self, error: BaseException | None) -> None:
        """The queue's thread is here, and this is what went wrong since the event before."""
        self._error = error
        self._time = time.perf_counter()
        self._shut.release()

    def await_reached(self) -> None:
        """Block until the queue's thread comes here."""
        with self._shut:
            pass

    def done(self) -> bool:
        """Whether the queue's thread has come here. Raises what went wrong before."""
        if self._time is None:
            return False
        if self._error is not None:
            raise self._error
        return True

    def wait(self) -> None:
        """Block until the queue's thread comes here. Raises what went wrong before."""
        self.await_reached()
        self.done()

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Seconds between two points that are reached, by the host's clock."""
        if not isinstance(earlier, HostEvent):
            raise InvalidRangeError(f"{earlier!r} is no event of the host; times of two vendors cannot be compared")
        assert self._time is not None
        assert earlier._time is not None
        return self._time - earlier._time


class Worker:
    """A thread that does one job after another. It goes on after one that raises."""

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()  # the first is being done
        self._news: SimpleQueue[bool] = SimpleQueue()  # True: there may be jobs; False: there will be no more
        self._error: BaseException | None = None  # the first of a job, for the next event
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="pinning host queue", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise VendorError("pthread_create", _EAGAIN, "EAGAIN", f"{error}; close queues that are idle") from None

    def put(self, job: Job) -> None:
        """Do this after all that was put before."""
        if self._stopped:
            raise PinningError("this queue of the host is closed, so nothing can be submitted to it: make another")
        self._jobs.append(job)
        self._news.put(True)  # if Ctrl-C keeps this from being done, `idle` does it

    def stop(self) -> None:
        """End the thread when all jobs are done. Safe wherever the garbage collector calls it."""
        self._stopped = True
        self._news.put(False)

    def idle(self) -> bool:
        """Whether all jobs are done. Raises what went wrong since the last event."""
        if self._jobs:
            self._news.put(True)
            return False
        error, self._error = self._error, None
        if error is not None:
            raise error
        return True

    def event(self) -> HostEvent:
        """A point after all jobs that were put so far."""
        event = HostEvent()
        self.put(partial(self._reach, event))
        return event

    def synchronize(self) -> None:
        """Block until all jobs are done. Raises what went wrong since the last event."""
        if self._stopped:
            self._thread.join()
        else:
            self.event().wait()

    def _reach(self, event: HostEvent) -> None:
        error, self._error = self._error, None
        event.reach(error)

    def _run(self) -> None:
        more = True
        while more:
            more = self._news.get()
            while self._jobs:
                try:
                    self._jobs[0]()
                except Exception as error:
                    self._error = self._error or error
                self._jobs.popleft()


class HostQueue:
    """An in-order queue; `handle` is a number of our own, by which the device finds it again."""

    waits_for_values = True
    _handles = itertools.count(1)

    def __init__(self, shared: HostQueue | None = None) -> None:
        self._worker: Worker = shared._worker if shared else Worker()
        self._shared = shared  # whose thread ends when it is dropped
        self.handle: int = shared.handle if shared else next(self._handles)
        self._stop = None if shared else weakref.finalize(self, self._worker.stop)
        if self._stop:
            self._stop.atexit = False  # a thread that is still at work then ends with the process

    def copy(self, dst: int, src: int, size: int) -> None:
        """memmove."""
        self._worker.put(partial(ctypes.memmove, dst, src, size))

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """memmove of each row."""
        self._worker.put(partial(_copy_rows, dst, dst_pitch, src, src_pitch, width, height))

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """Write `value` `count` times."""
        self._worker.put(partial(host_work.fill, ptr, value, count))

    def call(self, function: int, argument: int) -> None:
        """Call a C function on the queue's thread."""
        self._worker.put(partial(_CALL(function), argument))

    def wait_value(self, address: int, value: int) -> None:
        """Look at the word again and again, ever less often."""
        self._worker.put(partial(host_work.wait_value, address, value))

    def write_value(self, address: int, value: int) -> None:
        """Write the word in its turn."""
        self._worker.put(partial(host_work.write_value, address, value))

    def record(self) -> HostEvent:
        """An event after all that was submitted so far."""
        return self._worker.event()

    def wait(self, event: VendorEvent) -> None:
        """The queue's thread waits for an event of another one's."""
        assert isinstance(event, HostEvent)
        self._worker.put(event.await_reached)

    def done(self) -> bool:
        """Whether all that was submitted is done. Raises what went wrong, and no event has told."""
        return self._worker.idle()

    def synchronize(self) -> None:
        """Block until all is done. Raises as `done`."""
        self._worker.synchronize()

    def close(self) -> None:
        """End the thread once its work is done; one that was adopted stays."""
        if self._stop:
            self._stop()


class Queues:
    """The queues of the device that are in use."""

    def __init__(self) -> None:
        self._by_handle: weakref.WeakValueDictionary[int, HostQueue] = weakref.WeakValueDictionary()

    def make(self) -> HostQueue:
        """A new one.

        Raises
        ------
        VendorError
            There is no thread to be had.
        """
        queue = HostQueue()
        self._by_handle[queue.handle] = queue
        return queue

    def adopt(self, handle: int) -> HostQueue:
        """Another one over the same thread.

        Raises
        ------
        InvalidRangeError
            There is no queue with this handle.
        """
        queue = self._by_handle.get(handle)
        if queue is None:
            raise InvalidRangeError(f"the host has no queue with the handle {handle}; take it from a queue's `handle`")
        return HostQueue(queue)

    def synchronize(self) -> None:
        """Wait until all work of all queues is done."""
        for queue in list(self._by_handle.values()):
            queue.synchronize()


def _copy_rows(dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
    for row in range(height):
        ctypes.memmove(dst + row * dst_pitch, src + row * src_pitch, width)
