# SPDX-License-Identifier: Apache-2.0
"""Memory of which one page stops all threads that touch it, until the test lets them go."""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import platform
import select
import struct

import numpy
import pytest

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_API, _REGISTER, _UNREGISTER = 0xC018AA3F, 0xC020AA00, 0x8010AA01
_IN_USER_MODE = 1  # the only kind that needs no privilege
_MISSING = 1


class SlowMemory:
    """A private mapping of `size` bytes whose page at offset `stop` no thread can read or write before `let_go`."""

    def __init__(self, size: int, stop: int) -> None:
        self._mapping = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.array = numpy.frombuffer(self._mapping, "u1")
        self.array[:stop] = 1
        self.array[stop + mmap.PAGESIZE :] = 1
        self._page = struct.pack("QQ", self.array.ctypes.data + stop, mmap.PAGESIZE)
        call = ctypes.CDLL(None, use_errno=True).syscall
        self._file = call(_USERFAULTFD[platform.machine()], os.O_CLOEXEC | os.O_NONBLOCK | _IN_USER_MODE)
        if self._file < 0:
            pytest.skip(f"needs userfaultfd: {os.strerror(ctypes.get_errno())}")
        fcntl.ioctl(self._file, _API, struct.pack("QQQ", 0xAA, 0, 0))
        fcntl.ioctl(self._file, _REGISTER, self._page + struct.pack("QQ", _MISSING, 0))

    def stops_a_thread(self, seconds: float) -> bool:
        """Whether a thread has touched the page, for which this waits so long at most."""
        return bool(select.select([self._file], [], [], seconds)[0])

    def let_go(self) -> None:
        """Let threads touch the page. Can be repeated."""
        if self._file >= 0:
            fcntl.ioctl(self._file, _UNREGISTER, self._page)
            os.close(self._file)
            self._file = -1
