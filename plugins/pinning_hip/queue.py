# SPDX-License-Identifier: Apache-2.0
"""Streams, as in-order queues (`pinning.plugin.VendorQueue`)."""

from __future__ import annotations

import contextlib

from pinning.errors import PinningError, VendorError
from pinning.plugin import MemoryKind, VendorEvent
from pinning_hip import memory
from pinning_hip.current import current_device
from pinning_hip.driver import INVALID_VALUE, NOT_SUPPORTED, call, constant
from pinning_hip.events import HipEvent, is_ready, spare_events

_NON_BLOCKING = 0x1
_GTE, _ALL_BITS = 0x0, 0xFFFFFFFF
_END_OF_SCALE = 1 << 31


class HipQueue:
    """A stream of the device `index`.

    Each call is made with that device current: the default streams mean those of the current device, and some releases
    look addresses up there, whatever stream is named.
    """

    def __init__(self, handle: int, index: int, owned: bool, waits_for_values: bool) -> None:
        self.handle = handle
        self.waits_for_values = waits_for_values
        self._index = index
        self._owned = owned
        self._open = True
        self._spares = spare_events(index)

    def __del__(self) -> None:
        with contextlib.suppress(PinningError, AttributeError):
            self.close()

    # ---- work ----

    def copy(self, dst: int, src: int, size: int) -> None:
        """hipMemcpyAsync: refuses a host range that begins in a lock and reaches past its end."""
        self._submit("hipMemcpyAsync", dst, src, size, _default_kind(), self.handle)

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """hipMemcpy2DAsync."""
        rows = dst, dst_pitch, src, src_pitch, width, height
        self._submit("hipMemcpy2DAsync", *rows, _default_kind(), self.handle)

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """hipMemsetD8Async and its siblings: `ptr` is a multiple of the bytes of `value`."""
        number = int.from_bytes(value, "little", signed=len(value) == 4)
        self._submit(f"hipMemsetD{8 * len(value)}Async", ptr, number, count, self.handle)

    def call(self, function: int, argument: int) -> None:
        """hipLaunchHostFunc: the function may make no call of HIP."""
        self._submit("hipLaunchHostFunc", self.handle, function, argument)

    def wait_value(self, address: int, value: int) -> None:
        """hipStreamWaitValue32, whose scale does not wrap: a word begins at 0 and never goes past 2**31 - 1.

        While it waits, the stream takes one of the few queues of the hardware, and others that share that one wait too.

        Raises
        ------
        PinningError
            The value is beyond, or `waits_for_values` is False.
        """
        self._require_values()
        if value >= _END_OF_SCALE:
            raise PinningError(
                f"hip:{self._index} cannot wait until a word has reached {value}: HIP compares numbers that do not "
                "wrap, and so only those below 2**31; begin again with a word that is 0"
            )
        self._submit("hipStreamWaitValue32", self.handle, address, value, _GTE, _ALL_BITS)

    def write_value(self, address: int, value: int) -> None:
        """hipStreamWriteValue32."""
        self._require_values()
        self._submit("hipStreamWriteValue32", self.handle, address, value, 0)

    # ---- order ----

    def record(self) -> HipEvent:
        """hipEventRecord, of an event with the time."""
        event = HipEvent(self._spares.take(), self._spares)
        self._submit("hipEventRecord", event.handle, self.handle)
        return event

    def wait(self, event: VendorEvent) -> None:
        """hipStreamWaitEvent, for an event of any device."""
        assert isinstance(event, HipEvent)
        self._submit("hipStreamWaitEvent", self.handle, event.handle, 0)

    def done(self) -> bool:
        """Whether all work is done."""
        self._require_open("hipStreamQuery")
        with current_device(self._index):
            return is_ready("hipStreamQuery", self.handle)

    def synchronize(self) -> None:
        """hipStreamSynchronize."""
        self._submit("hipStreamSynchronize", self.handle)

    def close(self) -> None:
        """Give back a stream of ours once its work is done. After an error it is still open."""
        if not self._open:
            return
        if self._owned:
            self._submit("hipStreamDestroy", self.handle)
        self._open = False
        self._spares.close()

    def _submit(self, function: str, *arguments: object) -> None:
        self._require_open(function)
        with current_device(self._index):
            call(function, *arguments)

    def _require_open(self, function: str) -> None:
        # The runtime crashes on the handle of a stream that is gone, or takes another for it.
        if not self._open:
            raise PinningError(f"this HIP queue is closed, so {function} cannot be called: make another")

    def _require_values(self) -> None:
        if not self.waits_for_values:
            raise PinningError(
                f"queues of hip:{self._index} cannot wait for values in HOST memory, nor write them: this GPU or this "
                "release of the runtime cannot, or GPU_STREAMOPS_CP_WAIT is set; use events, or a function of the host"
            )


def make_stream(index: int) -> int:
    """A new stream, which does not wait for the default stream, nor that for it."""
    with current_device(index):
        (stream,) = call("hipStreamCreateWithFlags", _NON_BLOCKING)
    return int(stream)


def waits_for_values(index: int) -> bool:
    """Whether streams of the device can wait for a word of any HOST memory: tried, on a stream of its own.

    The attribute is not enough. Old releases, and new ones with GPU_STREAMOPS_CP_WAIT=1, take only words of "signal
    memory", and say so when they are asked to wait.
    """
    (can,) = call("hipDeviceGetAttribute", constant("hipDeviceAttribute_t", _CAN_WAIT), index)
    if not can:
        return False
    with current_device(index):
        word = memory.allocate(4, MemoryKind.HOST)
        try:
            queue = HipQueue(make_stream(index), index, owned=True, waits_for_values=True)
            try:
                queue.wait_value(word, 0)  # which it has reached, whatever it is
                queue.write_value(word, 0)
                queue.synchronize()
            finally:
                queue.close()
        except VendorError as error:
            if error.code not in (INVALID_VALUE, NOT_SUPPORTED):
                raise
            return False
        finally:
            memory.free(word, MemoryKind.HOST)
    return True


_CAN_WAIT = "hipDeviceAttributeCanUseStreamWaitValue"


def _default_kind() -> object:
    return constant("hipMemcpyKind", "hipMemcpyDefault")
