# SPDX-License-Identifier: Apache-2.0
"""Memory mapped, protected and unmapped page by page."""

from __future__ import annotations

import ctypes
import mmap
import os

PAGE = mmap.PAGESIZE
READ_WRITE = mmap.PROT_READ | mmap.PROT_WRITE

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Memory:
    """Pages that stay mapped until the process ends, anonymous and private unless told otherwise."""

    def __init__(
        self, pages: int, prot: int = READ_WRITE, flags: int = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, file: int = -1
    ) -> None:
        self.size = pages * PAGE
        self.ptr: int = _libc.mmap(None, self.size, prot, flags, file, 0)
        assert self.ptr != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())

    def protect(self, page: int, prot: int) -> None:
        assert _libc.mprotect(self.ptr + page * PAGE, PAGE, prot) == 0, os.strerror(ctypes.get_errno())

    def unmap(self, page: int) -> None:
        assert _libc.munmap(self.ptr + page * PAGE, PAGE) == 0, os.strerror(ctypes.get_errno())
