# SPDX-License-Identifier: Apache-2.0
"""What `pinning bench` measures on this machine; `bench_view` shows it and `plot` draws it."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy
from numpy.typing import NDArray

import pinning
from pagetable import PageTable
from pinning.cli.machine import Bound, bound, description, memory_at
from pinning.cli.output import Step
from pinning.cli.timing import Times, seconds, times
from pinning.cli.units import size as bytes_text
from pinning.errors import LockLimitError
from pinning.interop.memory_of import host_buffer
from pinning.machine.populate import huge_page_mode
from pinning.map.pinned_map import PinnedMap
from pinning.plugin import CopyDevice, Device, MemoryDevice

GIB = 1 << 30
_HUGE_PAGE = 2 << 20
_BLOCKS = (4 << 10, 64 << 10)
_ALL_BLOCKS = 256 << 20  # bytes
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
    """Measure one device of this machine.

    Raises
    ------
    PinningError
        Nothing can be locked, or the vendor fails. Nothing stays locked.
    """
    largest, limited_by = _largest(device, effort.largest)
    lookups: list[Lookup] = []
    for done, count in enumerate(effort.regions):
        step(f"Looking up, {count:,} regions", done, len(effort.regions))
        lookups += _lookups(device, count, effort)
    return BenchReport(
        device=device.name,
        description=description(device),
        largest=largest,
        limited_by=limited_by,
        lookups=lookups,
        lock_pairs=_lock_pairs(device, effort),
        registrations=list(_registrations(device, largest, effort, step)),
        copies=copies(device, _copy_sizes(largest), effort.repeats, step),
        batches=list(_batches(device, largest, effort, step)),
    )


def _largest(device: Device, wanted: int) -> tuple[int, Bound | None]:
    """The size of the largest buffer to lock, and the limit that makes it smaller than wanted, if any."""
    room = bound(device, memory_share=4)
    size = min(room.size, wanted)
    size -= size % (_HUGE_PAGE if size >= _HUGE_PAGE else mmap.PAGESIZE)
    if size <= 0:
        raise LockLimitError(f"{room.why}, too little to measure; to raise it: {room.remedy}")
    return size, room if room.size < wanted else None


def _lookups(device: Device, regions: int, effort: Effort) -> Iterator[Lookup]:
    """Time lookups of random addresses in a range in which every second page is a region."""
    table = PageTable()
    held = PinnedMap(device)  # A separate map; its entries are registered, not locked: no vendor call.
    for index in range(regions):
        start = _SOMEWHERE + 2 * index * mmap.PAGESIZE
        table.insert(start, mmap.PAGESIZE)
        held.register(start, mmap.PAGESIZE, start)
    span = 2 * regions * mmap.PAGESIZE
    batch = numpy.random.default_rng(0).integers(_SOMEWHERE, _SOMEWHERE + span, effort.batch, numpy.uint64)
    few: list[int] = batch[: effort.lookups].tolist()

    def contains(container: PageTable | PinnedMap) -> None:
        for address in few:
            address in container  # noqa: B015

    def find(container: PageTable | PinnedMap) -> None:
        for address in few:
            container.find(address)

    asked: list[tuple[str, int, Callable[[], object]]] = [
        ("ptr in PageTable", len(few), partial(contains, table)),
        ("PageTable.find", len(few), partial(find, table)),
        ("PageTable.contains_many", len(batch), partial(table.contains_many, batch)),
        ("ptr in PinnedMap", len(few), partial(contains, held)),
        ("PinnedMap.find", len(few), partial(find, held)),
    ]
    for what, count, work in asked:
        yield Lookup(what, regions, times(work, effort.repeats, per=count))


def _lock_pairs(device: Device, effort: Effort) -> list[LockPair]:
    count = effort.lookups // 10
    array = numpy.ones(mmap.PAGESIZE, numpy.uint8)
    part = array[mmap.PAGESIZE // 4 : mmap.PAGESIZE // 2]
    ptr, size, *_ = host_buffer(part)
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
    huge = size >= _HUGE_PAGE and huge_page_mode() in ("always", "madvise")
    vendor, ours = "vendor alone", "pinning.lock"
    cases = [("untouched", vendor, False), ("untouched", ours, False), ("touched, 4 KiB pages", ours, False)]
    if huge:
        cases.append(("touched, huge pages", ours, True))
    for done, (memory, how, in_huge_pages) in enumerate(cases):
        locking, unlocking = [], []
        tries = 1 + effort.repeats
        for each in range(tries):
            step(f"Locking {memory} memory", done * tries + each, len(cases) * tries)
            with _memory(size, in_huge_pages) as ptr:
                if memory != "untouched":
                    memory_at(ptr, size)[:: mmap.PAGESIZE] = 1
                if how == vendor:
                    locking.append(seconds(partial(pinned_map.lock, ptr, size)))
                    unlocking.append(seconds(partial(pinned_map.unlock, ptr)))
                else:
                    held: list[pinning.Lock] = []
                    locking.append(seconds(lambda: held.append(pinning.lock((ptr, size), device=device))))  # noqa: B023
                    unlocking.append(seconds(held[0].unlock))
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


def _copy_sizes(largest: int) -> list[int]:
    return [size for size in (64 << 10, 1 << 20, 16 << 20, 256 << 20) if size < largest] + [largest]


def copies(device: Device, sizes: Sequence[int], repeats: int, step: Step) -> list[CopyRow]:
    """Measure copies of these ascending sizes; empty if the device has no memory of its own."""
    if not isinstance(device, CopyDevice):
        return []
    cases = [(way, size) for way in ("to the device", "from the device") for size in sizes]
    with _memory(sizes[-1], huge=False) as host:
        memory_at(host, sizes[-1])[:] = 1
        pageable = _vendors_copies(device, host, cases, repeats, step)
        ours = _our_copies(device, host, cases, repeats, step) if isinstance(device, MemoryDevice) else {}
        with pinning.lock((host, sizes[-1]), device=device):
            locked = _vendors_copies(device, host, cases, repeats, step)
    return [CopyRow(*case, pageable[case], ours.get(case), locked[case]) for case in cases]


def _vendors_copies(
    device: CopyDevice, host: int, cases: Sequence[tuple[str, int]], repeats: int, step: Step
) -> dict[tuple[str, int], Times]:
    found: dict[tuple[str, int], Times] = {}
    device_memory = device.allocate(max(size for _, size in cases))
    try:
        for way, size in cases:
            step(f"Copying {bytes_text(size)} {way}", len(found), len(cases))
            dst, src = (device_memory, host) if way == "to the device" else (host, device_memory)
            found[way, size] = _time_copies(partial(device.copy, dst, src, size), size, repeats)
    finally:
        device.free(device_memory)
    return found


def _our_copies(
    device: MemoryDevice, host: int, cases: Sequence[tuple[str, int]], repeats: int, step: Step
) -> dict[tuple[str, int], Times]:
    found: dict[tuple[str, int], Times] = {}
    with pinning.Queue(device) as queue:
        for way, size in cases:
            step(f"Copying {bytes_text(size)} {way}, by pinning", len(found), len(cases))
            array = memory_at(host, size)
            with pinning.alloc(size, device=device) as there:
                dst, src = (there, array) if way == "to the device" else (array, there)
                found[way, size] = _time_copies(partial(pinning.copy, dst, src, queue=queue), size, repeats)
    return found


def _batches(device: Device, largest: int, effort: Effort, step: Step) -> Iterator[BatchRow]:
    if not isinstance(device, MemoryDevice):
        return
    cases = [(way, size) for way in ("to the device", "from the device") for size in _BLOCKS if size <= largest]
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
                    ends = (far, near) if way == "to the device" else (near, far)
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


def _time_copies(copy: Callable[[], object], size: int, repeats: int) -> Times:
    many = max(1, (16 << 20) // size)  # makes the cost of the clock negligible

    def work() -> None:
        for _ in range(many):
            copy()

    return times(work, repeats, per=many)
