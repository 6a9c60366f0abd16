# SPDX-License-Identifier: Apache-2.0
"""The Linux kernel's limit on locked memory."""

from __future__ import annotations

import resource
from io import FileIO

_CAP_IPC_LOCK = 1 << 14


def lock_limit() -> tuple[int, int, int] | None:
    """Soft and hard RLIMIT_MEMLOCK (-1: infinite) and the amount locked now, in bytes; None if no limit binds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return None
    status = _read("/proc/self/status")
    if int(_word_after(b"\nCapEff:", status), 16) & _CAP_IPC_LOCK and _in_first_user_namespace():
        return None
    return soft, hard, int(_word_after(b"\nVmLck:", status)) * 1024


def _word_after(label: bytes, text: bytes) -> bytes:
    return text.partition(label)[2].split(maxsplit=1)[0]


def _in_first_user_namespace() -> bool:
    # CAP_IPC_LOCK lifts the limit only there, and not for root in an unprivileged container.
    return _read("/proc/self/uid_map").split() == [b"0", b"0", b"4294967295"]


def _read(path: str) -> bytes:
    # A lock of a small buffer reads both files: a buffered one would take most of its time.
    with FileIO(path) as file:
        return file.read(1 << 16)
