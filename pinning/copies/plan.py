# SPDX-License-Identifier: Apache-2.0
"""Which path each part of a copy takes, and why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from pinning.copies.costs import costs
from pinning.copies.ends import End
from pinning.errors import PinningError
from pinning.locking.devices import pinned_map
from pinning.map.pinned_map import PinnedMap, Region
from pinning.plugin import MemoryConnection, MemoryDevice


class CopyPath(StrEnum):
    """How bytes travel."""

    DIRECT = "direct"  #: the device copies them itself, while the host goes on
    STAGED = "staged"  #: threads move them through pinned blocks, while the host goes on
    LOCK = "lock"  #: as direct, once the range has been locked for good
    PLAIN = "plain"  #: the vendor's own copy of pageable memory, for which the caller waits


class Reason(StrEnum):
    """Why bytes take their path, for programs; `Plan.reason` says it for people."""

    LOCKED = "locked"  #: the host's memory is locked
    ON_DEVICE = "on device"  #: both ends are memory of one device
    CONNECTED = "connected"  #: one device copies to another itself
    NOT_CONNECTED = "not connected"  #: two devices cannot reach each other
    LARGE = "large"  #: pageable, and worth staging
    SMALL = "small"  #: pageable, and the vendor's own copy is as fast
    NO_VALUES = "no values"  #: pageable, and the queue cannot wait for values, so it cannot stage
    ONE_THREAD = "one thread"  #: pageable, and one thread stages no faster than the vendor copies
    IN_HOST = "in host"  #: both ends are the host's
    REPEATED = "repeated"  #: copied often, and now locked for good
    KERNEL = "kernel"  #: of a batch: a kernel of the device moves them
    ENGINES = "engines"  #: of a batch: the copy engines move them
    PAGEABLE = "pageable"  #: of a batch: threads gather or scatter them


class Step(NamedTuple):
    """A part of a copy: `size` bytes from address `src` to `dst`, on one path."""

    dst: int
    src: int
    size: int
    path: CopyPath

    def __repr__(self) -> str:
        return f"Step(dst={self.dst:#x}, src={self.src:#x}, size={self.size}, path={self.path!r})"


@dataclass(frozen=True)
class Plan:
    """What `explain` tells and `copy_async` does.

    Attributes
    ----------
    path : CopyPath
        Of the copy; of one with several parts the slowest among them.
    reason : str
        Why this path.
    reason_code : Reason
        The same as a value to compare with.
    steps : tuple of Step
        In order; their borders are those of locks and of pieces, across which no vendor copies.
    to_device : bool or None
        Whether the host's memory is read (True) or written (False); None where no end or both are the host's.
    """

    path: CopyPath
    reason: str
    reason_code: Reason
    steps: tuple[Step, ...]
    to_device: bool | None

    @property
    def is_direct(self) -> bool:
        """Whether the device alone moves all bytes."""
        return all(step.path is CopyPath.DIRECT for step in self.steps)

    def as_locked(self) -> Plan:
        """The same copy of a range that has just been locked for good."""
        reason = "the host's memory is copied often and now locked for good"
        return replace(self, path=CopyPath.LOCK, reason=reason, reason_code=Reason.REPEATED)

    def __str__(self) -> str:
        size = sum(step.size for step in self.steps)
        head = f"{self.path}, {size} bytes: {self.reason}"
        if len(self.steps) == 1:
            return head
        return "\n".join([head, *(f"  {step.path:6}  {step.size:>14} bytes at {step.dst:#x}" for step in self.steps)])


class _Part(NamedTuple):
    """Part of a host range, and whether it is locked."""

    at: int
    size: int
    locked: bool


_SLOWEST_FIRST = (CopyPath.PLAIN, CopyPath.STAGED, CopyPath.LOCK, CopyPath.DIRECT)


def slowest(paths: Iterable[CopyPath]) -> CopyPath:
    """The slowest of several paths, by which a copy of several parts is called."""
    return min(paths, key=_SLOWEST_FIRST.index)


def plan(to: End, origin: End, size: int, device: MemoryDevice, *, stages: bool) -> Plan:
    """Choose for a copy of `size` bytes in a queue of `device`; `stages` says whether that queue can stage."""
    if to.device is not None and origin.device is not None:
        return _between_devices(to, origin, size)
    if to.device is None and origin.device is None:
        reason = "both ends are host memory, so a thread of the host copies"
        return Plan(CopyPath.PLAIN, reason, Reason.IN_HOST, (Step(to.ptr, origin.ptr, size, CopyPath.PLAIN),), None)
    to_device = to.device is not None
    host = origin.ptr if to_device else to.ptr
    parts = _parts(pinned_map(device), device, host, size, costs.least_worth_a_look(to_device))
    steps = []
    for part in parts:
        offset = part.at - host
        if part.locked:
            path = CopyPath.DIRECT
        elif stages and costs.stages(part.size, to_device):
            path = CopyPath.STAGED
        else:
            path = CopyPath.PLAIN
        steps.append(Step(to.ptr + offset, origin.ptr + offset, part.size, path))
    path = slowest(step.path for step in steps)
    return Plan(path, *_reason(parts, steps, path, stages, to_device), tuple(steps), to_device)


def _between_devices(to: End, origin: End, size: int) -> Plan:
    assert to.device is not None
    assert origin.device is not None
    step = Step(to.ptr, origin.ptr, size, CopyPath.DIRECT)
    if to.device is origin.device:
        return Plan(CopyPath.DIRECT, f"both ends are memory of {to.device.name}", Reason.ON_DEVICE, (step,), None)
    if origin.device.connection(to.device) is MemoryConnection.NONE:
        reason = f"{to.device.name} and {origin.device.name} are not connected, so it goes through the host"
        return Plan(CopyPath.STAGED, reason, Reason.NOT_CONNECTED, (step._replace(path=CopyPath.STAGED),), None)
    reason = f"{origin.device.name} copies to {to.device.name} itself"
    return Plan(CopyPath.DIRECT, reason, Reason.CONNECTED, (step,), None)


def _parts(on: PinnedMap, device: MemoryDevice, ptr: int, size: int, least: int) -> list[_Part]:
    """The range split wherever a lock, a piece of one, or pageable memory begins."""
    on.drain_invalidations()  # else the vendor takes memory for locked that has left
    region = on.find(ptr, size)
    if region is not None and region.in_one_piece(ptr, size) and _is_locked(on, region):
        return [_Part(ptr, size, True)]
    parts: list[_Part] = []
    at, end = ptr, ptr + size
    for region in on.overlapping(ptr, size, idle=True):  # to the vendor what is idle is locked
        if not _is_locked(on, region):
            continue
        if region.start > at:
            parts += _unknown(device, at, region.start - at, least)
            at = region.start
        # Of one that grows too: while a piece of it is being locked no copy may cross into what is locked by then.
        for border in [*(each for each in region.borders if at < each < end), min(region.start + region.whole, end)]:
            parts.append(_Part(at, border - at, border <= region.end))
            at = border
    if at < end:
        parts += _unknown(device, at, end - at, least)
    return parts


def _is_locked(on: PinnedMap, region: Region) -> bool:
    """False for one that was pinned by someone who has unpinned it since; it then leaves the map."""
    if not region.external or region.registered:
        return True
    with suppress(PinningError):  # something else is locked there by now
        return on.hold_if_locked(region.start, region.size) is not None
    return False


def _unknown(device: MemoryDevice, ptr: int, size: int, least: int) -> Iterator[_Part]:
    """A range that the map does not know. Of `least` bytes or more, others may have pinned it: the vendor knows."""
    end = ptr + size
    while ptr < end:
        pinned = device.is_pinned_ptr(ptr) if end - ptr >= least else None
        if pinned is None:
            yield _Part(ptr, end - ptr, False)
            return
        border = min(pinned.base + pinned.size, end)
        yield _Part(ptr, border - ptr, True)
        ptr = border


def too_small(to_device: bool, what: str = "the host's memory is pageable") -> str:
    """Why pageable memory is left to the vendor."""
    return f"{what}; the vendor's copy is as fast below {costs.stage_from(to_device)} bytes"


def _reason(parts: list[_Part], steps: list[Step], path: CopyPath, stages: bool, to_device: bool) -> tuple[str, Reason]:
    pageable = [part for part in parts if not part.locked]
    pieces = f", in {len(parts)} parts at the borders of locks" if len(parts) > 1 else ""
    if not pageable:
        return f"the host's memory is locked{pieces}", Reason.LOCKED
    plain = [step.size for step in steps if step.path is CopyPath.PLAIN]
    largest = max(plain or [part.size for part in pageable])
    what = f"the host's memory is pageable{pieces}" if len(pageable) == len(parts) else f"some is pageable{pieces}"
    if path is CopyPath.STAGED:
        return f"{what}; {largest} bytes are worth staging", Reason.LARGE
    if largest < costs.stage_from(to_device):
        return too_small(to_device, what), Reason.SMALL
    if not stages:
        return f"{what}; this queue cannot wait for values, so it cannot stage", Reason.NO_VALUES
    return f"{what}; one thread stages no faster than the vendor copies", Reason.ONE_THREAD
