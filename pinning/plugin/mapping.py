# SPDX-License-Identifier: Apache-2.0
"""How this process has mapped a range of addresses, by /proc/self/maps."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple


class Mapping(NamedTuple):
    """One line of /proc/self/maps. `file` is the path of what is mapped, empty for anonymous memory."""

    start: int
    end: int
    writable: bool
    shared: bool
    file: str


def mappings(ptr: int, size: int) -> list[Mapping]:
    """The mappings that hold bytes of ``[ptr, ptr + size)``, ascending."""
    found = []
    with Path("/proc/self/maps").open("rb") as maps:
        for line in maps:
            addresses, modes, _offset, _device, inode, *path = line.split(maxsplit=5)
            start, end = (int(address, 16) for address in addresses.split(b"-"))
            if start >= ptr + size:
                break
            if end > ptr:
                file = os.fsdecode(path[0].rstrip(b"\n")) if inode != b"0" else ""
                found.append(Mapping(start, end, modes[1:2] == b"w", modes[3:4] == b"s", file))
    return found


def gap(ptr: int, size: int, found: list[Mapping]) -> int | None:
    """The first address of the range that none of the `found` mappings holds; None when they hold all of it."""
    for mapping in found:
        if ptr < mapping.start:
            return ptr
        size -= mapping.end - ptr
        ptr = mapping.end
    return ptr if size > 0 else None
