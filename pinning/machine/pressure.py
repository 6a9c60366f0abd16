# SPDX-License-Identifier: Apache-2.0
"""Whether memory is short: the kernel's pressure stall information (PSI)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

from pinning.machine.control_group import memory_group

HIGH = 0.1  # fraction of the time for which some task has waited for memory


class Pressure:
    """How long tasks of this process's control group, and of the machine, wait for memory.

    If the kernel reports neither, memory is never short here.
    """

    def __init__(self, root: Path = Path("/")) -> None:
        self._files = [path for path in pressure_files(root) if _stalled(path) is not None]
        self._before = [_stalled(path) for path in self._files]
        self._at = time.monotonic()

    def is_high(self) -> bool:
        """Whether some task has waited for more than a tenth of the time since the last call."""
        now, stalled = time.monotonic(), [_stalled(path) for path in self._files]
        high = any(
            after is not None and before is not None and after - before > HIGH * 1e6 * (now - self._at)
            for before, after in zip(self._before, stalled, strict=True)
        )
        self._at, self._before = now, stalled
        return high


def pressure_files(root: Path = Path("/")) -> Iterator[Path]:
    """The kernel's files of stall information, which may be missing."""
    mount, group, _ = memory_group(root)
    yield mount.joinpath(*group.parts[1:], "memory.pressure")
    yield root / "proc/pressure/memory"


def _stalled(path: Path) -> int | None:
    """Total microseconds for which some task has waited for memory; None if the kernel does not report it."""
    try:
        some = path.read_text("utf-8").partition("\n")[0]
        return int(some.rpartition("total=")[2])
    except (OSError, ValueError):
        return None
