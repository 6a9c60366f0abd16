# SPDX-License-Identifier: Apache-2.0
"""A device with memory, and queues that hold their work until it is released step by step: tests are deterministic.

    device = FakeMemoryDevice()
    queue = pinning.Queue(device)  # device.queues[0] is the vendor's side of it
    event = ...                    # submitted, and held
    device.release()               # runs all that can run; release(steps=1, queue=...) one step of one queue
    device.check()                 # at the end of each test: nothing leaked, nothing done that the rules forbid

Memory of every kind is ordinary memory, so that tests see what copies did. HOST memory and locked ranges have device
pointers `LOCKED_OFFSET` above the host's, which copies and fills understand. New memory is filled with 0xCD.

Work runs on the thread that calls `release`; with ``held=False`` as soon as it can, on the thread that submits. So a C
function that waits, such as that of a gate, needs its queue to be released on another thread (`Background`).
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from fake_device import LOCKED_OFFSET, WAIT, FakeDevice
from pinning.copies import trim_staging
from pinning.errors import VendorError
from pinning.plugin import Device, MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo, VendorEvent

LOST = 999  # code of the VendorError of every call once the device is lost
_CALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class Step(NamedTuple):
    """Work in a queue: its method, the function that does it, and the ranges (address, size) that it touches."""

    method: str
    run: Callable[[], object]
    touches: tuple[tuple[int, int], ...] = ()
    blocked_by: FakeEvent | None = None
    ready: Callable[[], bool] = lambda: True


class FakeMemoryDevice(FakeDevice):
    """A MemoryDevice that records its calls and holds work.

    Attributes
    ----------
    held : bool
        Whether queues made from now on hold their work.
    queues : list of FakeQueue
        All ever made, the oldest first; not those adopted.
    allocated : dict of int to (int, MemoryKind)
        Size and kind by base address.
    vendor_calls : list of str
        The names of all calls of the memory layer, including those that failed.
    events_made, events_alive, queues_alive : int
    wrong : list of str
        Calls that the rules forbid.
    """

    description = "a fake"

    def __init__(self, name: str = "fake:0", *, held: bool = True) -> None:
        super().__init__(name)
        self.held = held
        self.memory_kinds = frozenset(MemoryKind)
        self.connections: dict[Device, MemoryConnection] = {}
        self.capacity: int | None = None  # bytes; more is refused
        self.queues: list[FakeQueue] = []
        self.allocated: dict[int, tuple[int, MemoryKind]] = {}
        self.vendor_calls: list[str] = []
        self.events_made = self.events_alive = self.queues_alive = 0
        self.lost = False
        self._buffers: dict[int, object] = {}
        self._call_failures: dict[int, BaseException] = {}
        self._moved = threading.Condition(threading.RLock())

    # ---- what tests do ----

    def fail_call(self, error: BaseException | None = None, calls_before: int = 0) -> None:
        """Let the next call of the memory layer fail, or the one after `calls_before` others."""
        error = error or VendorError("fakeCall", 1, "FAKE_FAILURE")
        self._call_failures[len(self.vendor_calls) + calls_before] = error

    def fail_no_more(self) -> None:
        super().fail_no_more()
        self._call_failures.clear()

    def lose(self) -> None:
        """Make every call fail from now on; no work runs any more."""
        with self._moved:
            self.lost = True
            for queue in self.queues:
                queue.steps.clear()
            self._moved.notify_all()

    def release(self, steps: int | None = None, queue: FakeQueue | None = None) -> int:
        """Run `steps` steps, or all that can run, of one queue or of all in turn; return how many ran."""
        count = 0
        queues = [queue] if queue else list(self.queues)
        while steps is None or count < steps:
            moved = False
            for each in queues:
                if (steps is None or count < steps) and each.step():
                    count, moved = count + 1, True
            if not moved:
                break
        return count

    def let_go(self) -> None:
        """Stop holding work: run what is pending, and later work at once."""
        self.held = False
        for queue in self.queues:
            queue.held = False
        self.release()

    def check(self) -> None:
        """Assert that no allocation, queue, event or lock has leaked, and that no call was forbidden."""
        gc.collect()
        end = time.monotonic() + WAIT
        trim_staging()
        while not self.lost and (self.queues_alive or self.allocated or self.events_alive) and time.monotonic() < end:
            time.sleep(0.001)  # dropped queues are given back by a thread
            trim_staging()
        assert self.wrong == []
        assert self.locked == {}
        assert self.allocated == {}
        assert self.events_alive == 0
        assert self.queues_alive == 0 or self.lost, "a lost device takes its queues with it"

    # ---- MemoryDevice ----

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        self.attend("allocate")
        if size < 1 or kind not in self.memory_kinds:
            self.wrong.append(f"allocate({size}, {kind})")
        if self.capacity is not None and size + sum(length for length, _ in self.allocated.values()) > self.capacity:
            raise VendorError("fakeAlloc", 2, "FAKE_OUT_OF_MEMORY")
        buffer = (ctypes.c_char * (size + 256))()
        base = (ctypes.addressof(buffer) + 255) & -256
        ctypes.memset(base, 0xCD, size)
        self._buffers[base] = buffer
        self.allocated[base] = size, kind
        return base

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        self.attend("free")
        if ptr not in self.allocated or self.allocated[ptr][1] is not kind:
            self.wrong.append(f"free of {ptr:#x} as {kind}")
            return
        size, _ = self.allocated[ptr]
        for queue in self.queues:
            for step in queue.pending():
                if any(start < ptr + size and ptr < start + length for start, length in step.touches):
                    self.wrong.append(f"free of {ptr:#x}, {size}, while a {step.method} is in flight there")
        del self.allocated[ptr]
        ctypes.memset(ptr, 0xDD, size)
        del self._buffers[ptr]

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        for base, (size, kind) in list(self.allocated.items()):
            if kind is MemoryKind.HOST and base <= ptr < base + size:
                return PinnedInfo(base, size, base + LOCKED_OFFSET)
        return super().is_pinned_ptr(ptr)

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        self.attend("memory_info")
        for base, (size, kind) in list(self.allocated.items()):
            if base <= ptr < base + size:
                index = None if kind is MemoryKind.HOST else int(self.name.partition(":")[2])
                return MemoryInfo(kind, base, size, index)
        return None

    def connection(self, other: Device) -> MemoryConnection:
        self.attend("connection")
        return MemoryConnection.UNIFIED if other is self else self.connections.get(other, MemoryConnection.NONE)

    def copy(self, dst: int, src: int, size: int) -> None:
        self.attend("copy")
        ctypes.memmove(self.real(dst, size), self.real(src, size), size)

    def make_queue(self) -> FakeQueue:
        self.attend("make_queue")
        queue = FakeQueue(self, self.held)
        self.queues.append(queue)
        self.queues_alive += 1
        return queue

    def adopt_queue(self, handle: int) -> FakeQueue:
        """Another object for the queue with this handle."""
        self.attend("adopt_queue")
        for queue in self.queues:
            if queue.handle == handle and not queue.closed:
                return FakeQueue(self, self.held, shared=queue)
        raise VendorError("fakeAdopt", 3, "FAKE_INVALID_HANDLE")

    def synchronize(self) -> None:
        self.attend("synchronize")
        self.until(lambda: all(queue.idle for queue in self.queues))

    # ---- what its queues use ----

    def attend(self, call: str) -> None:
        if Path("/proc/thread-self/comm").read_text() == "pinning service\n" and not self.lost:
            return  # it polls at any time, and must not get the failure that a test has prepared for itself
        number = len(self.vendor_calls)
        self.vendor_calls.append(call)
        if self.lost:
            raise VendorError(call, LOST, "FAKE_DEVICE_LOST")
        if number in self._call_failures:
            raise self._call_failures.pop(number)

    def until(self, reached: Callable[[], bool]) -> None:
        """Block until `reached` returns true."""
        end = time.monotonic() + WAIT
        while not (self.lost or reached()):
            assert time.monotonic() < end, "nobody has released the work"
            self.release_unheld()  # a word that a step waits for may have been written meanwhile
            with self._moved:
                self._moved.wait_for(lambda: self.lost or reached(), 0.001)
        if self.lost:
            raise VendorError("fakeWait", LOST, "FAKE_DEVICE_LOST")

    def release_unheld(self) -> None:
        """Run what can run in the queues that do not hold their work."""
        while any(queue.step() for queue in list(self.queues) if not queue.held):
            pass

    @contextmanager
    def moving(self) -> Iterator[None]:
        with self._moved:
            yield
            self._moved.notify_all()

    def real(self, ptr: int, size: int) -> int:
        """The host address of a range; `ptr` may be a device pointer of locked memory."""
        ranges = [*self.locked.items(), *((base, length) for base, (length, _) in self.allocated.items())]
        for base, length in ranges:
            if base + LOCKED_OFFSET <= ptr and ptr + size <= base + LOCKED_OFFSET + length:
                return ptr - LOCKED_OFFSET
        return ptr


class FakeEvent:
    """A point in a `FakeQueue`."""

    def __init__(self, device: FakeMemoryDevice) -> None:
        self.device = device
        self.reached = False
        self.error: BaseException | None = None
        self.at = 0.0
        device.events_made += 1
        device.events_alive += 1

    def __del__(self) -> None:
        self.device.events_alive -= 1

    def done(self) -> bool:
        self.device.attend("event.done")
        if self.reached and self.error:
            raise self.error
        return self.reached

    def wait(self) -> None:
        self.device.attend("event.wait")
        self.device.until(lambda: self.reached)
        if self.error:
            raise self.error

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Count one second for each step that the device has run in between."""
        self.device.attend("event.seconds_since")
        assert isinstance(earlier, FakeEvent)
        assert self.reached
        assert earlier.reached
        return self.at - earlier.at


