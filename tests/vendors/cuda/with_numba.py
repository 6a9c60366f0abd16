# SPDX-License-Identifier: Apache-2.0
"""A Numba program with pinning.numba as its memory manager, on a real GPU."""

from __future__ import annotations

import gc

import numpy as np

if not hasattr(np, "row_stack"):  # numba-cuda 0.30 needs it, and NumPy 2.5 removed it
    np.row_stack = np.vstack

from numba import cuda

import pinning
import pinning.numba

cuda.set_memory_manager(pinning.numba.MemoryManager)

context = cuda.current_context()
assert isinstance(context.memory_manager, pinning.numba.MemoryManager)
pool = context.memory_manager._pool


@cuda.jit
def add(array, value):
    i = cuda.grid(1)
    if i < array.size:
        array[i] += value


@cuda.jit
def late(array, value):
    for _ in range(20):
        cuda.nanosleep(1_000_000)
    array[0] = value


# Device memory comes from the pool, and goes back to it.
data = np.arange(1000, dtype=np.int64)
on_device = cuda.to_device(data)
assert pool.used >= data.nbytes
add[8, 128](on_device, 5)
np.testing.assert_array_equal(on_device.copy_to_host(), data + 5)
del on_device
context.memory_manager.deallocations.clear()
gc.collect()
assert pool.used == 0 and pool.reserved > 0, (pool.used, pool.reserved)

# Memory freed during a kernel in one stream may be given out at once, but used in another stream only after the kernel.
for _ in range(20):
    first, second = cuda.stream(), cuda.stream()
    victim = cuda.device_array(1, np.int64, stream=first)
    address = victim.device_ctypes_pointer.value
    late[1, 1, first](victim, 1)
    del victim
    gc.collect()
    context.memory_manager.deallocations.clear()
    assert pool.used == 0, pool.used
    heir = cuda.device_array(1, np.int64, stream=second)
    assert heir.device_ctypes_pointer.value == address, (heir.device_ctypes_pointer.value, address)
    heir.copy_to_device(np.array([7], np.int64), stream=second)
    context.synchronize()
    assert heir.copy_to_host()[0] == 7
    del heir
    context.memory_manager.deallocations.clear()

# Pinning: nested, overlapping, reversed, and in the map.
array = np.zeros(1 << 20, np.uint8)
with cuda.pinned(array):
    assert pinning.is_locked(array, device="cuda:0")
    with cuda.pinned(array), cuda.pinned(array[100:200]):
        assert pinning.find(array, device="cuda:0").references == 3
assert not pinning.is_locked(array, device="cuda:0")
with cuda.pinned(array[:600_000]), cuda.pinned(array[400_000:]), cuda.pinned(array[::-1]):
    stream = cuda.stream()
    there = cuda.to_device(array[400_000:], stream=stream)
    stream.synchronize()
assert not pinning.is_locked(array, device="cuda:0")

# Numba's mapped and pinned memory is in the map.
mapped = cuda.mapped_array(100, np.int32)
mapped[:] = 3
add[1, 128](mapped, 4)
context.synchronize()
assert (mapped == 7).all()
held = cuda.pinned_array(1000, np.uint8)
assert pinning.find(held, device="cuda:0") is not None
with cuda.mapped(array) as view:
    add[8192, 128](view, 1)
    context.synchronize()
assert (array == 1).all()

free, total = context.get_memory_info()
assert 0 < free <= total

# Out of memory: pending deallocations are done first.
third = total // 3
for _ in range(8):
    large = cuda.device_array(third, np.uint8)
    del large
with cuda.defer_cleanup():
    pass
try:
    cuda.device_array(total * 2, np.uint8)
except pinning.VendorError as error:
    assert error.code == 2
else:
    raise AssertionError("there is not so much memory")

del mapped, held, view, there
context.reset()
assert pool.reserved == 0, pool.reserved
print("numba: all right")
