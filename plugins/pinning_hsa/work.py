# SPDX-License-Identifier: Apache-2.0
"""Work in a queue, whose end a signal tells, and the thread that follows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import copy
from queue import SimpleQueue

from pinning.errors import VendorError
from pinning_hsa import abi
from pinning_hsa.copying import failed
from pinning_hsa.driver import loaded
from pinning_hsa.signals import SpareSignals

_EAGAIN = 11

Start = Callable[[], object]


class Batch:
    """The work between two events of a queue. The second one tells what has failed."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    def fail(self, error: Exception) -> None:
        """Keep an error, if it is the first, without the frames that it went through, which keep the work."""
        self._error = self._error or error.with_traceback(None)

    def raise_error(self) -> None:
        """Raise what has failed, if anything has."""
        if self._error is not None:
            raise copy(self._error)


class Work:
    """One piece of work, over once its signal is not above 0. The signal goes back to the `spares` when this is gone.

    Parameters
    ----------
    parts : int
        How often the signal is counted down: by each copy, and by `start`.

    Attributes
    ----------
    time : float
        When somebody first saw that it was over, by `time.perf_counter`; 0 before.
    """

    def __init__(self, parts: int, spares: SpareSignals, batch: Batch) -> None:
        self.signal = spares.take_with(parts)
        self.time = 0.0
        self._spares = spares
        self._batch = batch

    def __del__(self) -> None:
        if hasattr(self, "signal"):  # otherwise none was to be had
            self._spares.give(self.signal)

    def over(self) -> bool:
        """Whether it is over."""
        return self._seen(loaded().hsa_signal_load_scacquire(self.signal))

    def wait(self) -> None:
        """Block until it is over."""
        wait = loaded().hsa_signal_wait_scacquire
        self._seen(wait(self.signal, abi.SIGNAL_CONDITION_LT, 1, abi.FOREVER, abi.WAIT_STATE_BLOCKED))

    def start(self, start: Start) -> None:
        """Start it. One part of it is this, so that nobody sees the end before what it raises is known."""
        try:
            start()
        except Exception as error:
            self._batch.fail(error)
        finally:
            loaded().hsa_signal_subtract_screlease(self.signal, 1)

    def follow(self) -> None:
        """Block until it is over, and let the engines go on: they wait for 0, and a failure is below."""
        self.wait()
        loaded().hsa_signal_store_screlease(self.signal, 0)

    def _seen(self, value: int) -> bool:
        if value > 0:
            return False
        if value < 0:
            self._batch.fail(failed(value))
        self.time = self.time or time.perf_counter()
        return True


class Worker:
    """A thread that follows the work of a queue, in order, and does or begins what cannot be left to the engines.

    The runtime's own thread for such things (``hsa_amd_signal_async_handler``) is one for the whole process: a function
    that waits there, as those of queues may, stops everybody's.

    Attributes
    ----------
    tail : Work or None
        The last work of the queue; None also when this has ended.
    """

    def __init__(self) -> None:
        self.tail: Work | None = None
        self._works: SimpleQueue[tuple[Work, Start | None] | None] = SimpleQueue()
        self._to_start = self._started = 0
        self._before: Work | None = None
        try:
            threading.Thread(target=self._run, name="pinning HSA queue", daemon=True).start()
        except RuntimeError as error:
            raise VendorError("pthread_create", _EAGAIN, "EAGAIN", f"{error}; close queues that are idle") from None

    @property
    def caught_up(self) -> bool:
        """Whether all work has been started, so that more may be, without this thread."""
        return self._started == self._to_start

    def follow(self, work: Work) -> None:
        """Take note of work that has been started."""
        self._works.put((work, None))
        self.tail = work

    def start(self, work: Work, start: Start) -> None:
        """Start work when all before it is over."""
        self._to_start += 1
        self._works.put((work, start))
        self.tail = work

    def stop(self) -> None:
        """End the thread when all work is over. Safe wherever the garbage collector calls it."""
        self._works.put(None)

    def _run(self) -> None:
        while (entry := self._works.get()) is not None:
            work, start = entry
            if start is not None:
                work.start(start)
                self._started += 1
            work.follow()
            # Only now is nobody left who waits for the signal of the work before: it may be set anew.
            self._before = work
            del entry, work, start
        self.tail = self._before = None
