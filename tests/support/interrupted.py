# SPDX-License-Identifier: Apache-2.0
"""The scenarios that every_bytecode.py and under_signals.py interrupt, and the state that must be as before afterwards.

The variable INTERRUPTED names the device: host:0 by default, or the stand-in's cuda:0.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy

import pinning
import small_links
from fake_device import FakeDevice
from pinning import MemoryKind, arrays
from pinning.runtime.process import defer, look_after
from standins.libcuda import DRIVER, left

MOST = 2  # problems of one scenario: each may take a minute to confirm
WAIT = 60.0  # seconds, for what destructors leave to threads
DEVICE = os.environ.get("INTERRUPTED", "host:0")
SIZE = 3 << 13  # bytes: all that is locked at once fits in a limit of 64 KiB
FOLDER = Path(tempfile.mkdtemp(dir="/dev/shm"))  # so that nothing waits for a disk
atexit.register(shutil.rmtree, FOLDER)

_kept: list[Any] = []

Given = list[Any]  # what the scenario has been given, youngest last
Scenario = Callable[[Given], None]


# ---- the scenarios ----


def lock(given: Given) -> None:
    buffer = bytearray(SIZE)
    given.append(pinning.lock(buffer, device=DEVICE))
    given[-1].unlock()


def lock_with(given: Given) -> None:
    array = numpy.zeros(SIZE, "u1")
    with pinning.locked(array[:100], array[5000:], device=DEVICE), pinning.lock(array[6000:7000], device=DEVICE):
        assert pinning.is_locked(array[6000:], device=DEVICE)
    pinning.find(array)


def lock_in_the_background(given: Given) -> None:
    buffer = bytearray(SIZE)
    given.append(pinning.lock_async(buffer, device=DEVICE, piece=SIZE // 3))
    given[-1].wait(SIZE // 3)
    given.append(given[-1].wait())
    given[-1].unlock()
    with pinning.lock_async(buffer, device=DEVICE, unit=1000) as pending:
        pending.wait().unlock()
    given.append(pinning.lock_async(buffer, device=DEVICE))
    given[-1].cancel()


def lock_what_is_idle(given: Given) -> None:
    buffer = bytearray(SIZE)
    pinning.budget(idle=True)
    for _ in range(2):
        given.append(pinning.lock(buffer, device=DEVICE))
        given[-1].unlock()
    pinning.give_back_idle(1)
    pinning.budget(idle=False)


def lock_in_a_map_that_closes(given: Given) -> None:
    array = numpy.zeros(SIZE, "u1")
    with pinning.PinnedMap(pinning.device(DEVICE)) as pinned:
        pinned.lock(array.ctypes.data, array.nbytes)
        pinned.lock(array.ctypes.data + 10, 100)


def lock_in_the_map_of_a_python_device(given: Given) -> None:
    with pinning.PinnedMap(FakeDevice()) as pinned:
        pinned.lock(0x10000, 100)
        pinned.lock_mapped(0x20000, 100, "on")
        pinned.register(0x30000, 100, 0x30000)
        pinned.unlock(0x10000)


def allocate(kind: MemoryKind) -> Scenario:
    def scenario(given: Given) -> None:
        given.append(pinning.alloc(SIZE, kind, device=DEVICE))
        given[-1].free()

    return scenario


def context(given: Given) -> None:
    with pinning.Context(DEVICE) as owner:
        given.append(owner.alloc(SIZE, MemoryKind.SHARED))
        given[-1].free()


def pool(given: Given) -> None:
    with pinning.Context(DEVICE) as owner, pinning.Queue(DEVICE) as queue, pinning.Pool(owner) as mine:
        given.append(queue.alloc(1000, pool=mine)[0])
        queue.free(given[-1])
        mine.trim_to(0)
        given.append(queue.alloc(SIZE, pool=mine)[0])
        given[-1].free()
        queue.synchronize()


def queue(given: Given) -> None:
    with pinning.Queue(DEVICE) as one, pinning.Queue(DEVICE, order="out_of_order") as other:
        event = one.record()
        other.wait_for(event)
        other.call(list).wait()
        one.synchronize()


def events(given: Given) -> None:
    with pinning.Queue(DEVICE) as one, pinning.Queue(DEVICE) as other:
        first = one.record()
        last = other.submit(lambda vendor: None, (first,))
        last.wait()
        assert first.done()
        other.record().elapsed(first)
        with suppress(ZeroDivisionError):
            one.call(lambda: 1 // 0).wait()


def copy(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1")
    given.append(pinning.alloc(SIZE, device=DEVICE))
    pinning.copy(given[0], source)
    with pinning.Queue(DEVICE) as one:
        back = numpy.zeros_like(source)
        pinning.fill_async(given[0], 0, 10, queue=one)
        pinning.copy_async(back, given[0], queue=one).wait()
    assert (back[10:] == source[10:]).all()
    given[0].free()


def copy_locked(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1")
    given.append(pinning.alloc(SIZE, device=DEVICE))
    with pinning.lock(source, device=DEVICE) as locked:
        pinning.copy(given[0], source)
        pinning.copy(locked, given[0])
    given[0].free()


def copy_staged(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1")
    given.append(pinning.alloc(SIZE, device=DEVICE))
    with pinning.Queue(DEVICE) as one:
        back = numpy.zeros_like(source)
        pinning.copy_async(given[0], source, queue=one)
        pinning.copy_async(back, given[0], queue=one).wait()
    assert (back == source).all()
    given[0].free()


def copy_over_links(given: Given) -> None:
    """To the device in rounds, and back all at once. The memory is kept: it takes longer to make than to copy."""
    size = SIZE if DEVICE == "host:0" else 72 * small_links.MIB
    if not _kept:
        _kept.extend((numpy.arange(size, dtype="u1"), numpy.zeros(size, "u1"), pinning.alloc(size, device=DEVICE)))
        _kept.append(DEVICE == "host:0" or pinning.lock(_kept[0], device=DEVICE))
    source, back, there = _kept[:3]
    with pinning.Queue(DEVICE, links="idle") as one:
        pinning.copy(there, source, queue=one)
        back[::997] = 0
        pinning.copy_async(back, there, queue=one).wait()
    assert (back[::997] == source[::997]).all()


def copy_2d(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1").reshape(-1, 512)
    given.append(pinning.alloc(SIZE, device=DEVICE))
    with pinning.Queue(DEVICE) as one, pinning.lock(source[:20], device=DEVICE):
        pinning.copy_2d(given[0], 512, source, 512, 256, len(source), queue=one)
    given[0].free()


def batch(given: Given) -> None:
    source = numpy.arange(SIZE, dtype="u1").reshape(-1, 512)
    back = numpy.zeros_like(source)
    order = numpy.arange(len(source))[::-1]
    given.append(pinning.alloc(SIZE, device=DEVICE))
    with pinning.Queue(DEVICE) as one, pinning.lock(source[:20], device=DEVICE):
        pinning.copy_blocks_async(given[0], order, source, order, 512, queue=one)
        pinning.copy_batch(list(back[:10]), [given[0].ptr + 512 * row for row in range(10)], 512, queue=one)
        assert (back[:10] == source[:10]).all()
        ends = source.ctypes.data + 512 * order.astype("u8"), given[0].ptr + 512 * order.astype("u8")
        pinning.copy_batch_async(*ends, 512, queue=one).wait()
        pinning.explain_batch(*ends, 512)
    given[0].free()


def make_arrays(given: Given) -> None:
    there = arrays.to_device(numpy.arange(100.0), device=DEVICE)
    there[::2] = 0
    there[::-1].copy_to_host()
    del there
    arrays.synchronize(DEVICE)


def copy_arrays(given: Given) -> None:
    there = arrays.device_array((10, 10), device=DEVICE)
    there.copy().T.ravel()
    with arrays.stream(DEVICE) as stream:
        there.copy_to_host(stream=stream)


def make_host_arrays(given: Given) -> None:
    array = numpy.zeros(SIZE, "u1")
    with arrays.pinned(array[:100], array[50:5000], device=DEVICE):
        pass
    pinned = arrays.pinned_array(100, device=DEVICE)
    pinned[:] = 1
    del pinned
    arrays.synchronize(DEVICE)


def arena(given: Given) -> None:
    with pinning.Arena(SIZE, DEVICE, grow=2 * SIZE) as one:
        given.append(one)
        one.wait()
        given.append(one.allocate(1000))
        given.append(one.allocate(SIZE))
        given[-1].asarray()[:] = 1
        given[2].free()
        given[1].free()


def shared_arena(given: Given) -> None:
    name = f"interrupted-{os.getpid()}"
    given.append(pinning.Arena(SIZE, DEVICE, name=name))
    given.append(pinning.Arena(SIZE, [], name=name, part=slice(4096, SIZE)))
    given.append(given[1].allocate(1000))
    given[2].free()
    given[1].close()
    given[0].close()


def copy_file(given: Given) -> None:
    path = FOLDER / "bytes"
    path.write_bytes(bytes(SIZE))
    given.append(pinning.alloc(SIZE, device=DEVICE))
    with pinning.Queue(DEVICE) as one:
        copy = pinning.copy_file_async(given[0], path, queue=one)
        pinning.copy_file(given[0], path, 100, 1000, one)
        copy.wait()
    given[0].free()


def save_and_load(given: Given) -> None:
    array = numpy.arange(SIZE, dtype="u1")
    pinning.save_file({"a": array, "b": array[:7], "c": array[:9]}, FOLDER / "a", {"made": "here"})
    found = pinning.load_file([FOLDER / "a"], DEVICE, framework="pinning")
    assert (found["a"].copy_to_host() == array).all()
    pinning.save_file(found, FOLDER / "b")
    assert pinning.load_file(FOLDER / "b", "host", framework="numpy")["b"].tolist() == array[:7].tolist()


SCENARIOS: dict[str, Scenario] = {
    "lock": lock,
    "lock_with": lock_with,
    "lock_in_the_background": lock_in_the_background,
    "lock_what_is_idle": lock_what_is_idle,
    "lock_in_a_map_that_closes": lock_in_a_map_that_closes,
    "lock_in_the_map_of_a_python_device": lock_in_the_map_of_a_python_device,
    "allocate_device": allocate(MemoryKind.DEVICE),
    "allocate_host": allocate(MemoryKind.HOST),
    "allocate_shared": allocate(MemoryKind.SHARED),
    "context": context,
    "pool": pool,
    "queue": queue,
    "events": events,
    "copy": copy,
    "copy_locked": copy_locked,
    "copy_staged": copy_staged,
    "copy_over_links": copy_over_links,
    "copy_2d": copy_2d,
    "batch": batch,
    "make_arrays": make_arrays,
    "copy_arrays": copy_arrays,
    "make_host_arrays": make_host_arrays,
    "arena": arena,
    "shared_arena": shared_arena,
    "copy_file": copy_file,
    "save_and_load": save_and_load,
}


# ---- the state that must be as before ----


def prepare(name: str) -> Scenario:
    """Run the scenario a few times, so that all that is imported or made once exists; return it."""
    small_links.shrink()
    costs = pinning.copies.costs
    costs.stage_to_device = costs.stage_to_host = SIZE if name == "copy_staged" else 2 * SIZE
    costs.ring_bytes, costs.threads = 4 << 20, 2  # the smallest, which is made fastest
    with pinning.lock(bytearray(1), device=DEVICE):
        pass  # makes all that a first lock makes: a scenario's own may be cancelled before it has locked
    for _ in range(3):
        SCENARIOS[name]([])
    started = threading.Event()
    defer(started.set)
    started.wait(WAIT)
    looking = threading.Event()
    look_after(looking.set)
    looking.wait(WAIT)
    gc.collect()
    gc.freeze()  # so that later collections are quick: they look at what is made from here on
    return SCENARIOS[name]


def state(whole: bool = True) -> dict[str, object]:
    """All that would show a leak; the mappings, which the kernel takes longest to list, only if `whole`."""
    arrays.synchronize(DEVICE)
    pinning.copies.trim_staging()
    pools = [pinning.memory.default_pool(pinning.device(DEVICE), kind) for kind in MemoryKind]
    for pool in pools:
        pool.trim_to(0)
    figures = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found: dict[str, object] = {
        "KiB that the kernel has locked": int(figures["VmLck"].split()[0]),
        "regions": [(region.start, region.size) for region in pinning.pinned_map(DEVICE)],
        "in pools": [(pool.used, pool.reserved) for pool in pools],
        "named arenas": [path.name for path in Path("/dev/shm").glob(f"*.interrupted-{os.getpid()}")],
        "threads": threads(),
        "Python's threads": threading.active_count(),
        "descriptors": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "unfinished files": [each.name for each in FOLDER.iterdir() if each.name.endswith(".part")],
    }
    if whole:
        found["arenas' memory"] = arenas_mapped()
    if DEVICE != "host:0":
        found |= {"registered": DRIVER.standin(Path(os.devnull)).registrations(), **left()}
    return found


def threads() -> Counter[str]:
    """How many threads have each name: those of queues and services have names of their own."""
    names = Counter[str]()
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # it has ended
            names[(task / "comm").read_text().strip()] += 1
    return names


def arenas_mapped() -> int:
    """The number of mappings that a child of fork does not get (``dc``), and of those with names."""
    text = Path("/proc/self/smaps").read_bytes()
    return text.count(b" dc ") + text.count(b"pinning-arena")


def give_back(given: Given) -> list[str]:
    """Give back what the scenario was given, as a user would; return the refusals, which are problems."""
    refused = []
    pinning.budget(idle=False)
    arrays.synchronize(DEVICE)  # work that was submitted may use it
    while given:
        each = given.pop()
        try:
            if isinstance(each, pinning.PendingLock):
                each.cancel()
            elif isinstance(each, pinning.Lock):
                each.unlock()
            elif isinstance(each, pinning.Arena):
                each.close()
            elif not each.freed:
                each.free()
        except BaseException as error:
            refused.append(f"cannot be given back: {each!r}: {error!r}")
    return refused


def works_again(scenario: Scenario, given: Given) -> list[str]:
    """Run the scenario once more, undisturbed; return what goes wrong."""
    try:
        scenario(given)
    except BaseException as afterwards:
        give_back(given)
        return [f"afterwards: {afterwards!r}"]
    return []


def on_the_way_of(error: type[BaseException], other: BaseException | None) -> bool:
    """Whether `other` is such an error, or was raised by the end of a `with` block that such an error passed."""
    return other is not None and (isinstance(other, error) or on_the_way_of(error, other.__context__))


def differences(before: dict[str, object], whole: bool = True) -> list[str]:
    end, pause = time.monotonic() + WAIT, 0.001
    while True:
        now = state(whole)
        found = [f"{name}: {before[name]} before, {now[name]} now" for name in now if not_as_before(before, now, name)]
        if not found or time.monotonic() > end:
            return found
        gc.collect()  # what was dropped may be a cycle
        time.sleep(pause)
        pause = min(2 * pause, 0.1)


class Findings:
    """The problems of one scenario: each is reported once, and the program ends after `MOST`."""

    def __init__(self, name: str) -> None:
        self.name, self.count, self.before = name, 0, state()

    def tell(self, where: str, problems: list[str]) -> None:
        for problem in problems:
            self.count += 1
            print(f"{self.name} {where}: {problem}", flush=True)
        if problems:
            self.before = state()
        if self.count >= MOST:
            sys.exit("enough is wrong, the rest is not tried")


def not_as_before(before: dict[str, object], now: dict[str, object], name: str) -> bool:
    was, is_now = before[name], now[name]
    if isinstance(was, Counter) and isinstance(is_now, Counter):
        return not is_now <= was  # fewer is no leak
    if isinstance(was, int) and name in ("Python's threads", "descriptors"):
        return int(str(is_now)) > was
    return was != is_now
