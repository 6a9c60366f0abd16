# SPDX-License-Identifier: Apache-2.0
"""Copies that are more than one vendor call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from pinning.copies.bounce import bounce
from pinning.copies.costs import costs
from pinning.copies.ends import End
from pinning.copies.plan import CopyPath, Plan, Reason
from pinning.copies.work import Copy, RangeCopy, count_moved, submit_native
from pinning.errors import VendorError
from pinning.locking.devices import pinned_map
from pinning.machine.populate import check_mapped
from pinning.plugin import MemoryDevice
from pinning.plugin.locking import lock_limit_of
from pinning.queues import Event, Queue
from pinning.queues.staging import staging_of
from pinning.runtime.units import exact_size

_TRIES = 100  # attempts, if another thread locks or unlocks each time; the error of the last one is raised


def copy_planned(
    to: End,
    origin: End,
    size: int,
    queue: Queue,
    wait_for: Iterable[Event],
    early: bool,
    in_turn: bool,
) -> Copy:
    """Submit a copy that is more than one vendor call; `early` and `in_turn` as for `RangeCopy`."""
    check_addresses((to, size), (origin, size))
    host = to if to.device is None else origin
    attempt = partial(_copy_planned, to, origin, size, queue, wait_for, early, in_turn)
    return resubmitted(attempt, queue.device, lambda: (host.ptr, size))


def check_addresses(*ends: tuple[End, int]) -> None:
    """Raise InvalidRangeError if a bare address is of host memory that is not mapped: our threads would fault there."""
    for end, size in ends:
        if end.owner is None and end.device is None:
            check_mapped(end.ptr, size)


def resubmitted(attempt: Callable[[], Copy], device: MemoryDevice, span: Callable[[], tuple[int, int]]) -> Copy:
    """Plan and submit a copy by `attempt`; again, if the vendor refuses it and what is locked has changed meanwhile.

    Another thread may have locked a part of what was planned as pageable, and no vendor copies across its border.
    `span` returns the start and the size of a range that contains the host's memory.
    """
    device_map = pinned_map(device)
    for _ in range(_TRIES - 1):
        changes = device_map._changes()
        try:
            return attempt()
        except VendorError:
            if not device_map._changed_since(changes, *span()):
                raise
    return attempt()


def _copy_planned(
    to: End, origin: End, size: int, queue: Queue, wait_for: Iterable[Event], early: bool, in_turn: bool
) -> Copy:
    work = plan_copy(to, origin, size, queue, early, in_turn)
    plan = _within_reach(work.plan(), to, origin, queue)
    if plan.reason_code is Reason.NOT_CONNECTED:
        assert to.device is not None
        assert origin.device is not None
        queue._check_uncaptured("a copy through the host is made once")
        copy = bounce(plan.steps[0], to.device, origin.device, queue, wait_for, (to.owner, origin.owner), Copy)
        count_moved(CopyPath.STAGED, size)
    else:
        copy = submit_native(queue, work, wait_for)
    copy.path, copy.reason = plan.path, plan.reason
    if work.reason_code is Reason.NO_ROOM:
        copy.path = work.path
        copy.reason += f", but {no_room(queue.device)}"
    return copy


def explain_copy(to: End, origin: End, size: int, queue: Queue) -> Plan:
    """The plan that a copy would follow if it were submitted now."""
    plan = _within_reach(plan_copy(to, origin, size, queue).plan(), to, origin, queue)
    refusal = staging_refusal(queue.device) if plan.reason_code is Reason.LARGE else None
    return plan if refusal is None else plan.as_refused(refusal)


def _within_reach(plan: Plan, to: End, origin: End, queue: Queue) -> Plan:
    """The plan, unless one of two devices' memory is out of the queue's reach and does not go through the host."""
    if to.device is not None and origin.device is not None and plan.reason_code is not Reason.NOT_CONNECTED:
        for end in (to, origin):
            end.check_reach(queue)
    return plan


def no_room(device: MemoryDevice) -> str:
    """Why there was no memory to stage through."""
    in_use = f"all {costs.staging_bytes} bytes for staging are in use, or the vendor refused them"
    return staging_refusal(device) or in_use


def staging_refusal(device: MemoryDevice) -> str | None:
    """The limit that leaves no room for a staging ring; None if there is a ring, or no such limit."""
    staging = staging_of(device)
    if not staging.has_room(costs):
        sizes = f"costs.ring_bytes {costs.ring_bytes} and costs.staging_bytes {costs.staging_bytes}"
        return f"{sizes} leave no room for a ring"
    limit = lock_limit_of(device) if staging.empty else None
    free = costs.ring_bytes if limit is None else limit.limit - limit.used
    if limit is None or free >= costs.ring_bytes:
        return None
    return (
        f"{limit.name} leaves {exact_size(max(free, 0))} to lock, and staging needs {exact_size(costs.ring_bytes)}; "
        f"to raise it: {limit.remedy}"
    )


def plan_copy(to: End, origin: End, size: int, queue: Queue, early: bool = False, in_turn: bool = False) -> RangeCopy:
    """Plan a copy in a queue now, and hold the locks of what it copies directly; nothing is submitted."""
    return RangeCopy(to, origin, size, queue.device, queue.waits_for_values, early, in_turn)
