# SPDX-License-Identifier: Apache-2.0
"""Rings of staged copies, seen from outside: what the driver has registered, and what is mapped.

python rings.py WHAT     Run by test_copies.py, on the stand-in and with the library loaded first. `shared`: pinning in
the same process; `context`: rings of contexts that are destroyed; `drivers`: the same with memory of the driver's;
`fork`: children of fork.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path

SIZE = 16 << 20
cuda = ctypes.CDLL("libcuda.so.1")
cuda.standin_registrations.restype = ctypes.c_size_t
cuda.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t]
cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_size_t]
source = os.urandom(SIZE)


def must(name: str, *arguments: object) -> None:
    code = getattr(cuda, name)(*arguments)
    assert code == 0, (name, code)


def rings() -> list[int]:
    """The addresses of all registrations; the program itself makes none."""
    pairs = (ctypes.c_uint64 * 32)()
    count = cuda.standin_registrations(pairs, 16)
    return list(pairs[: 2 * count : 2])


def is_mapped(address: int) -> bool:
    ranges = [line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines()]
    return any(int(start, 16) <= address < int(end, 16) for start, end in ranges)


def memory() -> ctypes.c_uint64:
    there = ctypes.c_uint64()
    must("cuMemAlloc_v2", ctypes.byref(there), ctypes.c_size_t(SIZE))
    return there


def copies(there: ctypes.c_uint64) -> None:
    """Copy to the device and back, with the driver's own calls."""
    back = ctypes.create_string_buffer(SIZE)
    must("cuMemcpyHtoD_v2", there, source, SIZE)
    must("cuMemcpyDtoH_v2", back, there, SIZE)
    must("cuCtxSynchronize")
    assert back.raw == source


def shared() -> None:
    import numpy

    import pinning

    there = memory()
    array = numpy.frombuffer(source, numpy.uint8)

    def by_pinning() -> None:
        with pinning.Queue("cuda:0") as queue, pinning.alloc(SIZE, device="cuda:0") as other:
            assert pinning.copy(other, array, queue=queue).path == "staged"
            back = numpy.zeros_like(array)
            assert pinning.copy(back, other, queue=queue).path == "staged"
            queue.synchronize()
            assert (back == array).all()

    for turns in ((by_pinning, lambda: copies(there)), (lambda: copies(there), by_pinning)):
        for turn in turns:
            turn()
            assert len(rings()) == 1, rings()
        freed = pinning.copies.trim_staging()
        assert (freed, rings()) == (pinning.copies.costs.ring_bytes, [])


def context() -> None:
    own = ctypes.c_void_p()
    gone: set[int] = set()
    for _ in range(20):  # more than have room for a ring together
        must("cuCtxCreate_v4", ctypes.byref(own), None, 0, 0)  # at the same address
        copies(memory())
        (ring,) = rings()
        gone.add(ring)
        must("cuCtxDestroy_v2", own)
        assert rings() == []
    copies(memory())  # in the primary context
    (ring,) = rings()
    assert sum(map(is_mapped, gone - {ring})) <= 1  # a thread that leaves a ring late keeps it for one more context


def drivers() -> None:
    import pinning

    own = ctypes.c_void_p()
    for _ in range(3):
        must("cuCtxCreate_v4", ctypes.byref(own), None, 0, 0)  # at the same address
        copies(memory())
        must("cuCtxDestroy_v2", own)
        assert pinning.copies.trim_staging() == 0  # the driver has freed it, and reading it ends the program
    copies(memory())


def fork() -> None:
    there = memory()
    copies(there)
    (ring,) = rings()
    child = os.fork()
    if child == 0:
        assert not is_mapped(ring), "a child has copies of the ring's pages"
        refused = cuda.cuMemcpyHtoD_v2(there, source, SIZE)
        os._exit(0 if refused == 3 else 1)  # CUDA_ERROR_NOT_INITIALIZED
    assert os.waitpid(child, 0)[1] == 0
    copies(there)
    assert rings() == [ring]


primary = ctypes.c_void_p()
must("cuInit", 0)
must("cuDevicePrimaryCtxRetain", ctypes.byref(primary), 0)
must("cuCtxPushCurrent_v2", primary)
{each.__name__: each for each in (shared, context, drivers, fork)}[sys.argv[1]]()
print("right")
