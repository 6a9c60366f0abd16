# SPDX-License-Identifier: Apache-2.0
"""A cuda.core program with memory resources of this package, on a real GPU."""

from __future__ import annotations

import gc

import numpy as np
from cuda.core import Buffer, Device

import pinning
from pinning.cuda_core import DeviceMemory, PinnedMemory

gpu = Device(0)
gpu.set_current()
stream = gpu.create_stream()
memory, pinned = DeviceMemory("cuda:0"), PinnedMemory()

buffer = memory.allocate(1000, stream=stream)
assert isinstance(buffer, Buffer) and buffer.size == 1000 and buffer.memory_resource is memory
assert buffer.is_device_accessible and not buffer.is_host_accessible and buffer.device_id == 0
host = pinned.allocate(1000, stream=stream)
assert host.is_host_accessible and host.is_device_accessible
assert pinning.find((int(host.handle), 1000), device="cuda:0") is not None
view = np.from_dlpack(host).view(np.uint8)
view[:] = np.arange(1000) % 251
buffer.copy_from(host, stream=stream)
back = buffer.copy_to(pinned.allocate(1000, stream=stream), stream=stream)
stream.sync()
np.testing.assert_array_equal(np.from_dlpack(back).view(np.uint8), view)

address = int(buffer.handle)
buffer.close(stream)
again = memory.allocate(1000, stream=stream)
assert int(again.handle) == address, "what is freed in a stream is given out again in it"
again.close()
for _ in range(100):
    memory.allocate(1 << 20, stream=stream)
gc.collect()
assert memory.pool.used == 0

# One of our queues as a cuda.core stream.
with pinning.Queue("cuda:0") as queue:
    theirs = gpu.create_stream(queue)
    with_queue = memory.allocate(256, stream=theirs)
    with_queue.fill(7, stream=theirs)
    found = np.zeros(256, np.uint8)
    pinning.copy(found, (int(with_queue.handle), 256), queue=queue)
    assert (found == 7).all()
    with_queue.close(theirs)
    theirs.sync()
    del theirs, with_queue
    queue.synchronize()

empty = memory.allocate(0, stream=stream)
empty.close()
try:
    memory.allocate(1 << 50, stream=stream)
except pinning.VendorError as error:
    assert error.code == 2
else:
    raise AssertionError("there is not so much memory")
del view, host, back
gc.collect()
print("cuda.core: all right")
