# SPDX-License-Identifier: Apache-2.0
"""Copies with the driver's own calls, run by test_copies.py. Prints each call's result.

python unusual_copies.py middle    of memory that the program has pinned in the middle, at 4 MiB
python unusual_copies.py many      60 copies of a megabyte
"""

from __future__ import annotations

import ctypes
import mmap
import sys

MIB = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyHtoD_v2.argtypes = [ctypes.c_uint64, ctypes.c_void_p, ctypes.c_size_t]
cuda.cuMemHostRegister_v2.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_uint]
context, device, memory = ctypes.c_void_p(), ctypes.c_uint64(), mmap.mmap(-1, 12 * MIB)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(device), ctypes.c_size_t(12 * MIB)) == 0
start = ctypes.addressof(ctypes.c_char.from_buffer(memory))
if sys.argv[1] == "middle":
    assert cuda.cuMemHostRegister_v2(start + 4 * MIB, 4096, 0) == 0
    print(cuda.cuMemcpyHtoD_v2(device, start, 12 * MIB))
else:
    print(*(cuda.cuMemcpyHtoD_v2(device, start, MIB) for _ in range(60)))
