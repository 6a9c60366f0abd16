# SPDX-License-Identifier: Apache-2.0
"""Events: points in a stream (`pinning.plugin.VendorEvent`)."""

from __future__ import annotations

import time
from functools import partial

from pinning.plugin import VendorEvent
from pinning.plugin.spares import Spares
from pinning_cuda.context import current
from pinning_cuda.driver import NOT_READY, call, constant, functions, vendor_error

# Seconds. To wake a thread that sleeps takes 0.05 to 0.2 ms, which must be little of what it has waited for.
_POLLED = 2e-3


def spare_events(context: object) -> Spares[object]:
    """Events of a context that nobody needs any more, to be recorded again.

    Every event records the time, since it is not known beforehand which will be asked for it. To make, record and
    destroy one takes 2.1 us (H200), without the time 1.2; to record one again, time and all, takes 1.2.
    """

    def make() -> object:
        # A thread that waits for it sleeps. Without this flag it spins, and takes a processor from who copies.
        flags = constant("CUevent_flags", "CU_EVENT_BLOCKING_SYNC")
        with current(context):
            (handle,) = call("cuEventCreate", flags)
        return handle

    return Spares(make, partial(call, "cuEventDestroy"))


class CudaEvent:
    """A point in a stream. The driver's event goes back to the `spares` when this is collected."""

    def __init__(self, handle: object, spares: Spares[object]) -> None:
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
