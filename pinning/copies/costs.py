# SPDX-License-Identifier: Apache-2.0
"""What the paths of a copy cost, and what a program allows them to use.

The sizes come from runs of ``benchmarks/python/copies.py`` on the machines named in ``benchmarks/results``: below them
the driver's own pageable copy is as fast or faster, because to wake threads costs as much as to copy a few MiB.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

KIB, MIB = 1 << 10, 1 << 20


@dataclass
class Costs:
    """Where one path begins to beat another; `costs` is the one in force, and its fields may be set.

    Attributes
    ----------
    stage_to_device, stage_to_host : int
        Bytes of pageable memory from which a copy in that direction is staged.
    ring_bytes : int
        Pinned memory of one staging ring. A queue that stages has one, and gives it up when its copies are over.
    staging_bytes : int
        Pinned memory that all rings of one device may take; beyond it copies take the plain path.
    threads : int
        How many threads fill and empty rings; fixed at the first staged copy. With one, nothing is staged.
    lock_after : int or None
        A pageable range of at least `lock_from` bytes that is copied for the so-manieth time is locked, until the array
        it belongs to is collected. None: never. Off unless a program asks for it, for another library's copy that
        reaches beyond a locked range fails.
    lock_from : int
        Bytes.
    """

    stage_to_device: int = 8 * MIB
    stage_to_host: int = 8 * MIB
    ring_bytes: int = 32 * MIB
    staging_bytes: int = 256 * MIB
    threads: int = max(1, min(8, (os.cpu_count() or 1) // 2))
    lock_after: int | None = None
    lock_from: int = 16 * MIB

    def stages(self, size: int, to_device: bool) -> bool:
        """Whether a pageable range of `size` bytes is worth staging."""
        return self.threads > 1 and size >= self.stage_from(to_device)

    def stage_from(self, to_device: bool) -> int:
        """Bytes of pageable memory from which a copy in that direction is staged."""
        return self.stage_to_device if to_device else self.stage_to_host

    def least_worth_a_look(self, to_device: bool) -> int:
        """Bytes of pageable memory from which any other path than the vendor's own copy is considered."""
        least = self.stage_from(to_device)
        return least if self.lock_after is None else min(least, self.lock_from)

    def chunk_bytes(self, size: int) -> int:
        """Bytes of a block for a copy of so many: small enough to overlap, few enough to be submitted at once."""
        if size >= 512 * MIB:
            return 8 * MIB
        wanted = size // 8 // (256 * KIB) * (256 * KIB)
        return max(512 * KIB, min(4 * MIB, wanted))


costs = Costs()
