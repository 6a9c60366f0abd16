# SPDX-License-Identifier: Apache-2.0
"""In-order queues (`pinning.plugin.VendorQueue`)."""

from __future__ import annotations

import contextlib
import ctypes
from typing import NoReturn

from pinning.errors import PinningError, VendorError
from pinning.plugin import VendorEvent
from pinning_ur import release
from pinning_ur.events import UrEvent
from pinning_ur.loader import asked, call, exports, made

_AFTER_NOTHING = (0, None)  # an empty list of events
_NO_EVENT = None


class UrQueue:
    """A ``ur_queue_handle_t``, in order.

    `name` is its device's, for errors. `calls`: whether it can call functions of the host, which few adapters can.
    """

    waits_for_values = False

    def __init__(self, handle: int, name: str, owned: bool, calls: bool) -> None:
        self.handle = handle
        self._name = name
        self._owned = owned
        self._calls = calls
        self._open = True

    def __del__(self) -> None:
        with contextlib.suppress(PinningError, AttributeError):
            self.close()

    # ---- work ----

    def copy(self, dst: int, src: int, size: int) -> None:
        """urEnqueueUSMMemcpy."""
        self._submit("urEnqueueUSMMemcpy", False, dst, src, size)

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """urEnqueueUSMMemcpy2D."""
        self._submit("urEnqueueUSMMemcpy2D", False, dst, dst_pitch, src, src_pitch, width, height)

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """urEnqueueUSMFill."""
        self._submit("urEnqueueUSMFill", ptr, len(value), value, len(value) * count)

    def call(self, function: int, argument: int) -> None:
        """urEnqueueHostTaskExp: the function may make no call of Unified Runtime.

        Raises
        ------
        PinningError
            The device cannot.
        """
        if not self._calls:
            raise PinningError(
                f"queues of {self._name} cannot call functions of the host (urEnqueueHostTaskExp), nor wait for the "
                "events of other vendors: wait for an event in a thread of your own, and go on there"
            )
        self._submit(release.HOST_TASK, function, argument, None)

    def wait_value(self, address: int, value: int) -> NoReturn:
        """Not with Unified Runtime: it raises PinningError."""
        self._refuse_values()

    def write_value(self, address: int, value: int) -> NoReturn:
        """Not with Unified Runtime: it raises PinningError."""
        self._refuse_values()

    # ---- order ----

    def record(self) -> UrEvent:
        """urEnqueueEventsWait, for all that was submitted before."""
        self._require_open("urEnqueueEventsWait")
        return UrEvent(made("urEnqueueEventsWait", self.handle, *_AFTER_NOTHING))

    def wait(self, event: VendorEvent) -> None:
        """urEnqueueEventsWaitWithBarrier, for an event of any queue of the platform."""
        assert isinstance(event, UrEvent)
        self._require_open("urEnqueueEventsWaitWithBarrier")
        call("urEnqueueEventsWaitWithBarrier", self.handle, 1, (ctypes.c_void_p * 1)(event.handle), _NO_EVENT)

    def done(self) -> bool:
        """Whether the queue is empty. Work that failed leaves it so; only events tell of that."""
        self._require_open("urQueueGetInfo")
        return bool(asked(ctypes.c_bool, "urQueueGetInfo", self.handle, release.QUEUE_INFO_EMPTY).value)

    def synchronize(self) -> None:
        """urQueueFinish."""
        self._require_open("urQueueFinish")
        call("urQueueFinish", self.handle)

    def close(self) -> None:
        """Release a queue of ours: what it has to do is still done. After an error it is still open."""
        if not self._open:
            return
        if self._owned:
            call("urQueueRelease", self.handle)
        self._open = False

    @property
    def closed(self) -> bool:
        """Whether it has been closed."""
        return not self._open

    def _submit(self, function: str, *arguments: object) -> None:
        self._require_open(function)
        call(function, self.handle, *arguments, *_AFTER_NOTHING, _NO_EVENT)

    def _require_open(self, function: str) -> None:
        # The loader crashes on the handle of a queue that is gone.
        if not self._open:
            raise PinningError(f"this queue of {self._name} is closed, so {function} cannot be called: make another")

    def _refuse_values(self) -> NoReturn:
        raise PinningError(
            f"queues of {self._name} cannot wait for values in memory, nor write them, because Unified Runtime has no "
            "such call: use events"
        )


def make_queue(context: int, device: int, name: str) -> UrQueue:
    """A new queue, whose events know the time."""
    calls = calls_functions(device)  # first, because it may fail
    handle = made("urQueueCreate", context, device, ctypes.byref(release.PROFILING_QUEUE))
    return UrQueue(handle, name, True, calls)


def adopt_queue(context: int, device: int, name: str, handle: int) -> UrQueue:
    """Somebody else's queue, if it can be used as one of ours.

    Raises
    ------
    PinningError
        It is of another device or context, or out of order.
    """
    if asked(ctypes.c_void_p, "urQueueGetInfo", handle, release.QUEUE_INFO_DEVICE).value != device:
        raise PinningError(f"queue {handle:#x} is not one of {name}: adopt it on its own device")
    if asked(ctypes.c_void_p, "urQueueGetInfo", handle, release.QUEUE_INFO_CONTEXT).value != context:
        raise PinningError(
            f"queue {handle:#x} is in another context than the memory that pinning allocates and locks on {name}, "
            "which it cannot reach there: create it in the `context` of the device"
        )
    if asked(ctypes.c_uint32, "urQueueGetInfo", handle, release.QUEUE_INFO_FLAGS).value & release.QUEUE_OUT_OF_ORDER:
        raise PinningError(f"queue {handle:#x} of {name} is out of order: create one that is in order")
    return UrQueue(handle, name, False, calls_functions(device))


def calls_functions(device: int) -> bool:
    """Whether queues of a device can call functions of the host: only with the newest loaders and drivers."""
    if not exports(release.HOST_TASK):
        return False
    try:
        return bool(asked(ctypes.c_bool, "urDeviceGetInfo", device, release.DEVICE_INFO_HOST_TASK).value)
    except VendorError as error:
        if error.code in (release.INVALID_ENUMERATION, release.UNSUPPORTED_ENUMERATION):  # the adapter is older
            return False
        raise
