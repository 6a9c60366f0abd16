# SPDX-License-Identifier: Apache-2.0
"""`pinning demo`: a short `bench`, of real buffers whose bytes are compared; `demo_view` shows it."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

import numpy

import pinning
from pinning.cli.bench import QUICK, CopyRow, Lookup, copies, lookups
from pinning.cli.machine import Bound, description, fit, locked_by_kernel, memory_at
from pinning.cli.output import Step
from pinning.cli.timing import seconds
from pinning.cli.units import size as bytes_text
from pinning.locking.devices import is_host
from pinning.plugin import Device, MemoryDevice

_COUNT = 4  # buffers
_SIZE = 32 << 20  # of each; containers often have no more than 64 MiB of shared memory
_EFFORT = replace(QUICK, regions=(10_000,))


@dataclass(frozen=True)
class BufferRow:
    """A buffer; the seconds that its lock and its copies took, to device memory and from there to ordinary memory."""

    buffer: str
    size: int
    host_ptr: int
    device_ptr: int
    lock: float
    to_device: float | None = None  # None: the device copies nothing
    from_device: float | None = None
    wrong_bytes: int = 0


class Check(NamedTuple):
    """Whether something is as it should be, and what shows that."""

    what: str
    ok: bool
    seen: str


@dataclass(frozen=True)
class DemoReport:
    """All results of the demo. `missing` says why a buffer is absent, `paths` which path each way takes, and why."""

    device: str
    description: str
    limited_by: Bound | None
    missing: dict[str, str]
    buffers: list[BufferRow]
    paths: dict[str, str]
    checks: list[Check]
    lookups: list[Lookup]
    copies: list[CopyRow]
    seconds: float

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


def run(device: Device, step: Step) -> DemoReport:
    """Lock real buffers on a device, look them up, copy them, compare them, unlock them, and measure.

    After a PinningError or OSError nothing stays locked.
    """
    begin = perf_counter()
    # One share more than there are buffers: pages that are locked in part count in full.
    size, limited_by = fit(device, _SIZE, _COUNT + 1, mmap.PAGESIZE)
    buffers, missing = _buffers(size, step)
    before = locked_by_kernel()
    rows = []
    with ExitStack() as locks:
        for done, (name, buffer) in enumerate(buffers.items()):
            step(f"Locking the {name}", done, len(buffers))
            since = perf_counter()
            lock = locks.enter_context(pinning.lock(buffer, device=device))
            rows.append(BufferRow(name, lock.size, lock.ptr, lock.device_ptr, perf_counter() - since))
        grown = locked_by_kernel() - before
        checks = [_locked(device, rows, grown), _found(device, rows), _counted(device, rows[0])]
        checks.append(_overlap_refused(device, rows[0]))
        rows, paths = _copied(device, buffers, rows, step)
        if paths:
            wrong, total = sum(row.wrong_bytes for row in rows), sum(row.size for row in rows)
            checks.append(Check("every byte arrived", not wrong, f"{wrong:,} of {total:,} differ"))
        before = locked_by_kernel()  # what the copies are staged through stays locked, for the next ones
    checks.append(_unlocked(device, rows, before - locked_by_kernel() == grown))
    return DemoReport(
        device=device.name,
        description=description(device),
        limited_by=limited_by,
        missing=missing,
        buffers=rows,
        paths=paths,
        checks=checks,
        lookups=lookups(device, _EFFORT, step),
        # On the host, copies of locked and of pageable memory are the same.
        copies=[] if is_host(device) else copies(device, [_COUNT * size], _EFFORT.repeats, step),
        seconds=perf_counter() - begin,
    )


def _buffers(size: int, step: Step) -> tuple[dict[str, Any], dict[str, str]]:
    """Buffers of random bytes by name, and why one is missing: its folder is read-only, or has no room.

    The files have no names: nothing is left to clean up, however the process ends.
    """
    random = numpy.random.default_rng(0)
    buffers: dict[str, Any] = {
        "NumPy array": random.integers(0, 256, size, numpy.uint8),
        "bytearray": bytearray(random.bytes(size)),
    }
    missing = {}
    # A private mapping of the file: CUDA refuses shared writable ones on most file systems.
    for name, folder, access in (
        ("mapped file", None, mmap.ACCESS_COPY),
        ("shared memory", "/dev/shm", mmap.ACCESS_WRITE),
    ):
        step(f"Filling the {name}", len(buffers), _COUNT)
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(random.bytes(size))  # writing to the mapping would kill the process if there is no room
                file.flush()
                buffers[name] = mmap.mmap(file.fileno(), size, access=access)
        except OSError as error:
            missing[name] = f"{folder or 'TMPDIR'}: {error}"
    return buffers, missing


def _locked(device: Device, rows: Sequence[BufferRow], kernel: int) -> Check:
    infos = [(row, device.is_pinned_ptr(row.host_ptr)) for row in rows]
    pinned = [row.size for row, info in infos if info and info.base + info.size >= row.host_ptr + row.size]
    seen = f"{bytes_text(sum(pinned))} pinned on {device.name}"
    if kernel:  # a GPU's driver locks without mlock
        seen += f", {bytes_text(kernel)} counted by the kernel (VmLck)"
    ok = len(pinned) == len(rows) and (kernel >= sum(pinned) or not is_host(device))
    return Check("the buffers are locked", ok, seen)


def _unlocked(device: Device, rows: Sequence[BufferRow], kernel_agrees: bool) -> Check:
    left = len(pinning.regions(device)) + sum(device.is_pinned_ptr(row.host_ptr) is not None for row in rows)
    return Check("the buffers are unlocked", not left and kernel_agrees, f"none is pinned on {device.name}")


def _found(device: Device, rows: Sequence[BufferRow]) -> Check:
    right = 0
    for row in rows:
        for offset in (0, row.size // 2, row.size - 1):
            region = pinning.find(row.host_ptr + offset, device=device)
            right += region is not None and region.device_ptr_of(row.host_ptr + offset) == row.device_ptr + offset
        behind = pinning.find(row.host_ptr + row.size, device=device)
        right += behind is None or behind.start == row.host_ptr + row.size
    asked = 4 * len(rows)
    return Check("lookups find them, and nothing behind", right == asked, f"{right} of {asked} are right")


def _counted(device: Device, row: BufferRow) -> Check:
    quarter = row.size // 4
    with pinning.lock((row.host_ptr + quarter, 2 * quarter), device=device) as part:
        kept = part.device_ptr == row.device_ptr + quarter
        counts = [region.references for region in pinning.regions(device) if region.start == row.host_ptr]
    counts += [region.references for region in pinning.regions(device) if region.start == row.host_ptr]
    seen = "{} references, then {}".format(*counts)
    return Check("a lock inside a region is counted", kept and counts == [2, 1], seen)


def _overlap_refused(device: Device, row: BufferRow) -> Check:
    what = "a partial overlap is refused"
    try:
        pinning.lock((row.host_ptr + row.size // 2, row.size), device=device).unlock()
    except pinning.PartialOverlapError as error:
        return Check(what, True, type(error).__name__)
    return Check(what, False, "it was locked")


def _copied(
    device: Device, buffers: dict[str, Any], rows: list[BufferRow], step: Step
) -> tuple[list[BufferRow], dict[str, str]]:
    """Copy each buffer to the device and back: the rows with the times, and the path of both ways and its reason."""
    if not isinstance(device, MemoryDevice):
        return rows, {}
    copied, size = [], rows[0].size
    back: Any = numpy.zeros(size, numpy.uint8)
    with pinning.Queue(device) as queue, pinning.alloc(size, device=device) as there:
        ways = {"to the device": (there, buffers[rows[0].buffer]), "back, into ordinary memory": (back, there)}
        for ends in ways.values():
            pinning.copy(*ends, queue=queue)  # the first copy is slower than the others
        plans = {way: pinning.explain(*ends, queue=queue) for way, ends in ways.items()}
        for done, row in enumerate(rows):
            step(f"Copying the {row.buffer}", done, len(rows))
            to_device = seconds(partial(pinning.copy, there, buffers[row.buffer], queue=queue))
            from_device = seconds(partial(pinning.copy, back, there, queue=queue))
            wrong = int(numpy.count_nonzero(back != memory_at(row.host_ptr, size)))
            copied.append(replace(row, to_device=to_device, from_device=from_device, wrong_bytes=wrong))
    return copied, {way: f"{plan.path}, because {plan.reason}" for way, plan in plans.items()}