class FakeQueue:
    """An in-order queue that holds its work until the device releases it.

    Attributes
    ----------
    held : bool
    done_steps : list of str
        The methods of the steps that have run.
    refused : int
        Number of copies across the border of a lock.
    """

    def __init__(self, device: FakeMemoryDevice, held: bool, shared: FakeQueue | None = None) -> None:
        self.device = device
        self.held = shared.held if shared else held
        self.closed = False
        self.adopted = shared is not None
        self._owner = shared or self
        self.handle: int = shared.handle if shared else id(self)
        self.steps: deque[Step] = shared.steps if shared else deque()
        self.done_steps: list[str] = shared.done_steps if shared else []
        self.running = False
        self.refused = 0
        self._failures: deque[BaseException] = deque()
        self._error: BaseException | None = None  # of work, not yet reported by an event
        self._submitting = threading.Lock()

    # ---- what tests do ----

    def fail_step(self, error: BaseException | None = None) -> None:
        """Let the next copy, fill or call that runs fail; the next event or `synchronize` reports the error."""
        self._failures.append(error or VendorError("fakeWork", 4, "FAKE_WORK_FAILED"))

    def pending(self) -> list[Step]:
        """The steps that have not run yet."""
        return list(self.steps)

    def mark(self, function: Callable[[], object]) -> None:
        """Submit a step that calls `function`: work for tests only."""
        self._submit(Step("mark", function))

    @property
    def idle(self) -> bool:
        return not self.steps and not self.running

    def step(self) -> bool:
        """Run the oldest step, unless there is none or it waits for an event."""
        with self.device.moving():
            if self.device.lost or self.running or not self.steps:
                return False
            blocker = self.steps[0].blocked_by
            if (blocker is not None and not blocker.reached) or not self.steps[0].ready():
                return False
            step = self.steps.popleft()
            self.running = True
        try:
            if step.method in ("copy", "copy_2d", "fill", "call", "mark") and self._failures:
                self._error = self._failures.popleft()
            else:
                step.run()
        finally:
            with self.device.moving():
                self.done_steps.append(step.method)
                self.running = False
        return True

    # ---- VendorQueue ----

    def copy(self, dst: int, src: int, size: int) -> None:
        real = self.device.real
        touches = (real(dst, size), size), (real(src, size), size)
        self._check_borders(touches)
        self._submit(Step("copy", lambda: ctypes.memmove(touches[0][0], touches[1][0], size), touches))

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        real = self.device.real

        def run() -> None:
            for row in range(height):
                ctypes.memmove(real(dst, width) + row * dst_pitch, real(src, width) + row * src_pitch, width)

        sizes = [(height - 1) * pitch + width for pitch in (dst_pitch, src_pitch)]
        touches = (real(dst, width), sizes[0]), (real(src, width), sizes[1])
        self._check_borders(touches)
        self._submit(Step("copy_2d", run, touches))

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        if len(value) not in (1, 2, 4) or ptr % len(value):
            self.device.wrong.append(f"fill with {value!r} at {ptr:#x}")
        size = len(value) * count
        address = self.device.real(ptr, size)
        self._submit(Step("fill", lambda: ctypes.memmove(address, value * count, size), ((address, size),)))

    def call(self, function: int, argument: int) -> None:
        self._submit(Step("call", lambda: _CALL(function)(argument)))

    waits_for_values = True

    def wait_value(self, address: int, value: int) -> None:
        word = ctypes.c_uint32.from_address(self.device.real(address, 4))
        self._submit(Step("wait_value", lambda: None, ready=lambda: (word.value - value) % 2**32 < 2**31))

    def write_value(self, address: int, value: int) -> None:
        word = ctypes.c_uint32.from_address(self.device.real(address, 4))

        def run() -> None:
            word.value = value

        self._submit(Step("write_value", run))

    def record(self) -> FakeEvent:
        event = FakeEvent(self.device)
        self._submit(Step("record", lambda: self._reach(event)))
        return event

    def wait(self, event: VendorEvent) -> None:
        assert isinstance(event, FakeEvent)
        self._submit(Step("wait", lambda: None, blocked_by=event))

    def done(self) -> bool:
        self._check_owner("done")
        self.device.attend("queue.done")
        if self.idle:
            self._tell()
        return self.idle

    def synchronize(self) -> None:
        self._check_owner("synchronize")
        self.device.attend("queue.synchronize")
        with self.device.moving():
            so_far = len(self.done_steps) + len(self.steps) + self.running
        self.device.until(lambda: len(self.done_steps) >= so_far)
        self._tell()

    def _check_owner(self, method: str) -> None:
        if self._owner.closed:
            self.device.wrong.append(f"{method} of a queue that its owner has closed")

    def close(self) -> None:
        if self.closed:
            self.device.wrong.append("closed twice")
        self.device.attend("queue.close")
        self.closed = True
        if not self.adopted:
            self.device.queues_alive -= 1

    def _check_borders(self, touches: tuple[tuple[int, int], ...]) -> None:
        """Refuse, as a vendor does, a range that lies only partly in locked memory."""
        for ptr, size in touches:
            for start, length in list(self.device.locked.items()):
                inside = start <= ptr and ptr + size <= start + length
                if ptr < start + length and start < ptr + size and not inside:
                    self.refused += 1
                    raise VendorError("fakeCopy", 5, "FAKE_INVALID_VALUE")

    def _submit(self, step: Step) -> None:
        if not self._submitting.acquire(blocking=False):
            self.device.wrong.append(f"{step.method} while another thread submits")
            return
        try:
            if self.closed:
                self.device.wrong.append(f"{step.method} after close")
            self.device.attend(f"queue.{step.method}")
            with self.device.moving():
                self.steps.append(step)
                at_once = step.method == "record" and len(self.steps) == 1  # there is no work to hold
        finally:
            self._submitting.release()
        if not self.held:
            self.device.release_unheld()
        elif at_once:
            self.step()

    def _reach(self, event: FakeEvent) -> None:
        event.reached, event.error, self._error = True, self._error, None
        event.at = float(sum(len(queue.done_steps) for queue in self.device.queues))

    def _tell(self) -> None:
        error, self._error = self._error, None
        if error:
            raise error


@contextmanager
def held_device() -> Iterator[FakeMemoryDevice]:
    """A device whose queues hold their work until it is released; checked at the end."""
    device = FakeMemoryDevice()
    yield device
    device.let_go()
    device.check()
