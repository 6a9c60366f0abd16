# SPDX-License-Identifier: Apache-2.0
"""Copies with the driver's own calls, of memory that pinning has locked in part: the driver would refuse each.

Run by test_copies.py, on the stand-in and with the library loaded first. Prints one line for each size.
"""

from __future__ import annotations

import ctypes
import threading

import numpy

import pinning
from pinning.conformance.holding import HeldQueue

cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]
cuda.cuMemcpyHtoDAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
cuda.cuMemcpy.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]
cuda.cuMemcpyDtoHAsync_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
PRIMARY = ctypes.c_void_p()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(PRIMARY), 0) == 0
assert cuda.cuCtxPushCurrent_v2(PRIMARY) == 0
STREAM, GRAPH = ctypes.c_void_p(), ctypes.c_void_p()
assert cuda.cuStreamCreate(ctypes.byref(STREAM), 1) == 0
LEGACY = pinning.device("cuda:0").adopt_queue(1)  # type: ignore[attr-defined]

for size in (40_000, 8 << 20):
    array = (numpy.arange(size) % 251).astype(numpy.uint8)
    contents, back = array.copy(), numpy.zeros_like(array)
    clear = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _, array=array: array.fill(0))  # type: ignore[misc]
    with pinning.alloc(size, device="cuda:0") as memory:
        for first, last in ((0, 5000), (size // 2, size), (10_000, 20_000)):
            with pinning.lock(array[first:last], device="cuda:0"), pinning.lock(back[first:last], device="cuda:0"):
                back[:] = 0
                codes = cuda.cuMemcpyHtoD_v2(memory.ptr, array.ctypes.data, size)
                codes += cuda.cuMemcpyDtoHAsync_v2(back.ctypes.data, memory.ptr, size, None)
                assert codes == 0, codes
                assert (back == array).all()
                with HeldQueue(LEGACY) as held:
                    LEGACY.call(ctypes.cast(clear, ctypes.c_void_p).value, 0)  # `array`, before it is copied
                    threading.Timer(0.05, held.release).start()
                    assert cuda.cuMemcpy(back.ctypes.data, array.ctypes.data, size) == 0
                assert not array.any() and (back == array).all()
                array[:] = contents
                # In a captured stream it stays refused, and the capture is valid after it.
                assert cuda.cuStreamBeginCapture_v2(STREAM, 2) == 0
                assert cuda.cuMemcpyHtoDAsync_v2(memory.ptr, array.ctypes.data, size, STREAM) == 1
                assert cuda.cuStreamEndCapture(STREAM, ctypes.byref(GRAPH)) == 0
                for refused in (b"cuMemcpyAsync:1:999", b"cuStreamSynchronize:1:719"):  # its first part, its end
                    cuda.standin_configure(b"fail=" + refused)
                    code = cuda.cuMemcpyHtoD_v2(memory.ptr, array.ctypes.data, size)
                    assert size > 64 << 10 or code != 0, refused
                    cuda.standin_configure(b"")
        pinning.budget(idle=True)
        pinning.lock(array[10_000:20_000], device="cuda:0").unlock()  # idle, but still registered
        assert cuda.cuMemcpyHtoD_v2(memory.ptr, array.ctypes.data, size) == 0
        pinning.budget(idle=False)
        past_the_end = cuda.cuMemcpyHtoD_v2(memory.ptr + 4096, array.ctypes.data, size)
        assert cuda.cuCtxSynchronize() == 0  # the driver may leave the last MiB of its own copy in flight
        pinning.copy(memory, numpy.full(size, 7, numpy.uint8))
        with pinning.lock(array[:5000], device="cuda:0"):
            across_and_past = cuda.cuMemcpyHtoD_v2(memory.ptr + 4096, array.ctypes.data, size)
        pinning.copy(back, memory)
        assert (back == 7).all()  # nothing of a copy that fails is written
    print(size, "right", past_the_end, across_and_past)
