# SPDX-License-Identifier: Apache-2.0
"""Events: points in a queue (`pinning.plugin.VendorEvent`)."""

from __future__ import annotations

import contextlib
import ctypes

from pinning.errors import PinningError, VendorError
from pinning.plugin import VendorEvent
from pinning_ur import release
from pinning_ur.loader import asked, call


class UrEvent:
    """A point in a queue, released when this is collected."""

    def __init__(self, handle: int) -> None:
        self.handle = handle

    def __del__(self) -> None:
        with contextlib.suppress(PinningError):  # there is nobody to tell
            call("urEventRelease", self.handle)

    def done(self) -> bool:
        """Whether all work before it is done."""
        status = asked(ctypes.c_int, "urEventGetInfo", self.handle, release.EVENT_INFO_STATUS).value
        if status == release.EVENT_COMPLETE:
            return True
        if status in release.EVENT_PENDING:
            return False
        self.wait()  # which says why
        raise VendorError("urEventGetInfo", status, "UR_EVENT_STATUS_ERROR", "work before this event has failed")

    def wait(self) -> None:
        """urEventWait."""
        call("urEventWait", 1, (ctypes.c_void_p * 1)(self.handle))

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Time between two reached points by the clock of the device.

        Raises
        ------
        VendorError
            The queue of one of them does not keep the time (UR_QUEUE_FLAG_PROFILING_ENABLE), as ours do.
        """
        assert isinstance(earlier, UrEvent)
        return (self._nanoseconds() - earlier._nanoseconds()) / 1e9

    def _nanoseconds(self) -> int:
        return asked(ctypes.c_uint64, "urEventGetProfilingInfo", self.handle, release.PROFILING_INFO_END).value
