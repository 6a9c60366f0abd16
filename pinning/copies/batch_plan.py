# SPDX-License-Identifier: Apache-2.0
"""How the parts of a batch are copied."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from pinning.copies.plan import CopyPath, Plan, Reason, slowest

Engine = Literal["auto", "copy", "kernel"]

_GROUPS = (
    (CopyPath.DIRECT, "by a kernel of the device", Reason.KERNEL),
    (CopyPath.DIRECT, "by its copy engines", Reason.ENGINES),
    (CopyPath.STAGED, "from pageable memory", Reason.PAGEABLE),
    (CopyPath.STAGED, "to pageable memory", Reason.PAGEABLE),
    (CopyPath.STAGED, "by threads of the host", Reason.IN_HOST),
)


@dataclass(frozen=True)
class Group:
    """Parts of a batch that are copied in the same way: their number, their bytes in all, and a `Reason`."""

    path: CopyPath
    reason: str
    reason_code: Reason
    count: int
    nbytes: int

    def __str__(self) -> str:
        return f"  {self.path:6}  {self.nbytes:>14} bytes in {_parts(self.count)} {self.reason}"


@dataclass(frozen=True)
class BatchPlan:
    """The plan that `explain_batch` returns and `copy_batch_async` follows.

    Attributes
    ----------
    path : CopyPath
        The slowest among those of its groups.
    reason : str
        How many parts are copied in which way.
    groups : tuple of Group
        All parts. An item is one part, unless it crosses the border of a lock or is large.
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


@lru_cache(1024)  # programs repeat the same batches
def how(counts: tuple[int, ...], plain: int = 0) -> tuple[CopyPath, str]:
    """The slowest path of the parts of a batch, and how many parts are copied in which way: `counts`, as `_GROUPS`.

    `plain` pageable parts the vendor has copied itself: without a ring for them, or one small part to the host.
    """
    groups = [(*group, count) for group, count in zip(_GROUPS, counts, strict=True) if count]
    reason = ", ".join(f"{_parts(count)} {words}" for _, words, _, count in groups)
    if plain:
        return CopyPath.PLAIN, f"{reason}; {_parts(plain)} by the vendor's own copy"
    return slowest(path for path, _, _, _ in groups), reason


def plan_of_parts(counts: tuple[int, ...], sizes: tuple[int, ...]) -> BatchPlan:
    """The plan of a batch with these numbers of parts and bytes in each group of `how`."""
    rows = zip(_GROUPS, counts, sizes, strict=True)
    return BatchPlan(*how(counts), tuple(Group(*group, count, size) for group, count, size in rows if count))


def plan_of_item(plan: Plan) -> BatchPlan:
    """The plan of a batch of one item, from the plan of that item."""
    sizes: dict[CopyPath, list[int]] = {}
    for step in plan.steps:
        sizes.setdefault(step.path, []).append(step.size)
    groups = (Group(path, plan.reason, plan.reason_code, len(each), sum(each)) for path, each in sizes.items())
    return BatchPlan(slowest(sizes), plan.reason, tuple(groups))


def _parts(count: int) -> str:
    return f"{count} part{'' if count == 1 else 's'}"
