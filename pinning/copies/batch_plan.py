# SPDX-License-Identifier: Apache-2.0
"""Which way the parts of a batch go."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from pinning.copies.batch_work import BatchCopy
from pinning.copies.plan import CopyPath, Plan, Reason, slowest

_GROUPS = {
    "kernel": (CopyPath.DIRECT, "by a kernel of the device", Reason.KERNEL),
    "engine": (CopyPath.DIRECT, "by its copy engines", Reason.ENGINES),
    "to_device": (CopyPath.STAGED, "from pageable memory", Reason.PAGEABLE),
    "to_host": (CopyPath.STAGED, "to pageable memory", Reason.PAGEABLE),
    "on_host": (CopyPath.STAGED, "by threads of the host", Reason.IN_HOST),
}


@dataclass(frozen=True)
class Group:
    """Parts of a batch that go the same way: how many, how many bytes they have in all, and a `Reason`."""

    path: CopyPath
    reason: str
    reason_code: Reason
    count: int
    nbytes: int

    def __str__(self) -> str:
        return f"  {self.path:6}  {self.nbytes:>14} bytes in {_parts(self.count)} {self.reason}"


@dataclass(frozen=True)
class BatchPlan:
    """What `explain_batch` tells and `copy_batch_async` does.

    Attributes
    ----------
    path : CopyPath
        The slowest among those of its groups.
    reason : str
        How many parts go which way.
    groups : tuple of Group
        All parts. An item is one, unless it crosses the border of a lock or is large.
    """

    path: CopyPath
    reason: str
    groups: tuple[Group, ...]

    def __str__(self) -> str:
        size = sum(group.nbytes for group in self.groups)
        head = f"{self.path}, {size} bytes: {self.reason}"
        if len(self.groups) == 1:
            return head
        return "\n".join([head, *map(str, self.groups)])


def how(work: BatchCopy) -> tuple[CopyPath, str]:
    """The slowest path that a part of this batch takes, and how many take which."""
    groups = [(_GROUPS[name], count) for name, count in work.counts.items() if count]
    path = slowest(path for (path, _, _), _ in groups)
    reason = ", ".join(f"{_parts(count)} {words}" for (_, words, _), count in groups)
    if work.plain:
        return CopyPath.PLAIN, f"{reason}; {_parts(work.plain)} by the vendor's own copy"
    return path, reason


def plan_of_batch(work: BatchCopy) -> BatchPlan:
    """That of a batch which is sorted natively."""
    sizes = work.sizes
    groups = [Group(*_GROUPS[name], count, sizes[name]) for name, count in work.counts.items() if count]
    return BatchPlan(*how(work), tuple(groups))


def plan_of_items(plans: Iterable[Plan]) -> BatchPlan:
    """That of a batch whose items are copied one after another, each as its own plan says."""
    sums: dict[tuple[CopyPath, str, Reason], tuple[int, int]] = {}
    for plan in plans:
        for step in plan.steps:
            way = step.path, plan.reason, plan.reason_code
            count, nbytes = sums.get(way, (0, 0))
            sums[way] = count + 1, nbytes + step.size
    groups = tuple(Group(*way, *sizes) for way, sizes in sums.items())
    reasons = dict.fromkeys(group.reason for group in groups)
    return BatchPlan(slowest(group.path for group in groups), "; ".join(reasons), groups)


def _parts(count: int) -> str:
    return f"{count} part{'' if count == 1 else 's'}"
