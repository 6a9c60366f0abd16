# SPDX-License-Identifier: Apache-2.0
"""Streams, as in-order queues (`pinning.plugin.VendorQueue`).

cuda.core has streams and events too. They raise a bare RuntimeError when one cannot be made, hide the failure of giving
one back, and want the thread's current device changed, so the calls are made through cuda.bindings. A stream of
cuda.core is adopted like any other, and `Stream.from_handle(queue.handle)` is cuda.core's view of one of these.
"""

from __future__ import annotations

import contextlib
from typing import Any

from pinning.errors import PinningError
from pinning.plugin import VendorEvent
from pinning_cuda.context import FunctionsInContext
from pinning_cuda.driver import INVALID_CONTEXT, INVALID_HANDLE, NOT_READY, constant, functions, vendor_error
from pinning_cuda.events import CudaEvent, spare_events

# 0 and 1: the legacy default stream; 2: the calling thread's own.
_DEFAULT_STREAMS = 2


class CudaQueue:
    """A stream.

    The handle of a stream knows its context, and no context need be current (driver 580; not so for older ones, which
    say "invalid context" or "invalid handle"). The handles of the default streams mean those of the current context.
    """

    waits_for_values = True

    def __init__(self, handle: int, context: object, owned: bool) -> None:
        self.handle = handle
        self._context = context
        self._owned = owned
        self._spares = spare_events(context)
        self._functions: Any = functions if handle > _DEFAULT_STREAMS else FunctionsInContext(context)

    def __del__(self) -> None:
        with contextlib.suppress(PinningError, AttributeError):
            self.close()

    # ---- work ----

    def copy(self, dst: int, src: int, size: int) -> None:
        """cuMemcpyAsync: refuses a host range that crosses the border of a lock.

        From host memory to host memory, locked or not, the driver waits until the bytes are copied, and so for all work
        before them. Work that in turn waits for this thread would wait for ever.
        """
        # As _submit does, without the time that it takes.
        (code,) = self._functions.cuMemcpyAsync(dst, src, size, self.handle)
        if code:
            self._refused("cuMemcpyAsync", code)
            self.copy(dst, src, size)

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """cuMemcpy2DAsync: pitches are at least `width` and below 2 GiB."""
        rows = functions.CUDA_MEMCPY2D()
        rows.dstMemoryType = rows.srcMemoryType = constant("CUmemorytype", "CU_MEMORYTYPE_UNIFIED")
        rows.dstDevice, rows.dstPitch = dst, dst_pitch
        rows.srcDevice, rows.srcPitch = src, src_pitch
        rows.WidthInBytes, rows.Height = width, height
        self._submit("cuMemcpy2DAsync", rows, self.handle)

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """cuMemsetD8Async and its siblings: `ptr` is a multiple of the bytes of `value`."""
        self._submit(f"cuMemsetD{8 * len(value)}Async", ptr, int.from_bytes(value, "little"), count, self.handle)

    def call(self, function: int, argument: int) -> None:
        """cuLaunchHostFunc: the function may make no call of CUDA."""
        self._submit("cuLaunchHostFunc", self.handle, function, argument)

    def wait_value(self, address: int, value: int) -> None:
        """cuStreamWaitValue32."""
        self._submit("cuStreamWaitValue32", self.handle, address, value, 0)  # 0: reached or gone past, cyclic

    def write_value(self, address: int, value: int) -> None:
        """cuStreamWriteValue32."""
        self._submit("cuStreamWriteValue32", self.handle, address, value, 0)  # 0: after all that was written before

    # ---- order ----

    def record(self) -> CudaEvent:
        """cuEventRecord, of an event with the time."""
        event = CudaEvent(self._spares.take(), self._spares)
        self._submit("cuEventRecord", event.handle, self.handle)
        return event

    def wait(self, event: VendorEvent) -> None:
        """cuStreamWaitEvent, for an event of any GPU."""
        assert isinstance(event, CudaEvent)
        self._submit("cuStreamWaitEvent", self.handle, event.handle, 0)

    def done(self) -> bool:
        """Whether all work is done."""
        (code,) = self._functions.cuStreamQuery(self.handle)
        if code == NOT_READY:
            return False
        if code:
            self._refused("cuStreamQuery", code)
            return self.done()
        return True

    def synchronize(self) -> None:
        """cuStreamSynchronize: the thread spins or sleeps as the context's flags say."""
        self._submit("cuStreamSynchronize", self.handle)

    def close(self) -> None:
        """Give back a stream of ours: what it has to do is still done. After an error it is still open."""
        if self._functions is _CLOSED:
            return
        if self._owned:
            self._submit("cuStreamDestroy", self.handle)
        self._functions = _CLOSED
        self._spares.close()

    def _submit(self, function: str, *arguments: object) -> None:
        (code,) = getattr(self._functions, function)(*arguments)
        if code:
            self._refused(function, code)
            self._submit(function, *arguments)

    def _refused(self, function: str, code: Any) -> None:
        """Have the call made again if the driver wants the context current; from now on it gets it. Else raise."""
        if code not in (INVALID_CONTEXT, INVALID_HANDLE) or self._functions is not functions:
            raise vendor_error(function, code)
        self._functions = FunctionsInContext(self._context)


class _Closed:
    """In the place of a closed queue's functions, because the driver crashes on the handle of a stream that is gone."""

    def __getattr__(self, name: str) -> Any:
        raise PinningError(f"this CUDA queue is closed, so {name} cannot be called: make another")


_CLOSED = _Closed()
