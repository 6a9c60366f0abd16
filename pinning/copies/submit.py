# SPDX-License-Identifier: Apache-2.0
"""The vendor calls of a planned copy."""

from __future__ import annotations

from contextlib import suppress

from pinning.copies.costs import costs
from pinning.copies.plan import Path, Plan, Step
from pinning.devices import pinned_map
from pinning.map import Hold
from pinning.plugin import MemoryDevice, VendorQueue
from pinning.staging import Staged, staging_of


def submit(plan: Plan, device: MemoryDevice, queue: VendorQueue, held: list[object]) -> tuple[Path, str]:
    """Put all steps of a plan into a queue. Adds to `held` what must live until they are done.

    Returns
    -------
    (Path, str)
        Those of the plan, unless no staging ring was to be had.

    Raises
    ------
    VendorError
        The vendor refused a step. What was submitted before it is done by then.
    """
    path, reason = plan.path, plan.reason
    submitted = False
    held += holds(plan, device)
    try:
        for step in plan.steps:
            staged = _staged(step, plan.to_device is True, device, queue) if step.path is Path.STAGED else None
            if staged is not None:
                held.append(staged)
            else:
                queue.copy(step.dst, step.src, step.size)
                if step.path is Path.STAGED:
                    path = Path.PLAIN
                    reason = f"{plan.reason}, but all {costs.staging_bytes} bytes for staging are in use, or refused"
            submitted = True
    except BaseException:
        if submitted:
            with suppress(BaseException):  # the first error says more
                queue.synchronize()
        raise
    return path, reason


def holds(plan: Plan, device: MemoryDevice) -> list[Hold]:
    """One more lock of each range that is copied directly, so that no unlock takes it away under the copy."""
    on = pinned_map(device)
    direct = [step for step in plan.steps if step.path is Path.DIRECT and plan.to_device is not None]
    ranges = [(step.src if plan.to_device else step.dst, step.size) for step in direct]
    # Not of what others have pinned, and the map does not know.
    return [Hold(on, *each, None, None, None) for each in ranges if on.find(*each) is not None]


def _staged(step: Step, to_device: bool, device: MemoryDevice, queue: VendorQueue) -> Staged | None:
    staging = staging_of(device)
    if to_device:
        return staging.copy_to_device(queue, step.dst, step.src, step.size, costs)
    return staging.copy_to_host(queue, step.dst, step.src, step.size, costs)
