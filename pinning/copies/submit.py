# SPDX-License-Identifier: Apache-2.0
"""The vendor calls of a planned copy."""

from __future__ import annotations

from contextlib import suppress

from pinning.copies.costs import costs
from pinning.copies.plan import Path, Plan, Step
from pinning.copies.rings import rings_of
from pinning.copies.staging import LetGo, StagedCopy
from pinning.devices import pinned_map
from pinning.map import Hold
from pinning.plugin import MemoryDevice, VendorQueue

_WORD = 1 << 32


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
            copy = None
            if step.path is Path.STAGED:
                assert plan.to_device is not None
                host = step.src if plan.to_device else step.dst
                copy = rings_of(device).stage(queue, plan.to_device, host, step.size)
            if copy is not None:
                held.append(LetGo(copy))
                _submit_staged(copy, step, plan.to_device is True, queue, device)
            else:
                queue.copy(step.dst, step.src, step.size)
                if step.path is Path.STAGED:
                    path = Path.PLAIN
                    reason = f"{plan.reason}, but all {costs.staging_bytes} bytes for staging are in use"
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


def _submit_staged(copy: StagedCopy, step: Step, to_device: bool, queue: VendorQueue, device: MemoryDevice) -> None:
    ring, there, chunk_bytes = copy.ring, step.dst if to_device else step.src, copy.chunk_bytes
    moved, taken, base, blocks = ring.moved_address, ring.taken_address, copy.base, copy.block_count
    try:
        queue.call(copy.began, copy.argument)
        copy.submitted = True
        for i in range(copy.chunks):
            if to_device:
                queue.wait_value(moved, (base + i + 1) % _WORD)
                queue.copy(there + i * chunk_bytes, copy.block(i), copy.bytes(i))
            else:
                if i >= blocks:
                    queue.wait_value(moved, (base + i + 1 - blocks) % _WORD)
                queue.copy(copy.block(i), there + i * chunk_bytes, copy.bytes(i))
            queue.write_value(taken, (base + i + 1) % _WORD)
        if not to_device:
            queue.wait_value(moved, (base + copy.chunks) % _WORD)
            queue.write_value(taken, (base + copy.chunks + 1) % _WORD)
    except BaseException:
        # The counters will never agree again: the ring goes to nobody else, and is given back when nobody uses it.
        rings_of(device).take_out(ring)
        with suppress(BaseException):
            queue.synchronize()
        copy.abandon()
        with suppress(Exception):
            rings_of(device).give_back(ring)
        raise
