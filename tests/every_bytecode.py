# SPDX-License-Identifier: Apache-2.0
"""Raises an exception at one bytecode of ours after another, and sees that all is as it was: a program of its own.

    every_bytecode.py SCENARIO EXCEPTION FIRST STEP      at bytecodes FIRST, FIRST + STEP, ...; prints what went wrong

A scenario is done as often as it has bytecodes. Afterwards the user gives back what he was given, whatever was raised
elsewhere is given back by its destructor, and the pages that the kernel has locked, the regions of the map, the pool's
figures and the threads are what they were before; then the same once more, undisturbed, works.
"""

from __future__ import annotations

import faulthandler
import gc
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy

import pinning
import pinning_host
from fake_device import FakeDevice
from pinning import MemoryKind, arrays
from pinning.lifecycle import later

WAIT = 60.0  # seconds, for what destructors leave to threads
HANG = 120.0  # seconds, after which a scenario has stopped for good
OURS = tuple(str(Path(package.__file__).parent) for package in (pinning, pinning_host))
HOST = "host:0"
SIZE = 3 << 16

Given = list[Any]  # what the user has been given, youngest last


class Injection:
    """Raises at the bytecode of this number, counted over all frames of ours."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self.at, self.error = at, error
        self.seen = 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Callable[..., object] | None:
        if not frame.f_code.co_filename.startswith(OURS):
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return self.step

    def step(self, frame: FrameType, event: str, argument: object) -> Callable[..., object]:
        if event == "opcode":
            self.seen += 1
            if self.seen == self.at:
                self.where = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno} {frame.f_code.co_qualname}"
                raise self.error
        return self.step


# ---- what is done ----


def lock(given: Given) -> None:
    buffer = bytearray(SIZE)
    given.append(pinning.lock(buffer, device=HOST))
    given[-1].unlock()


def lock_with(given: Given) -> None:
    array = numpy.zeros(SIZE, "u1")
    with pinning.locked(array[:100], array[5000:], device=HOST), pinning.lock(array[6000:7000], device=HOST):
        assert pinning.is_locked(array[6000:], device=HOST)
    pinning.find(array)


def lock_in_a_map_that_closes(given: Given) -> None:
    with pinning.PinnedMap(FakeDevice()) as pinned:
        pinned.lock(0x10000, 100)
        pinned.lock_mapped(0x20000, 100, "on")
        pinned.register(0x30000, 100, 0x30000)
        pinned.unlock(0x10000)


def allocate(kind: MemoryKind) -> Callable[[Given], None]:
    def scenario(given: Given) -> None:
        given.append(pinning.alloc(SIZE, kind, device=HOST))
        given[-1].free()

    return scenario


def context(given: Given) -> None:
    with pinning.Context(HOST) as owner:
        given.append(owner.alloc(SIZE, MemoryKind.SHARED))
        given[-1].free()


def pool(given: Given) -> None:
    with pinning.Context(HOST) as owner, pinning.Queue(HOST) as queue, pinning.Pool(owner) as mine:
        given.append(queue.alloc(1000, pool=mine)[0])
        queue.free(given[-1])
        mine.trim_to(0)
        given.append(queue.alloc(SIZE, pool=mine)[0])
        given[-1].free()
        queue.synchronize()


def queue(given: Given) -> None:
    with pinning.Queue(HOST) as one, pinning.Queue(HOST, order="out_of_order") as other:
        event = one.record()
        other.wait_for(event)
        other.call(list).wait()
        one.synchronize()


def copy(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1")
    given.append(pinning.alloc(SIZE, device=HOST))
    pinning.copy(given[0], source)
    with pinning.Queue(HOST) as one:
        back = numpy.zeros_like(source)
        pinning.fill(given[0], 0, 10, queue=one)
        pinning.copy_async(back, given[0], queue=one).wait()
    assert (back[10:] == source[10:]).all()
    given[0].free()


def copy_locked(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1")
    given.append(pinning.alloc(SIZE, device=HOST))
    with pinning.lock(source, device=HOST) as locked:
        pinning.copy(given[0], source)
        pinning.copy(locked, given[0])
    given[0].free()


def make_arrays(given: Given) -> None:
    there = arrays.to_device(numpy.arange(100.0), device=HOST)
    there[::2] = 0
    there[::-1].copy_to_host()
    del there
    arrays.synchronize(HOST)


def copy_arrays(given: Given) -> None:
    there = arrays.device_array((10, 10), device=HOST)
    there.copy().T.ravel()
    with arrays.stream(HOST) as stream:
        there.copy_to_host(stream=stream)


def make_host_arrays(given: Given) -> None:
    array = numpy.zeros(SIZE, "u1")
    with arrays.pinned(array[:100], array[50:5000], device=HOST):
        pass
    pinned = arrays.pinned_array(100, device=HOST)
    pinned[:] = 1
    del pinned
    arrays.synchronize(HOST)


SCENARIOS: dict[str, Callable[[Given], None]] = {
    "lock": lock,
    "lock_with": lock_with,
    "lock_in_a_map_that_closes": lock_in_a_map_that_closes,
    "allocate_device": allocate(MemoryKind.DEVICE),
    "allocate_host": allocate(MemoryKind.HOST),
    "allocate_shared": allocate(MemoryKind.SHARED),
    "context": context,
    "pool": pool,
    "queue": queue,
    "copy": copy,
    "copy_locked": copy_locked,
    "make_arrays": make_arrays,
    "copy_arrays": copy_arrays,
    "make_host_arrays": make_host_arrays,
}


# ---- what must be as it was ----


def state() -> dict[str, object]:
    """What leaks would show in."""
    arrays.synchronize(HOST)
    on = pinning.pinned_map(HOST)
    for kind in MemoryKind:
        pinning.pools.default_pool(pinning.device(HOST), kind).trim_to(0)
    status = Path("/proc/self/status").read_text()
    figures = dict(line.split(":", 1) for line in status.splitlines())
    pools = [pinning.pools.default_pool(pinning.device(HOST), kind) for kind in MemoryKind]
    return {
        "KiB that the kernel has locked": int(figures["VmLck"].split()[0]),
        "regions": [(region.start, region.size) for region in on],
        "in pools": [(each.used, each.reserved) for each in pools],
        "threads": int(figures["Threads"]),
        "Python's threads": threading.active_count(),
    }


def give_back(given: Given) -> list[str]:
    """What the user does with what he was given; what is refused is wrong."""
    refused = []
    pinning.device(HOST).synchronize()  # type: ignore[attr-defined]  # work that was submitted may use it
    while given:
        each = given.pop()
        try:
            if isinstance(each, pinning.Lock):
                each.unlock()
            elif not each.freed:
                each.free()
        except BaseException as error:
            refused.append(f"cannot be given back: {each!r}: {error!r}")
    return refused


def on_the_way_of(error: type[BaseException], other: BaseException | None) -> bool:
    """Whether it is what the ends of `with` blocks have made of an exception that passed them."""
    return other is not None and (isinstance(other, error) or on_the_way_of(error, other.__context__))


def differences(before: dict[str, object]) -> list[str]:
    end = time.monotonic() + WAIT
    while True:
        now = state()
        found = [
            f"{name}: {before[name]} before, {now[name]} now" for name in before if not_as_before(before, now, name)
        ]
        if not found or time.monotonic() > end:
            return found
        gc.collect()  # what was dropped may be a cycle
        time.sleep(0.001)


def not_as_before(before: dict[str, object], now: dict[str, object], name: str) -> bool:
    if "threads" in name:
        return int(str(now[name])) > int(str(before[name]))  # fewer is no leak
    return before[name] != now[name]


def main(name: str, error: type[BaseException], first: int, step: int) -> None:
    warnings.simplefilter("ignore")
    sys.unraisablehook = lambda _: None  # Python tells of what is raised in a destructor, and goes on
    scenario = SCENARIOS[name]
    for _ in range(3):
        scenario([])  # imports, and makes what is made once
    started = threading.Event()
    later(started.set)
    started.wait(WAIT)
    gc.collect()
    gc.disable()  # so that the same is done each time
    faulthandler.dump_traceback_later(HANG, exit=True)  # by a thread of its own
    before = state()
    at, wrong, points = first, 0, 0
    while True:
        faulthandler.dump_traceback_later(HANG, exit=True)
        injection, given, problems = Injection(at, error), [], []
        sys.settrace(injection)
        try:
            scenario(given)
        except error:
            pass
        except BaseException as other:
            if not injection.where:
                raise
            if not on_the_way_of(error, other):
                problems.append(f"raises {other!r} instead")
        finally:
            sys.settrace(None)
        if not injection.where:
            break
        points += 1
        problems += give_back(given)
        problems += differences(before)
        try:
            scenario(given)
        except BaseException as afterwards:
            problems.append(f"afterwards: {afterwards!r}")
            give_back(given)
        for problem in problems:
            wrong += 1
            print(f"{at} {injection.where}: {problem}", flush=True)
        at += step
    faulthandler.cancel_dump_traceback_later()
    print(f"{points} of {injection.seen} bytecodes, {wrong} problems", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], {"KeyboardInterrupt": KeyboardInterrupt, "MemoryError": MemoryError}[sys.argv[2]],
         int(sys.argv[3]), int(sys.argv[4]))  # fmt: skip
