# SPDX-License-Identifier: Apache-2.0
"""Pages to lock, with pages around them that are never locked."""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref

import pytest

from pinning.plugin import MemoryDevice, MemoryKind

PAGE = mmap.PAGESIZE
_CYCLES = bytes(range(251)) * (PAGE // 251 + 2)  # a period of 251 bytes: a shifted page differs

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


class Pages:
    """New private memory, whose contents reveal any shift; `apart` from where the kernel maps anything by itself.

    Attributes
    ----------
    ptr, size : int
        Address, and size in bytes. One more page on either side is mapped too.
    """

    def __init__(self, pages: int, apart: bool = False) -> None:
        self.size: int = pages * PAGE
        whole = self.size + 2 * PAGE
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        start = _libc.mmap(1 << 36 if apart else None, whole, mmap.PROT_READ | mmap.PROT_WRITE, flags, -1, 0)
        assert start != ctypes.c_void_p(-1).value, os.strerror(ctypes.get_errno())
        self.ptr: int = start + PAGE
        self.contents: bytes = b"".join(_CYCLES[page * (PAGE + 1) % 251 :][:PAGE] for page in range(pages))
        ctypes.memmove(self.ptr, self.contents, self.size)
        self._free = weakref.finalize(self, _libc.munmap, start, whole)

    def read(self) -> bytes:
        """The current contents."""
        return ctypes.string_at(self.ptr, self.size)

    def write(self, at: int, value: bytes) -> None:
        """Put `value` at offset `at`."""
        assert at + len(value) <= self.size
        ctypes.memmove(self.ptr + at, value, len(value))

    def protect(self) -> None:
        """Make it read-only."""
        assert _libc.mprotect(self.ptr, self.size, mmap.PROT_READ) == 0, os.strerror(ctypes.get_errno())

    def unmap(self, first: int) -> None:
        """Unmap the pages from number `first` on; their addresses stay unused until something is mapped there."""
        self._free.detach()
        start = self.ptr + first * PAGE
        assert _libc.munmap(start, self.ptr + self.size + PAGE - start) == 0, os.strerror(ctypes.get_errno())
        self._free = weakref.finalize(self, _libc.munmap, self.ptr - PAGE, (first + 1) * PAGE)


def has(device: MemoryDevice, kind: MemoryKind) -> MemoryKind:
    """Return `kind`; skip the test if the device lacks it."""
    if kind not in device.memory_kinds:
        pytest.skip(f"{device.name} has no memory of kind {kind.name}")
    return kind
