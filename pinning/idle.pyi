# SPDX-License-Identifier: Apache-2.0
from pinning.watch import Watch

NO_LIMIT: int
watch: Watch

def look() -> None:
    """Give back idle regions whose memory nobody else has any more, and let go of the owners of what is gone."""

def check(size: int) -> None:
    """Raise LockLimitError where so many bytes more cannot be locked, even if all that is idle went."""

def figures() -> tuple[int, int, int, int, int]:
    """Limit, bytes locked, idle and pinned by others, and how many may be idle."""

def set_limits(limit: int, idle_limit: int) -> None:
    """Set the most bytes that may be locked, and be idle; what is idle beyond that is given back."""

def give_back(nbytes: int) -> int:
    """Unlock what is idle, the longest idle first, until so many bytes are given back; how many that were."""
