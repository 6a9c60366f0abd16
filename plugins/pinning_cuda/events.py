# SPDX-License-Identifier: Apache-2.0
"""Events: points in a stream (`pinning.plugin.VendorEvent`)."""

from __future__ import annotations

import time
from collections import deque

from pinning.errors import PinningError
from pinning.plugin import VendorEvent
from pinning_cuda.context import current
from pinning_cuda.driver import NOT_READY, call, constant, functions, vendor_error

# Seconds. To wake a thread that sleeps takes 0.05 to 0.2 ms, which must be little of what it has waited for.
_POLLED = 2e-3


class SpareEvents:
    """Events of a context that nobody needs any more, to be recorded again.

    Every event records the time, since it is not known beforehand which will be asked for it. To make, record and
    destroy one takes 2.1 us (H200), without the time 1.2; to record one again, time and all, takes 1.2.
    """

    _MOST = 64

    def __init__(self, context: object) -> None:
        self._context = context
        self._handles: deque[object] = deque()
        self._most = self._MOST

    def take(self) -> object:
        """One of them, or a new one."""
        try:
            return self._handles.pop()
        except IndexError:
            # A thread that waits for it sleeps. Without this flag it spins, and takes a processor from who copies.
            flags = constant("CUevent_flags", "CU_EVENT_BLOCKING_SYNC")
            with current(self._context):
                (handle,) = call("cuEventCreate", flags)
            return handle

    def give(self, handle: object) -> None:
        """Keep an event for later, or destroy it when there are enough."""
        self._handles.append(handle)
        self._destroy_beyond(self._most)

    def close(self) -> None:
        """Destroy them, and from now on all that are given."""
        self._most = 0
        self._destroy_beyond(0)

    def __del__(self) -> None:
        self.close()

    def _destroy_beyond(self, count: int) -> None:
        # Two threads may do this at once, and finalizers, which have nobody to tell of a failure.
        while len(self._handles) > count:
            try:
                handle = self._handles.popleft()
            except IndexError:
                return
            try:
                call("cuEventDestroy", handle)
            except PinningError:
                self._handles.append(handle)
                return


class CudaEvent:
    """A point in a stream. The driver's event goes back to the `spares` when this is collected."""

    def __init__(self, handle: object, spares: SpareEvents) -> None:
        self.handle = handle
        self._spares = spares

    def __del__(self) -> None:
        self._spares.give(self.handle)

    def done(self) -> bool:
        """Whether all work before it is done."""
        (code,) = functions.cuEventQuery(self.handle)
        if code and code != NOT_READY:
            raise vendor_error("cuEventQuery", code)
        return not code

    def wait(self) -> None:
        """Block until it is: ask again and again for a while, and then sleep."""
        end = time.perf_counter() + _POLLED
        while time.perf_counter() < end:
            if self.done():
                return
        call("cuEventSynchronize", self.handle)

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Time between two reached points by the clock of the GPU, in steps of about 0.5 us."""
        assert isinstance(earlier, CudaEvent)
        (milliseconds,) = call("cuEventElapsedTime", earlier.handle, self.handle)
        return float(milliseconds) / 1e3
