# SPDX-License-Identifier: Apache-2.0
"""The steps of `pinning demo` and their results; `demo_view` shows them."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import perf_counter

import numpy
from numpy.typing import NDArray

import pinning
from pagetable import PageTable
from pinning.cli.bench import CopyRow, copies
from pinning.cli.demo_buffers import CHUNK, DemoBuffer, Fit, fit, pattern, real_buffers
from pinning.cli.machine import description, locked_by_kernel
from pinning.cli.output import Step
from pinning.cli.timing import Times, seconds, times
from pinning.locking.devices import is_host
from pinning.plugin import CopyDevice, Device

_QUERIES, _BATCH = 20_000, 1_000_000


@dataclass(frozen=True)
class LockedBuffer:
    """A buffer of the demo: its size, how many bytes were locked, and how long that took."""

    name: str
    size: int
    locked: int
    seconds: float


@dataclass(frozen=True)
class RegionRow:
    """A region of the map, and the buffer in it."""

    buffer: str
    start: int
    size: int
    device_ptr: int
    references: int


@dataclass(frozen=True)
class Sharing:
    """The number of references to a region, after one more or one fewer lock in it."""

    what: str
    references: int


@dataclass(frozen=True)
class Witness:
    """Locked bytes, as reported by the kernel (for mlock) and by the vendor (for these buffers)."""

    when: str
    vmlck: int
    is_pinned_ptr: int


@dataclass(frozen=True)
class Query:
    """The time of one lookup, in seconds, over `count` lookups."""

    what: str
    count: int
    times: Times


@dataclass(frozen=True)
class Copy:
    """The copy of a buffer to device memory, and from there to a second buffer; times in seconds."""

    buffer: str
    size: int
    to_device: float
    from_device: float
    wrong_bytes: int


@dataclass(frozen=True)
class DemoReport:
    """All results of the demo. `checks` has for each part whether it went as expected."""

    device: str
    description: str
    fit: Fit
    buffers: list[LockedBuffer]
    missing: dict[str, str]
    regions: list[RegionRow]
    sharing: list[Sharing]
    refused: str
    witnesses: list[Witness]
    queries: list[Query]
    copies: list[Copy]
    bandwidth: list[CopyRow]
    checks: dict[str, bool]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(self.checks.values())


def run(device: Device, step: Step) -> DemoReport:
    """Lock real buffers on a device, look them up, copy them, compare them, unlock them.

    Raises
    ------
    PinningError, OSError
        Something is missing or fails. Nothing stays locked.
    """
    begin = perf_counter()
    fitted = fit(device)
    with real_buffers(fitted.sizes, step) as (buffers, missing):
        witnesses = [_witness("before", device, buffers)]
        with ExitStack() as locks:
            locked = [_lock(locks, device, buffer, step) for buffer in buffers]
            witnesses.append(_witness("locked", device, buffers))
            regions = _regions(device, buffers)
            sharing, shared = _share(device, buffers[0])
            refused = _overlap(device, buffers[0])
            unchanged = regions == _regions(device, buffers)
            queries, answered = _query(device, step)
            copied = _copies(device, buffers, step)
            # On the host, copies of locked and of pageable memory are the same.
            bandwidth = [] if is_host(device) else copies(device, [buffers[0].locked], 5, step)
        witnesses.append(_witness("unlocked", device, buffers))
        checks = {
            "every buffer is locked": [region.size for region in regions] == [row.locked for row in _by_start(buffers)],
            "locks inside a region share it": shared,
            "a partial overlap is refused": bool(refused) and unchanged,
            "kernel and vendor agree": _agree(device, buffers, witnesses),
            "every lookup is correct": answered,
            "every byte arrived": all(copy.wrong_bytes == 0 for copy in copied),
            "nothing stays locked": not pinning.regions(device) and not any(map(pinning.is_locked, _ptrs(buffers))),
        }
    return DemoReport(
        device=device.name,
        description=description(device),
        fit=fitted,
        buffers=locked,
        missing=missing,
        regions=regions,
        sharing=sharing,
        refused=refused,
        witnesses=witnesses,
        queries=queries,
        copies=copied,
        bandwidth=bandwidth,
        checks=checks,
        seconds=perf_counter() - begin,
    )


def _ptrs(buffers: Sequence[DemoBuffer]) -> list[int]:
    return [buffer.ptr for buffer in buffers]


def _by_start(buffers: Sequence[DemoBuffer]) -> list[DemoBuffer]:
    return sorted(buffers, key=lambda buffer: buffer.ptr)


def _lock(locks: ExitStack, device: Device, buffer: DemoBuffer, step: Step) -> LockedBuffer:
    progress = partial(step, f"Locking the {buffer.name}")
    progress(0, buffer.locked)
    begin = perf_counter()
    locks.enter_context(pinning.lock(buffer.owner, buffer.locked, device=device, progress=progress))
    return LockedBuffer(buffer.name, buffer.size, buffer.locked, perf_counter() - begin)


def _regions(device: Device, buffers: Sequence[DemoBuffer]) -> list[RegionRow]:
    names = {buffer.ptr: buffer.name for buffer in buffers}
    return [
        RegionRow(names[region.start], region.start, region.size, region.device_ptr, region.references)
        for region in pinning.regions(device)
    ]


def _share(device: Device, buffer: DemoBuffer) -> tuple[list[Sharing], bool]:
    """Lock a locked buffer once more, and a part of it."""
    pinned_map = pinning.pinned_map(device)
    half, quarter = buffer.locked // 2, buffer.locked // 4
    rows = []

    def see(what: str) -> None:
        region = pinned_map.find(buffer.ptr)
        rows.append(Sharing(what, region.references if region else 0))

    see("locked once")
    with pinning.lock(buffer.owner, buffer.locked, device=device):
        see("locked again (nested)")
        with pinning.lock((buffer.ptr + quarter, half), device=device) as part:
            see("its middle half also locked (contained)")
            region = pinned_map.find(buffer.ptr)
            offset_kept = region is not None and part.device_ptr == region.device_ptr + quarter
    see("both unlocked again")
    return rows, offset_kept and [row.references for row in rows] == [1, 2, 3, 1]


def _overlap(device: Device, buffer: DemoBuffer) -> str:
    """The refusal of a range that begins in a region and ends behind it; empty if it is not refused."""
    try:
        pinning.lock((buffer.ptr + buffer.locked // 2, buffer.locked), device=device).unlock()
    except pinning.PartialOverlapError as error:
        return str(error)
    return ""


def _witness(when: str, device: Device, buffers: Sequence[DemoBuffer]) -> Witness:
    pinned = 0
    for buffer in buffers:
        info = device.is_pinned_ptr(buffer.ptr)
        pinned += min(info.base + info.size - buffer.ptr, buffer.locked) if info else 0
    return Witness(when, locked_by_kernel(), pinned)


def _agree(device: Device, buffers: Sequence[DemoBuffer], witnesses: Sequence[Witness]) -> bool:
    before, during, after = witnesses
    all_locked = sum(buffer.locked for buffer in buffers)
    if [each.is_pinned_ptr for each in witnesses] != [0, all_locked, 0]:
        return False
    pages: set[int] = set()
    for buffer in buffers:
        pages.update(range(buffer.ptr // mmap.PAGESIZE, (buffer.ptr + buffer.locked - 1) // mmap.PAGESIZE + 1))
    by_mlock = len(pages) * mmap.PAGESIZE if is_host(device) else 0
    return before.vmlck == after.vmlck and during.vmlck - before.vmlck == by_mlock


def _query(device: Device, step: Step) -> tuple[list[Query], bool]:
    """Look up addresses in and around the regions: half are inside, and each region's borders are among them."""
    pinned_map = pinning.pinned_map(device)
    starts = numpy.array([region.start for region in pinned_map], numpy.uint64)
    sizes = numpy.array([region.size for region in pinned_map], numpy.uint64)
    random = numpy.random.default_rng(0)
    at = random.integers(0, len(starts), _BATCH)
    offsets = random.integers(0, 2 * sizes[at], dtype=numpy.uint64)
    borders = numpy.concatenate([starts, starts + sizes - numpy.uint64(1), starts + sizes])
    batch = numpy.concatenate([borders, starts[at] - sizes[at] // numpy.uint64(2) + offsets])[:_BATCH]
    truth = _in_any(batch, starts, sizes)
    few: list[int] = batch[:_QUERIES].tolist()

    table = PageTable()
    for region in pinned_map:
        table.insert(region.start, region.size)
    answers = [
        [address in pinned_map for address in few] == truth[:_QUERIES].tolist(),
        [pinned_map.find(address) is not None for address in few] == truth[:_QUERIES].tolist(),
        bool((table.contains_many(batch) == truth).all()),
    ]

    def ask_one_by_one() -> None:
        for address in few:
            address in pinned_map  # noqa: B015

    def find_one_by_one() -> None:
        for address in few:
            pinned_map.find(address)

    asked: list[tuple[str, int, Callable[[], object]]] = [
        ("ptr in pinned_map", len(few), ask_one_by_one),
        ("pinned_map.find(ptr)", len(few), find_one_by_one),
        ("PageTable.contains_many(ptrs)", len(batch), lambda: table.contains_many(batch)),
    ]
    rows = []
    for done, (what, count, work) in enumerate(asked):
        step("Looking up pointers", done, len(asked))
        rows.append(Query(what, count, times(work, 7, per=count)))
    return rows, all(answers)


def _in_any(
    addresses: NDArray[numpy.uint64], starts: NDArray[numpy.uint64], sizes: NDArray[numpy.uint64]
) -> NDArray[numpy.bool_]:
    flags = numpy.zeros(len(addresses), numpy.bool_)
    for start, size in zip(starts, sizes, strict=True):
        flags |= addresses - start < size  # below the start, the difference wraps to a large number
    return flags


def _copies(device: Device, buffers: Sequence[DemoBuffer], step: Step) -> list[Copy]:
    if not isinstance(device, CopyDevice):
        return []
    second = numpy.ones(CHUNK, numpy.uint8)
    on_device = device.allocate(CHUNK)
    try:
        # A copy back into pageable memory would take the driver's slow path.
        with nullcontext() if is_host(device) else pinning.lock(second, device=device):
            for ends in ((on_device, second.ctypes.data), (second.ctypes.data, on_device)):
                device.copy(*ends, CHUNK)  # the first copy is slower than the others
            return [_copy(device, on_device, buffer, second, step) for buffer in buffers]
    finally:
        device.free(on_device)


def _copy(device: CopyDevice, on_device: int, buffer: DemoBuffer, second: NDArray[numpy.uint8], step: Step) -> Copy:
    to_device = from_device = 0.0
    wrong = 0
    # A copy may not cross from locked to unlocked bytes: drivers refuse it.
    edges = sorted({*range(0, buffer.size, CHUNK), buffer.locked, buffer.size})
    for start, end in pairwise(edges):
        size = end - start
        to_device += seconds(lambda: device.copy(on_device, buffer.ptr + start, size))  # noqa: B023
        from_device += seconds(lambda: device.copy(second.ctypes.data, on_device, size))  # noqa: B023
        wrong += int(numpy.count_nonzero(second[:size] != pattern(buffer.seed, start, size)))
        step(f"Copying the {buffer.name}", end, buffer.size)
    return Copy(buffer.name, buffer.size, to_device, from_device, wrong)
