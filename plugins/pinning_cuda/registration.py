# SPDX-License-Identifier: Apache-2.0
"""Which memory the driver can register, how, and what to do about memory that it refuses."""

from __future__ import annotations

from pinning.errors import InvalidRangeError
from pinning.plugin.mapping import gap, mappings

PORTABLE = 0x01  # pinned for every context, not only the current one
DEVICEMAP = 0x02
READ_ONLY = 0x08

_IN_MEMORY = ("/dev/", "/memfd:", "/SYSV")  # POSIX shared memory and anonymous mappings, memfd, System V


def needs_read_only(ptr: int, size: int) -> bool:
    """Whether ``[ptr, ptr + size)`` lies, in whole or in part, in a mapping that may not be written.

    Raises
    ------
    InvalidRangeError
        Some of it is not mapped, or it is of the one kind that the driver never returns from.
    """
    found = mappings(ptr, size)
    hole = gap(ptr, size, found)
    if hole is not None:
        raise InvalidRangeError(f"{_range(ptr, size)} cannot be locked: there is no memory at {hole:#x}")
    for mapping in found:
        if mapping.file and not mapping.writable and not mapping.shared:
            raise InvalidRangeError(
                f"{_range(ptr, size)} cannot be locked: it is a private read-only mapping of {mapping.file}, on which "
                "the NVIDIA driver hangs; map the file shared (mmap.ACCESS_READ does) or private and writable "
                "(mmap.ACCESS_COPY, numpy's mode 'c')"
            )
    return not all(mapping.writable for mapping in found)


def advice(ptr: int, size: int, flags: int) -> str:
    """Why the driver may have called the range invalid, and the way out; empty when nothing is known."""
    found = mappings(ptr, size)
    hole = gap(ptr, size, found)
    if hole is not None:
        return f"there is no memory at {hole:#x}"
    for mapping in found:
        if not mapping.writable and not flags & READ_ONLY:
            return (
                f"the memory at {mapping.start:#x} is mapped read only: say read_only=True, and if the GPU does not "
                "support that, map it writable"
            )
        if mapping.shared and mapping.writable and mapping.file and not mapping.file.startswith(_IN_MEMORY):
            return (
                f"the memory is a writable shared mapping of {mapping.file}, which the driver takes only from memory "
                "file systems: map it read only (mmap.ACCESS_READ), map it private (mmap.ACCESS_COPY), or keep the "
                "file under /dev/shm"
            )
    return ""


def _range(ptr: int, size: int) -> str:
    return f"[{ptr:#x}, {ptr + size:#x})"
