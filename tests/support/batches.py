# SPDX-License-Identifier: Apache-2.0
"""A batch of copies between the host and a device, compared with what NumPy would copy."""

from __future__ import annotations

from typing import Any

import numpy

import pinning


def check_batch(
    queue: pinning.Queue,
    host: Any,
    there: Any,
    to: Any,
    origin: Any,
    sizes: Any,
    inwards: bool,
    locked: slice,
    **how: Any,
) -> pinning.Copy:
    """Copy `sizes` bytes at `origin` to `to`, from `host` to a device that has the bytes `there`, or the other way."""
    source, target = (host, there) if inwards else (there, host)
    expected = target.copy()
    for a, b, size in zip(to.tolist(), origin.tolist(), sizes.tolist(), strict=True):
        expected[a : a + size] = source[b : b + size]
    with pinning.alloc(there.nbytes, device=queue.device) as memory:
        pinning.copy(memory, there, queue=queue)
        held = pinning.lock(host[locked], device=queue.device) if host[locked].size else None
        near, far = numpy.uint64(host.ctypes.data), numpy.uint64(memory.ptr)
        bases = (far, near) if inwards else (near, far)
        ends = bases[0] + to.astype(numpy.uint64), bases[1] + origin.astype(numpy.uint64)
        copy = pinning.copy_batch(*ends, sizes, queue=queue, **how)
        if held:
            held.unlock()
        if inwards:
            pinning.copy(target, memory, queue=queue)
    assert (target == expected).all()
    return copy
