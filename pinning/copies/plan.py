# SPDX-License-Identifier: Apache-2.0
"""The plan of a copy: the path of each part, and why. <pinning/copy_plan.hpp> makes it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from pinning.copies.costs import costs
from pinning.copies.ends import End


class CopyPath(StrEnum):
    """How bytes travel."""

    DIRECT = "direct"  #: the device copies them itself, while the host goes on
    STAGED = "staged"  #: threads move them through pinned blocks, while the host goes on
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
    ONE_THREAD = "one thread"  #: pageable, and so few threads stage no faster than the vendor copies
    IN_HOST = "in host"  #: both ends are the host's
    KERNEL = "kernel"  #: of a batch: a kernel of the device moves them
    ENGINES = "engines"  #: of a batch: the copy engines move them
    PAGEABLE = "pageable"  #: of a batch: threads gather or scatter them
    NO_ROOM = "no room"  #: worth staging, but no pinned memory was available for it


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
    """The plan that `explain` returns and `copy_async` follows.

    Attributes
    ----------
    path : CopyPath
        The path of the copy; with several parts, the slowest among them.
    reason : str
        Why this path.
    reason_code : Reason
        The same as a value to compare with.
    steps : tuple of Step
        In order; their borders are those of locks and of pieces, across which no vendor copies.
    to_device : bool or None
        Whether the host's memory is read (True) or written (False); None if neither end or both are the host's.
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

    def as_refused(self, refusal: str) -> Plan:
        """The same copy if there is no pinned memory to stage through."""
        plain = {CopyPath.STAGED: CopyPath.PLAIN}
        steps = tuple(each._replace(path=plain.get(each.path, each.path)) for each in self.steps)
        reason = f"{self.reason}, but {refusal}"
        return replace(self, path=CopyPath.PLAIN, reason=reason, reason_code=Reason.NO_ROOM, steps=steps)

    def __str__(self) -> str:
        size = sum(step.size for step in self.steps)
        head = f"{self.path}, {size} bytes: {self.reason}"
        if len(self.steps) == 1:
            return head
        return "\n".join([head, *(f"  {step.path:6}  {step.size:>14} bytes at {step.dst:#x}" for step in self.steps)])


_SLOWEST_FIRST = (CopyPath.PLAIN, CopyPath.STAGED, CopyPath.DIRECT)


def slowest(paths: Iterable[CopyPath]) -> CopyPath:
    """The slowest of several paths, which is that of a copy with several parts."""
    return min(paths, key=_SLOWEST_FIRST.index)


def plan_of(
    path: CopyPath, code: Reason, steps: tuple[Step, ...], to_device: bool | None, to: End, origin: End
) -> Plan:
    """The plan that libpinning has made for a copy from `origin` to `to`, with its reason in a sentence."""
    match code:
        case Reason.IN_HOST:
            reason = "both ends are host memory, so a thread of the host copies"
        case Reason.ON_DEVICE:
            reason = f"both ends are memory of {_name(to)}"
        case Reason.CONNECTED:
            reason = f"{_name(origin)} copies to {_name(to)} itself"
        case Reason.NOT_CONNECTED:
            reason = f"{_name(to)} and {_name(origin)} are not connected, so it goes through the host"
        case _:
            reason = _of_host_end(code, path, steps, to_device is True)
    return Plan(path, reason, code, steps, to_device)


def _name(end: End) -> str:
    assert end.device is not None
    return end.device.name


def _of_host_end(code: Reason, path: CopyPath, steps: tuple[Step, ...], to_device: bool) -> str:
    pieces = f", in {len(steps)} parts at the borders of locks" if len(steps) > 1 else ""
    if code is Reason.LOCKED:
        return f"the host's memory is locked{pieces}"
    some = any(step.path is CopyPath.DIRECT for step in steps)
    what = f"some is pageable{pieces}" if some else f"the host's memory is pageable{pieces}"
    match code:
        case Reason.LARGE:
            return f"{what}; {max(step.size for step in steps if step.path is path)} bytes are worth staging"
        case Reason.SMALL:
            return too_small(to_device, what)
        case Reason.NO_VALUES:
            return f"{what}; this queue cannot wait for values, so it cannot stage"
    return f"{what}; so few threads stage no faster than the vendor copies"


def too_small(to_device: bool, what: str = "the host's memory is pageable") -> str:
    """Why pageable memory is left to the vendor."""
    return f"{what}; the vendor's copy is as fast below {costs.stage_from(to_device)} bytes"
