# SPDX-License-Identifier: Apache-2.0
"""Copies with the driver's own calls, by a program that does not use pinning. Run by test_programs.py.

python plain_copies.py WHAT...     `wait`: for a line, at the end; `full`: no free descriptor; or an OpenMP runtime
"""

from __future__ import annotations

import ctypes
import os
import sys
from contextlib import suppress

SIZE = 1 << 20
cuda = ctypes.CDLL("libcuda.so.1")
context, device, pinned = ctypes.c_void_p(), ctypes.c_uint64(), ctypes.c_void_p()
size = ctypes.c_size_t(SIZE)
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
assert cuda.cuCtxPushCurrent_v2(context) == 0
assert cuda.cuMemAlloc_v2(ctypes.byref(device), size) == 0
assert cuda.cuMemHostAlloc(ctypes.byref(pinned), size, 0) == 0
source = ctypes.create_string_buffer(os.urandom(SIZE), SIZE)
back, another = ctypes.create_string_buffer(SIZE), ctypes.create_string_buffer(SIZE)


def there(memory: object, count: int = SIZE) -> None:
    assert cuda.cuMemcpyHtoD_v2(device, memory, ctypes.c_size_t(count)) == 0


def and_back(memory: object) -> None:
    assert cuda.cuMemcpyDtoH_v2(memory, device, size) == 0


for runtime in (word for word in sys.argv[1:] if word.startswith("lib") or "/" in word):
    ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL).omp_get_max_threads()
if "full" in sys.argv:
    with suppress(OSError):
        while True:
            os.dup(0)
there(pinned)
for memory in (back, another, back):
    there(source)
    and_back(memory)
    assert memory.raw == source.raw
there(pinned, 1000)
print("right", flush=True)
if "wait" in sys.argv:
    sys.stdin.readline()
