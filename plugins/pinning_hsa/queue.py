# SPDX-License-Identifier: Apache-2.0
"""In-order queues (`pinning.plugin.VendorQueue`): engines in the order of their signals, and a thread for the rest.

HSA's own queues run kernels; copies are outside of all queues, with signals to wait for and one that tells the end. So
a copy waits for the signal of the work before it. It is submitted at once only if that has been submitted too: an
engine that waits for anything else, such as a function of the host, would keep every other queue's copies waiting.
"""

from __future__ import annotations

import contextlib
import ctypes
import time
from functools import partial

from pinning.errors import PinningError
from pinning.plugin import VendorEvent, host_work
from pinning_hsa.agents import Machine
from pinning_hsa.copying import Rows, begin
from pinning_hsa.driver import call, loaded
from pinning_hsa.filling import fill_device
from pinning_hsa.pointers import Reached, range_around, reach
from pinning_hsa.signals import SpareSignals
from pinning_hsa.work import Batch, Start, Work, Worker

_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)  # without the GIL


class HsaEvent:
    """A point in a queue: the end of its last work when this was made."""

    def __init__(self, work: Work | None, batch: Batch) -> None:
        self.work = work
        self._batch = batch
        self._made = time.perf_counter()

    def done(self) -> bool:
        """Whether it is reached."""
        loaded()
        if self.work is not None and not self.work.over():
            return False
        self._batch.raise_error()
        return True

    def wait(self) -> None:
        """Block until it is reached; the runtime asks for a while, and then sleeps."""
        loaded()
        if self.work is not None:
            self.work.wait()
        self._batch.raise_error()

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Time between two reached points by the host's clock, late by what it takes a thread to see them."""
        assert isinstance(earlier, HsaEvent)
        return self._reached() - earlier._reached()

    def _reached(self) -> float:
        if not self.done():
            raise PinningError("this event of an HSA queue is not reached, and so has no time: wait for it")
        return max(self._made, self.work.time if self.work else 0.0)


class HsaQueue:
    """A queue of one GPU, by its index in the machine, and the queue's thread."""

    handle = 0
    waits_for_values = True

    def __init__(self, machine: Machine, gpu: int, worker: Worker) -> None:
        self._machine = machine
        self._gpu = gpu
        self._worker = worker
        self._spares = SpareSignals()
        self._batch = Batch()
        self._closed = False

    def __del__(self) -> None:
        with contextlib.suppress(PinningError):
            self.close()

    # ---- work ----

    def copy(self, dst: int, src: int, size: int) -> None:
        """hsa_amd_memory_async_copy; hsa_memory_copy where no GPU reaches an end, or none has one."""
        self._copy(Rows(dst, 0, src, 0, size, 1))

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """hsa_amd_memory_async_copy_rect, of addresses and pitches that are multiples of 4; else as `copy`, by rows."""
        self._copy(Rows(dst, dst_pitch, src, src_pitch, width, height))

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """hsa_amd_memory_fill, of device memory."""
        self._open()
        found = range_around(self._machine, ptr)
        if found and found.gpu is not None:
            self._in_turn(partial(fill_device, ptr, value, count))
        else:
            self._in_turn(partial(host_work.fill, found.host + found.offset(ptr) if found else ptr, value, count))

    def call(self, function: int, argument: int) -> None:
        """Call a C function on the queue's thread."""
        self._in_turn(partial(_CALL(function), argument))

    def wait_value(self, address: int, value: int) -> None:
        """The queue's thread looks at the word again and again, ever less often: engines wait for signals only."""
        self._in_turn(partial(host_work.wait_value, address, value))

    def write_value(self, address: int, value: int) -> None:
        """The queue's thread writes the word."""
        self._in_turn(partial(host_work.write_value, address, value))

    # ---- order ----

    def record(self) -> HsaEvent:
        """The end of all work so far; the runtime is not asked for anything."""
        self._open()
        event, self._batch = HsaEvent(self._worker.tail, self._batch), Batch()
        return event

    def wait(self, event: VendorEvent) -> None:
        """The queue's thread waits for an event that is not reached."""
        self._open()
        assert isinstance(event, HsaEvent)
        if event.work is not None and event.work is not self._worker.tail and not event.work.over():
            self._in_turn(event.work.wait)

    def done(self) -> bool:
        """Whether all work is over."""
        self._open()
        return HsaEvent(self._worker.tail, self._batch).done()

    def synchronize(self) -> None:
        """Block until all work is over."""
        self.record().wait()

    def close(self) -> None:
        """End the thread once all work is over."""
        loaded()
        if not self._closed:
            self._closed = True
            self._worker.stop()
            self._spares.close()

    def _copy(self, rows: Rows) -> None:
        self._open()
        if not rows.width or not rows.height:
            return
        to = self._reach(rows.dst, rows.dst_pitch, rows)
        source = self._reach(rows.src, rows.src_pitch, rows)
        if to is None or source is None or not (to.is_gpu or source.is_gpu):
            self._in_turn(partial(_copy_rows, rows))
            return
        if not self._worker.caught_up:
            work = Work(rows.height + 1, self._spares, self._batch)
            self._worker.start(work, partial(begin, rows, to, source, work.signal))
            return
        work, tail = Work(rows.height, self._spares, self._batch), self._worker.tail
        after = [] if tail is None or tail.over() else [tail.signal]
        try:
            begin(rows, to, source, work.signal, after)
        finally:
            self._worker.follow(work)

    def _reach(self, ptr: int, pitch: int, rows: Rows) -> Reached | None:
        return reach(self._machine, ptr, (rows.height - 1) * pitch + rows.width, self._gpu)

    def _in_turn(self, function: Start) -> None:
        self._open()
        self._worker.start(Work(1, self._spares, self._batch), function)

    def _open(self) -> None:
        loaded()
        if self._closed:
            raise PinningError("this HSA queue is closed: make another")


def _copy_rows(rows: Rows) -> None:
    for row in range(rows.height):
        call("hsa_memory_copy", rows.dst + row * rows.dst_pitch, rows.src + row * rows.src_pitch, rows.width)
