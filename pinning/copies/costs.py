# SPDX-License-Identifier: Apache-2.0
"""The costs of the paths of a copy, and the limits on what they may use.

The sizes come from runs of ``benchmarks/python/copies.py`` on the machines named in ``benchmarks/results``: below them
the driver's own pageable copy is as fast or faster, because waking threads costs as much as copying a few MiB.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pinning.errors import InvalidRangeError
from pinning.queues.links import Links, named_links
from pinning.queues.staging import default_limits
from pinning.runtime.arguments import MOST_BYTES, describe, integer

_DEFAULT = default_limits()
_MOST_THREADS = 1 << 10
_UNITS = {
    "threads": ("threads", _MOST_THREADS),
    "threads_to_device": ("threads", _MOST_THREADS),
    "threads_to_host": ("threads", _MOST_THREADS),
    "kernel_from_items": ("items", MOST_BYTES),
}  # of the others: bytes


@dataclass
class Costs:
    """Thresholds between paths, and limits; `costs` is the instance in use, and its fields may be set.

    Attributes
    ----------
    stage_to_device, stage_to_host : int
        Bytes of pageable memory from which a copy in that direction is staged.
    ring_bytes : int
        Pinned memory of one staging ring. A queue that stages has one, and gives it up when its copies are over. If
        less is left, rings are smaller, down to 4 MiB.
    staging_bytes : int
        Pinned memory that all rings of one device may take; beyond it copies take the plain path.
    chunk_bytes : int
        The most that a queue copies at once; down to half of it in copies below 32 times as much, and never more than a
        quarter of the ring. Between two chunks a GPU idles for 4 us.
    threads : int
        How many threads fill and empty rings; fixed at the first staged copy. With one, nothing is staged. By default
        three quarters of the processors that the process may use by its affinity and the quotas of its control groups,
        or all but four if that is more; at least two (one if there is one processor) and at most 48.
    threads_to_device, threads_to_host : int
        How many of them do so in one direction at a time while one device copies: by default at most 20, because more
        wait for one another (of 48, 20 move 51 GB/s from one GPU and 48 move 43); to the host also at most half of the
        processors, but at least three (of 16, 8 move 49 GB/s and 12 less). Copies of several devices at once may use
        half of that for each. All threads may read a file for several devices, write one, or copy where memory is still
        to be populated: a file's mapping that was never read, or new memory of the host. With 0, copies in that
        direction are left to the vendor.
    huge_from : int
        Bytes of new memory (that no page fault has populated yet) from which a copy into it asks the kernel for huge
        pages (MADV_HUGEPAGE), for those that it writes entirely; 0: never. The advice stays with the memory until it is
        unmapped, so the default, 32 MiB, is what malloc maps and unmaps as a whole.
    kernel_from_items, kernel_to_bytes : int
        In a batch of at least that many items, a kernel of the device, if it has one, moves those of at most that many
        bytes. A launch takes 4 us, and the copy engines move larger items faster.
    links : {"own", "idle"} or devices
        As in `pinning.Queue`, for all queues that are made without it; of devices that are named here, each queue uses
        those other than its own.

    Raises
    ------
    TypeError, InvalidRangeError, ArgumentError
        A value is no number of bytes, threads or items, is negative, or no such links: the field keeps its value.
    AttributeError
        There is no such field.
    """

    stage_to_device: int = _DEFAULT["stage_to_device"]
    stage_to_host: int = _DEFAULT["stage_to_host"]
    ring_bytes: int = _DEFAULT["ring_bytes"]
    staging_bytes: int = _DEFAULT["staging_bytes"]
    chunk_bytes: int = _DEFAULT["chunk_bytes"]
    threads: int = _DEFAULT["threads"]
    threads_to_device: int = _DEFAULT["threads_to_device"]
    threads_to_host: int = _DEFAULT["threads_to_host"]
    huge_from: int = _DEFAULT["huge_from"]
    kernel_from_items: int = _DEFAULT["kernel_from_items"]
    kernel_to_bytes: int = _DEFAULT["kernel_to_bytes"]
    links: Links = "own"

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self.__dataclass_fields__:
            raise AttributeError(f"there is no cost {name!r}; there are {', '.join(self.__dataclass_fields__)}")
        if name == "links":
            value = named_links(value)
        else:
            unit, most = _UNITS.get(name, ("bytes", MOST_BYTES))
            value = integer(value, name, f"a number of {unit}")
            if not 0 <= value <= most:
                raise InvalidRangeError(f"{name} is {describe(value)}; it must lie between 0 and {most}, in {unit}")
        super().__setattr__(name, value)

    def stages(self, size: int, to_device: bool) -> bool:
        """Whether a pageable range of `size` bytes is worth staging."""
        at_work = self.threads_to_device if to_device else self.threads_to_host
        return self.threads > 1 and at_work > 0 and size >= self.stage_from(to_device)

    def stage_from(self, to_device: bool) -> int:
        """Bytes of pageable memory from which a copy in that direction is staged."""
        return self.stage_to_device if to_device else self.stage_to_host


costs: Costs = Costs()
