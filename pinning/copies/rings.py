# SPDX-License-Identifier: Apache-2.0
"""Which staging ring a copy goes through, within a bound of pinned memory for each device.

``_lock`` guards the lists of rings and the bytes they may take; no vendor is called and nothing is waited for under it.
"""

from __future__ import annotations

import os
import threading

from pinning.copies.costs import costs
from pinning.copies.staging import COUNTER_BYTES, PIECE_BYTES, Ring, StagedCopy
from pinning.plugin import MemoryDevice, MemoryKind, VendorQueue

_lock = threading.Lock()
_rings: dict[int, Rings] = {}  # by id of the device, which they keep


class Rings:
    """The rings of one device."""

    def __init__(self, device: MemoryDevice) -> None:
        self._device = device
        self._rings: dict[Ring, VendorQueue | None] = {}
        self._bytes = 0

    def stage(self, queue: VendorQueue, to_device: bool, host: int, size: int) -> StagedCopy | None:
        """A copy by way of the ring that this queue has, or of an idle one, or of a new one.

        None where that would take too much memory.
        """
        with _lock:
            ring = self._ring_for(queue)
            if ring is not None:
                return self._staged(ring, queue, to_device, host, size)
            nbytes = costs.ring_bytes
            if nbytes < PIECE_BYTES or self._bytes + nbytes > costs.staging_bytes:
                return None
            self._bytes += nbytes
        try:
            ptr = self._device.allocate(COUNTER_BYTES + nbytes, MemoryKind.HOST)
        except BaseException:
            with _lock:
                self._bytes -= nbytes
            raise
        with _lock:
            return self._staged(Ring(ptr, nbytes), queue, to_device, host, size)

    def _ring_for(self, queue: VendorQueue) -> Ring | None:
        fitting = [ring for ring in self._rings if ring.nbytes == costs.ring_bytes]
        own = (ring for ring in fitting if self._rings[ring] is queue and not ring.worn)
        return next(own, None) or next((ring for ring in fitting if ring.idle), None)

    def _staged(self, ring: Ring, queue: VendorQueue, to_device: bool, host: int, size: int) -> StagedCopy:
        # Under the lock, for from now on the ring is not idle.
        self._rings[ring] = queue
        if ring.worn and ring.idle:
            ring.rewind()
        chunk_bytes = min(costs.chunk_bytes(size), ring.nbytes // PIECE_BYTES * PIECE_BYTES)
        return StagedCopy(ring, to_device, host, size, chunk_bytes, costs.threads)

    def take_out(self, ring: Ring) -> None:
        """Give this ring to nobody any more."""
        with _lock:
            self._rings.pop(ring, None)

    def give_back(self, ring: Ring) -> None:
        """Free a ring that was taken out and that no device and no thread uses. After an error it is here again."""
        try:
            self._device.free(ring.ptr, MemoryKind.HOST)
        except BaseException:
            with _lock:
                self._rings[ring] = None
            raise
        with _lock:
            self._bytes -= ring.nbytes

    def trim(self) -> int:
        """Give back those that are idle; returns how many bytes."""
        with _lock:
            idle = [ring for ring in self._rings if ring.idle]
            for ring in idle:
                del self._rings[ring]
        for ring in idle:
            self.give_back(ring)
        return sum(ring.nbytes for ring in idle)


def rings_of(device: MemoryDevice) -> Rings:
    """The rings of a device."""
    known = _rings.get(id(device))
    return known if known is not None else _rings.setdefault(id(device), Rings(device))


def trim_staging() -> int:
    """Give the pinned memory of idle staging rings back, of all devices; returns how many bytes."""
    return sum(rings.trim() for rings in list(_rings.values()))


def _after_fork_in_child() -> None:
    global _lock
    _lock = threading.Lock()
    _rings.clear()  # the parent's


os.register_at_fork(after_in_child=_after_fork_in_child)
