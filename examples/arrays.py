# SPDX-License-Identifier: Apache-2.0
"""Lock NumPy arrays, look up what is locked, unlock."""

import numpy

import pinning

weights = numpy.ones((64, 1024), dtype=numpy.float32)  # 256 KiB
address = weights.ctypes.data

with pinning.lock(weights) as lock:  # on the first GPU, or else on the host
    print(lock)
    print(f"the device finds the bytes of {lock.ptr:#x} at {lock.device_ptr:#x}")

    row = weights[10]
    with pinning.lock(row) as part:  # inside the locked region: counted, no vendor call
        print(f"one region, {part.region.references} locks")

    print(f"is its last byte locked? {pinning.is_locked((address + weights.nbytes - 1, 1))}")
    print(f"and the one behind it?   {pinning.is_locked((address + weights.nbytes, 1))}")

    try:
        pinning.lock((address + 4096, weights.nbytes))  # begins inside, ends outside
    except pinning.PartialOverlapError as refusal:
        print(f"refused: {refusal}")

print(f"locked now: {pinning.regions()}")
