# SPDX-License-Identifier: Apache-2.0
"""A large copy to the host, by the driver's own call, into new memory. Run by test_copies.py.

Prints whether huge pages were asked for.
"""

from __future__ import annotations

import ctypes

import numpy

import pinning
from new_memory import NewMemory, huge_pages_in

SIZE = 40 << 20
cuda = ctypes.CDLL("libcuda.so.1")
cuda.cuMemcpyDtoH_v2.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t]
memory = NewMemory(SIZE)
with pinning.alloc(SIZE, device="cuda:0") as there:
    pinning.fill(there, 7)
    context = ctypes.c_void_p()
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    assert cuda.cuMemcpyDtoH_v2(memory.ptr, there.ptr, SIZE) == 0
assert numpy.all(memory.array == 7)
print(memory.advised() == huge_pages_in(memory.ptr, 0, SIZE), memory.advised() == [])
