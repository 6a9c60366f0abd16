# SPDX-License-Identifier: Apache-2.0
"""The vendor calls of a planned copy."""

from __future__ import annotations

from contextlib import suppress

from pinning.copies.costs import costs
from pinning.copies.plan import CopyPath, Plan, Step
from pinning.errors import PinningError
from pinning.locking.devices import pinned_map
from pinning.plugin import MemoryDevice, VendorQueue
from pinning.queues.staging import Staged, staging_of


def submit(
    plan: Plan, device: MemoryDevice, queue: VendorQueue, held: list[object], early: bool
) -> tuple[CopyPath, str]:
    """Put all steps of a plan into a queue. Adds to `held` what must live until they are done.

    `early`: the source may be read before the queue comes to it.

    Returns
    -------
    (CopyPath, str)
        Those of the plan, unless no staging ring was to be had.

    Raises
    ------
    VendorError
        The vendor refused a step. What was submitted before it is done by then.
    """
    path, reason = plan.path, plan.reason
    submitted = False
    try:
        for step in plan.steps:
            staged = _staged(step, plan, device, queue, early) if step.path is CopyPath.STAGED else None
            if staged is not None:
                held.append(staged)
            else:
                queue.copy(step.dst, step.src, step.size)
                if step.path is CopyPath.STAGED:
                    path = CopyPath.PLAIN
                    reason = f"{plan.reason}, but all {costs.staging_bytes} bytes for staging are in use, or refused"
            submitted = True
    except BaseException:
        if submitted:
            with suppress(BaseException):  # the first error says more
                queue.synchronize()
        raise
    return path, reason


def holds(plan: Plan, device: MemoryDevice) -> list[object] | None:
    """One more lock of each range that is copied directly; None where one of them is not locked any more."""
    on = pinned_map(device)
    held: list[object] = []
    for step in plan.steps:
        if step.path is CopyPath.DIRECT and plan.to_device is not None:
            try:
                hold = on.hold_if_locked(step.src if plan.to_device else step.dst, step.size)
            except PinningError:  # what others have pinned, and something of ours beside it: only the vendor knows
                continue
            if hold is None:
                return None
            held.append(hold)
    return held


def _staged(step: Step, plan: Plan, device: MemoryDevice, queue: VendorQueue, early: bool) -> Staged | None:
    staging = staging_of(device)
    if plan.to_device:
        return staging.copy_to_device(queue, step.dst, step.src, step.size, costs, early)
    return staging.copy_to_host(queue, step.dst, step.src, step.size, costs)
