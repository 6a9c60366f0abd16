# SPDX-License-Identifier: Apache-2.0
"""How much may be locked here, for tests that would otherwise take another path or fail, and how much is locked."""

from __future__ import annotations

from pathlib import Path

import pytest

from pinning_host import kernel


def needs_room_to_lock(size: int) -> None:
    """Skip the test if fewer than `size` more bytes may be locked."""
    limit = kernel.lock_limit()
    if limit is not None and limit[0] - limit[2] < size:
        pytest.skip(f"needs to lock {size >> 10} KiB; RLIMIT_MEMLOCK (ulimit -l) is {limit[0] >> 10} KiB")


def locked_kib() -> int:
    """KiB that this process has locked, as the kernel reports it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmLck:"):
            return int(line.split()[1])
    raise AssertionError("the kernel does not say")
