# SPDX-License-Identifier: Apache-2.0
"""Where the kernel describes this process's control group."""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import NamedTuple


class _Names(NamedTuple):
    limit: str
    used: str
    stat_prefix: str


def memory_group(root: Path) -> tuple[Path, PurePosixPath, _Names]:
    """Where the groups that limit memory are mounted, this process's group in there, and the names of its files."""
    mount = root / "sys/fs/cgroup"
    unified = PurePosixPath("/")
    try:
        lines = (root / "proc/self/cgroup").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if "memory" in controllers.split(","):
            names = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", "total_")
            return mount / "memory", PurePosixPath(path), names
        if not controllers:
            unified = PurePosixPath(path)
    return mount, unified, _Names("memory.max", "memory.current", "")
