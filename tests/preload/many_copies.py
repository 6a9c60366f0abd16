# SPDX-License-Identifier: Apache-2.0
"""60 copies of a megabyte with the driver's own calls, run by test_copies.py. Prints each call's result."""

from __future__ import annotations

import ctypes
import mmap

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
context, device, memory = ctypes.c_void_p(), ctypes.c_uint64(), mmap.mmap(-1, MIB)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(MIB)) == 0
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
print(*(cuda.cuMemcpyHtoD_v2(device, start, MIB) for _ in range(60)))
