# SPDX-License-Identifier: Apache-2.0
"""What `pinning bench` measures on this machine; `bench_view` shows it and `plot` draws it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Literal

import numpy
from numpy.typing import NDArray

import pinning
from pagetable import PageTable
from pinning.cli.machine import Bound, description, fit, memory_at
from pinning.cli.output import Step
from pinning.cli.timing import Times, seconds, times
from pinning.cli.units import size as bytes_text
from pinning.machine.populate import huge_page_mode
from pinning.map.pinned_map import PinnedMap
from pinning.plugin import CopyDevice, Device, MemoryDevice

GIB = 1 << 30
_HUGE_PAGE = 2 << 20
_COPIES = (64 << 10, 1 << 20, 16 << 20, 256 << 20)
_BLOCKS = (4 << 10, 64 << 10)
_ALL_BLOCKS = 256 << 20  # bytes
_WAYS = ("to the device", "from the device")
# An address outside all regions of this process: lookups never access the memory itself.
_SOMEWHERE = 1 << 40


@dataclass(frozen=True)
class Effort:
    """How much to measure: region counts, the largest buffer in bytes, how often."""

    regions: tuple[int, ...]
    lookups: int
    batch: int
    largest: int
    repeats: int


FULL = Effort(regions=(1, 100, 10_000, 100_000), lookups=20_000, batch=1_000_000, largest=GIB, repeats=5)
QUICK = Effort(regions=(1, 10_000), lookups=5_000, batch=100_000, largest=64 << 20, repeats=3)


@dataclass(frozen=True)
class Lookup:
    """The time of one lookup, in seconds, with so many regions."""

    what: str
    regions: int
    times: Times


@dataclass(frozen=True)
class LockPair:
    """The time of one lock and its unlock inside a locked region, in seconds."""

    what: str
    times: Times


@dataclass(frozen=True)
class Registration:
    """The times of locking and unlocking `size` bytes, in seconds."""

    memory: str
    how: str
    size: int
    lock: Times
    unlock: Times


@dataclass(frozen=True)
class CopyRow:
    """The time of one copy of `size` bytes, in seconds: by the vendor, and by `pinning.copy` of pageable memory."""

    direction: str
    size: int
    pageable: Times
    by_pinning: Times | None
    locked: Times


@dataclass(frozen=True)
class BatchRow:
    """The time per block of a copy of many, in seconds, between random places of locked memory and a device.

    `loop`: one `copy_async` per block; `engines`, `kernel`: one `copy_batch` by these; `kernel` may be None.
    """

    direction: str
    size: int
    blocks: int
    loop: Times
    engines: Times
    kernel: Times | None


@dataclass(frozen=True)
class BenchReport:
    """All measurements."""

    device: str
    description: str
    largest: int
    limited_by: Bound | None
    lookups: list[Lookup]
    lock_pairs: list[LockPair]
    registrations: list[Registration]
    copies: list[CopyRow]
    batches: list[BatchRow]


def run(device: Device, effort: Effort, step: Step) -> BenchReport:
    """Measure one device of this machine. After a PinningError nothing stays locked."""
    largest, limited_by = fit(device, effort.largest, 1, _HUGE_PAGE)
    return BenchReport(
        device=device.name,
        description=description(device),
        largest=largest,
        limited_by=limited_by,
        lookups=lookups(device, effort, step),
        lock_pairs=_lock_pairs(device, effort),
        registrations=list(_registrations(device, largest, effort, step)),
        copies=copies(device, [*(size for size in _COPIES if size < largest), largest], effort.repeats, step),
        batches=list(_batches(device, largest, effort, step)),
    )


def lookups(device: Device, effort: Effort, step: Step) -> list[Lookup]:
    """Time lookups of random addresses in a range in which every second page is a region."""
    rows = []
    for done, regions in enumerate(effort.regions):
        step(f"Looking up, {regions:,} regions", done, len(effort.regions))
        table = PageTable()
        held = PinnedMap(device)  # A separate map; its entries are registered, not locked: no vendor call.
        for start in range(_SOMEWHERE, _SOMEWHERE + 2 * regions * mmap.PAGESIZE, 2 * mmap.PAGESIZE):
            table.insert(start, mmap.PAGESIZE)
            held.register(start, mmap.PAGESIZE, start)
        span = 2 * regions * mmap.PAGESIZE
        batch = numpy.random.default_rng(0).integers(_SOMEWHERE, _SOMEWHERE + span, effort.batch, numpy.uint64)
        few: list[int] = batch[: effort.lookups].tolist()
        asked: list[tuple[str, int, Callable[[], object]]] = [
            ("ptr in PageTable", len(few), partial(_ask, table, few)),
            ("PageTable.find", len(few), partial(_find, table, few)),
            ("PageTable.contains_many", len(batch), partial(table.contains_many, batch)),
            ("ptr in PinnedMap", len(few), partial(_ask, held, few)),
            ("PinnedMap.find", len(few), partial(_find, held, few)),
        ]
        rows += [Lookup(what, regions, times(work, effort.repeats, per=count)) for what, count, work in asked]
    return rows


def _ask(container: PageTable | PinnedMap, addresses: Sequence[int]) -> None:
    for address in addresses:
        address in container  # noqa: B015


def _find(container: PageTable | PinnedMap, addresses: Sequence[int]) -> None:
    for address in addresses:
        container.find(address)


def _lock_pairs(device: Device, effort: Effort) -> list[LockPair]:
    count = effort.lookups // 10
    array = numpy.ones(mmap.PAGESIZE, numpy.uint8)
    part = array[mmap.PAGESIZE // 4 : mmap.PAGESIZE // 2]
    ptr, size = part.ctypes.data, part.nbytes
    pinned_map = pinning.pinned_map(device)

    def by_map() -> None:
        for _ in range(count):
            pinned_map.lock(ptr, size)
            pinned_map.unlock(ptr)

    def by_handle() -> None:
        for _ in range(count):
            pinning.lock(part, device=device).unlock()

    with pinning.lock(array, device=device):
        return [
            LockPair("PinnedMap.lock, unlock", times(by_map, effort.repeats, per=count)),
            LockPair("pinning.lock(array).unlock()", times(by_handle, effort.repeats, per=count)),
        ]


def _registrations(device: Device, size: int, effort: Effort, step: Step) -> Iterator[Registration]:
    """Time locks by `pinning.lock` and, of untouched memory, by the vendor alone, which then populates the pages."""
    pinned_map = pinning.pinned_map(device)

    def by_vendor(ptr: int) -> Callable[[], object]:
        pinned_map.lock(ptr, size)
        return partial(pinned_map.unlock, ptr)

    def by_pinning(ptr: int) -> Callable[[], object]:
        return pinning.lock((ptr, size), device=device).unlock

    cases = [("untouched", by_vendor), ("untouched", by_pinning), ("touched, 4 KiB pages", by_pinning)]
    if size >= _HUGE_PAGE and huge_page_mode() in ("always", "madvise"):
        cases.append(("touched, huge pages", by_pinning))
    for done, (memory, lock) in enumerate(cases):
        locking, unlocking = [], []
        tries = 1 + effort.repeats
        for each in range(tries):
            step(f"Locking {memory} memory", done * tries + each, len(cases) * tries)
            with _memory(size, huge="huge" in memory) as ptr:
                if memory != "untouched":
                    memory_at(ptr, size)[:: mmap.PAGESIZE] = 1
                begin = perf_counter()
                unlock = lock(ptr)
                locking.append(perf_counter() - begin)
                unlocking.append(seconds(unlock))
        how = "vendor alone" if lock is by_vendor else "pinning.lock"
        yield Registration(memory, how, size, Times.of(locking[1:]), Times.of(unlocking[1:]))


@contextmanager
def _memory(size: int, huge: bool) -> Iterator[int]:
    """The address of untouched memory in huge or in 4 KiB pages, aligned to huge ones."""
    mapped = mmap.mmap(-1, size + _HUGE_PAGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with mapped:
        mapped.madvise(mmap.MADV_HUGEPAGE if huge else mmap.MADV_NOHUGEPAGE)
        export = numpy.frombuffer(mapped, numpy.uint8)
        ptr = -(-export.ctypes.data // _HUGE_PAGE) * _HUGE_PAGE
        del export
        yield ptr


def copies(device: Device, sizes: Sequence[int], repeats: int, step: Step) -> list[CopyRow]:
    """Measure copies of these ascending sizes; empty if the device has no memory of its own."""
    if not isinstance(device, CopyDevice):
        return []
    cases = [(way, size) for way in _WAYS for size in sizes]
    there = device.allocate(sizes[-1])
    try:
        with _memory(sizes[-1], huge=False) as host:
            memory_at(host, sizes[-1])[:] = 1

            def measure(by: str, copy: Callable[[int, int, int], object], there: int) -> list[Times]:
                found: list[Times] = []
                for way, size in cases:
                    step(f"Copying {bytes_text(size)} {way}, {by}", len(found), len(cases))
                    ends = (there, host) if way == _WAYS[0] else (host, there)
                    # Several small ones in a row make the cost of the clock negligible.
                    found.append(times(partial(copy, *ends, size), repeats, in_a_row=max(1, (16 << 20) // size)))
                return found

            pageable = measure("pageable", device.copy, there)
            ours: Sequence[Times | None] = [None] * len(cases)
            if isinstance(device, MemoryDevice):
                with pinning.Queue(device) as queue, pinning.alloc(sizes[-1], device=device) as memory:
                    ours = measure("by pinning", partial(pinning.copy, queue=queue), memory.ptr)
            with pinning.lock((host, sizes[-1]), device=device):
                locked = measure("locked", device.copy, there)
    finally:
        device.free(there)
    rows = zip(cases, pageable, ours, locked, strict=True)
    return [CopyRow(way, size, slow, mine, fast) for (way, size), slow, mine, fast in rows]


def _batches(device: Device, largest: int, effort: Effort, step: Step) -> Iterator[BatchRow]:
    if not isinstance(device, MemoryDevice):
        return
    cases = [(way, size) for way in _WAYS for size in _BLOCKS if size <= largest]
    with _memory(largest, huge=False) as host:
        memory_at(host, largest)[:] = 1
        with pinning.lock((host, largest), device=device), pinning.Queue(device) as queue:
            for done, (way, size) in enumerate(cases):
                step(f"Copying blocks of {bytes_text(size)} {way}", done, len(cases))
                count = min(largest, _ALL_BLOCKS) // size
                with pinning.alloc(count * size, device=device) as there:
                    order = numpy.random.default_rng(0).permutation(count).astype(numpy.uint64)
                    near = numpy.uint64(host) + order * numpy.uint64(size)
                    far = numpy.uint64(there.ptr) + numpy.arange(count, dtype=numpy.uint64) * numpy.uint64(size)
                    ends = (far, near) if way == _WAYS[0] else (near, far)
                    yield _time_batches(queue, way, size, ends, effort)


def _time_batches(
    queue: pinning.Queue, way: str, size: int, ends: tuple[NDArray[numpy.uint64], NDArray[numpy.uint64]], effort: Effort
) -> BatchRow:
    count = len(ends[0])
    few = list(zip(*(side[: effort.lookups // 10].tolist() for side in ends), strict=True))

    def loop() -> None:
        for dst, src in few:
            pinning.copy_async(dst, src, size, queue)
        queue.synchronize()

    def batch(engine: Literal["copy", "kernel"]) -> Times:
        return times(lambda: pinning.copy_batch(*ends, size, queue, engine), effort.repeats, per=count)

    one_by_one = times(loop, effort.repeats, per=len(few))
    kernel = batch("kernel") if queue.moves_parts else None
    return BatchRow(way, size, count, one_by_one, batch("copy"), kernel)
