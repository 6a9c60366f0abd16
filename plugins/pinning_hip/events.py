# SPDX-License-Identifier: Apache-2.0
"""Events: points in a stream (`pinning.plugin.VendorEvent`)."""

from __future__ import annotations

import time
from functools import partial

from pinning.errors import VendorError
from pinning.plugin import VendorEvent
from pinning.plugin.spares import Spares
from pinning_hip.current import current_device
from pinning_hip.driver import NOT_READY, call

_BLOCKING_SYNC = 0x1  # who waits for it sleeps; without this flag it spins, and takes a processor from who copies
_POLLED = 50e-6  # seconds


def spare_events(index: int) -> Spares[object]:
    """Events of a device that nobody needs any more, to be recorded again."""

    def make() -> object:
        with current_device(index):
            (handle,) = call("hipEventCreateWithFlags", _BLOCKING_SYNC)
        return handle

    return Spares(make, partial(call, "hipEventDestroy"))


class HipEvent:
    """A point in a stream. The runtime's event goes back to the `spares` when this is collected."""

    def __init__(self, handle: object, spares: Spares[object]) -> None:
        self.handle = handle
        self._spares = spares

    def __del__(self) -> None:
        self._spares.give(self.handle)

    def done(self) -> bool:
        """Whether all work before it is done."""
        return is_ready("hipEventQuery", self.handle)

    def wait(self) -> None:
        """Block until it is: ask for 50 us, which short work rarely needs, and then sleep."""
        end = time.perf_counter() + _POLLED
        while time.perf_counter() < end:
            if self.done():
                return
        call("hipEventSynchronize", self.handle)

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Time between two reached points by the clock of the device, in steps of about 1 us."""
        assert isinstance(earlier, HipEvent)
        (milliseconds,) = call("hipEventElapsedTime", earlier.handle, self.handle)
        return float(milliseconds) / 1e3


def is_ready(query: str, handle: object) -> bool:
    """What a query of the runtime's says: done, not yet, or why it never will be."""
    try:
        call(query, handle)
    except VendorError as error:
        if error.code == NOT_READY:
            return False
        raise
    return True
