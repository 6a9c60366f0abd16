# SPDX-License-Identifier: Apache-2.0
"""What the Linux kernel is asked: to lock pages, to say what is mapped and how much may be locked.

Failing calls raise OSError. Every call releases the GIL.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import resource
from pathlib import Path

from pinning.errors import VendorError

_libc = ctypes.CDLL(None, use_errno=True)
_CAP_IPC_LOCK = 1 << 14
_MAP_FAILED = ctypes.c_void_p(-1).value

for _name in ("mlock", "munlock", "munmap"):
    getattr(_libc, _name).argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *(ctypes.c_int,) * 3, ctypes.c_long)
_libc.mmap.restype = ctypes.c_void_p


def _last_error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))


def page_range(ptr: int, size: int) -> tuple[int, int]:
    """The whole pages that ``[ptr, ptr + size)`` touches, as a half-open range of addresses."""
    return ptr & -mmap.PAGESIZE, (ptr + size + mmap.PAGESIZE - 1) & -mmap.PAGESIZE


def mlock(start: int, end: int) -> None:
    """Lock the pages of a range; locking them again changes nothing. A failed call may have locked some of them."""
    if _libc.mlock(start, end - start):
        raise _last_error()


def munlock(start: int, end: int) -> None:
    """Unlock the pages of a range, however often they were locked."""
    if _libc.munlock(start, end - start) == 0:
        return
    error = _last_error()
    parts = mapped_parts(start, end)
    if parts == [(start, end)]:
        raise error
    # Pages that were unmapped took their lock with them, and only what is left of the range is still to be unlocked.
    for part in parts:
        munlock(*part)


def mapped_parts(start: int, end: int) -> list[tuple[int, int]]:
    """The parts of a range that are mapped, ascending, those that touch joined."""
    parts: list[tuple[int, int]] = []
    with Path("/proc/self/maps").open("rb") as maps:
        for line in maps:
            low, high = (int(address, 16) for address in line.split(b" ", 1)[0].split(b"-"))
            if low >= end:
                break
            if high <= start:
                continue
            if parts and parts[-1][1] == low:
                low, _ = parts.pop()
            parts.append((max(low, start), min(high, end)))
    return parts


def map_memory(size: int) -> int:
    """The address of `size` bytes of new memory, all zero."""
    access, kind = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    address: int = _libc.mmap(None, size, access, kind, -1, 0)
    if address == _MAP_FAILED:
        raise _last_error()
    return address


def unmap_memory(start: int, size: int) -> None:
    """Give back what `map_memory` made."""
    if _libc.munmap(start, size):
        raise _last_error()


def lock_limit() -> tuple[int, int, int] | None:
    """Soft and hard RLIMIT_MEMLOCK (-1: infinite) and what is locked by now, in bytes; None where no limit binds."""
    soft, hard = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if soft == resource.RLIM_INFINITY:
        return None
    status = Path("/proc/self/status").read_bytes()
    if int(_word_after(b"\nCapEff:", status), 16) & _CAP_IPC_LOCK and _in_first_user_namespace():
        return None
    return soft, hard, int(_word_after(b"\nVmLck:", status)) * 1024


def vendor_error(call: str, error: OSError, advice: str) -> VendorError:
    """What a failed call is to those who use this plugin."""
    code = error.errno or 0
    return VendorError(call, code, errno.errorcode.get(code, "unknown"), advice)


def _word_after(label: bytes, text: bytes) -> bytes:
    return text.partition(label)[2].split(maxsplit=1)[0]


def _in_first_user_namespace() -> bool:
    # Only there does CAP_IPC_LOCK lift the limit; the root of an unprivileged container has it in vain.
    return Path("/proc/self/uid_map").read_bytes().split() == [b"0", b"0", b"4294967295"]
