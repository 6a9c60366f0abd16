# SPDX-License-Identifier: Apache-2.0
"""A CuPy program with memory of this package, on a real GPU."""

from __future__ import annotations

import cupy
import cupyx
import numpy as np

import pinning
import pinning.cupy
from pinning.memory.pool import default_pool

pinning.cupy.install()
pool = default_pool(pinning.device("cuda:0"), pinning.MemoryKind.DEVICE)

array = cupy.arange(1000, dtype=cupy.int64)
assert pool.used >= array.nbytes
assert int(array.sum()) == 499_500
address = array.data.ptr
del array
assert pool.used == 0
again = cupy.zeros(1000, cupy.int64)
assert again.data.ptr == address, "what is freed in a stream is given out again in it"

with cupy.cuda.Stream(non_blocking=True) as stream:
    for _ in range(50):
        first = cupy.random.random(100_000)
        second = first * 2
        assert bool((second >= first).all())
        del first, second
    stream.synchronize()
assert cupy.zeros(0).size == 0

# Pinned memory: exactly as much as asked for, and in the map.
host = cupyx.empty_pinned(129_500_000 // 8, np.float64)
assert pinning.find(host, device="cuda:0") is not None
assert pinning.memory_info(host.ctypes.data).size == 129_500_000, pinning.memory_info(host.ctypes.data)
host[:] = 1
there = cupy.empty_like(host)
there.set(host)
assert float(there.sum()) == host.size
del host
pinned = cupyx.zeros_pinned(10)
assert (pinned == 0).all()

try:
    cupy.empty(1 << 50, np.uint8)
except cupy.cuda.memory.OutOfMemoryError:
    pass
else:
    raise AssertionError("there is not so much memory")

pinning.cupy.uninstall()
del again, there
assert pool.used == 0
print("cupy: all right")
