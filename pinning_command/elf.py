# SPDX-License-Identifier: Apache-2.0
"""What a program's file says of its processor and its loader."""

from __future__ import annotations

import os
import struct

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import IO

PT_INTERP = 3  # <elf.h>: the type of the program header that names the loader


class Elf:
    """The header of an ELF file."""

    def __init__(self, native: bool, loader: str | None) -> None:
        self.native = native  # for this processor and of this process's word size
        self.loader = loader  # that loads it; None: it is a library, the loader itself, or statically linked


def read(path: str) -> Elf | None:
    """The header of an ELF file; None for other files. Raises OSError, or struct.error if it is damaged."""
    with open(path, "rb") as file, open("/proc/self/exe", "rb") as own:
        head, ours = file.read(64), own.read(64)
        if len(head) < 52 or head[:4] != b"\x7fELF":
            return None
        wide, order = head[4] == 2, "<" if head[5] == 1 else ">"
        table, size, count = struct.unpack_from(order + ("32xQ14xHH" if wide else "28xI10xHH"), head)
        headers = _part(file, table, size * count)
        loader = None
        for i in range(count):
            kind, start, length = struct.unpack_from(order + ("I4xQ16xQ" if wide else "II8xI"), headers, i * size)
            if kind == PT_INTERP:
                loader = os.fsdecode(_part(file, start, length).partition(b"\0")[0])
        native = (head[4:6], head[18:20]) == (ours[4:6], ours[18:20])  # class, byte order, machine
        return Elf(native, loader)


def _part(file: IO[bytes], start: int, size: int) -> bytes:
    """A part of a file. Raises struct.error if it is larger than the kernel takes, or begins past any file's end."""
    if size > 65536 or start >= 1 << 63:
        raise struct.error(f"{size} bytes at {start}")
    file.seek(start)
    return file.read(size)


def is_glibcs(loader: str) -> bool:
    """Whether a loader is that of glibc, for any processor: it then has a version of symbols for glibc's own use."""
    with open(loader, "rb") as file:
        return b"GLIBC_PRIVATE\0" in file.read()
