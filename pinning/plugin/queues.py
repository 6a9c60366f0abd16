# SPDX-License-Identifier: Apache-2.0
"""A vendor's in-order queues and events: streams of CUDA and HIP, signals of HSA, a worker thread."""

from __future__ import annotations

from typing import Protocol


class VendorEvent(Protocol):
    """A point in a queue, reached when all work submitted before it is done. Given back when it is collected."""

    def done(self) -> bool:
        """Whether it has been reached. Raises the VendorError of the work before it, if that failed."""

    def wait(self) -> None:
        """Block this thread, without the GIL, until it is reached. Raises as `done`."""

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Seconds between two points, by the device's clock if it has one. PinningError if one is not reached yet."""


class VendorQueue(Protocol):
    """Work in order. Any thread may submit; the caller ensures that no two do so at once. Submitting does not block.

    Every method may raise `VendorError`; then nothing was submitted. After `close`, which can be repeated, every other
    method raises a `PinningError` that says so.
    """

    @property
    def handle(self) -> int:
        """The vendor's own handle, such as a cudaStream_t; 0 if there is none."""

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes. If an end is pageable host memory, it may block until that has been read or written."""

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """Copy `height` rows of `width` bytes, whose starts are the pitch apart, in bytes."""

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """Write the 1, 2 or 4 bytes of `value` `count` times."""

    def call(self, function: int, argument: int) -> None:
        """Call the C function ``void (*function)(void *argument)`` in queue order, on a thread without the GIL.

        Later work waits until it returns. It may wait for other host threads, but not for work of the device.
        """

    @property
    def waits_for_values(self) -> bool:
        """Whether it has `wait_value` and `write_value`; without them pageable memory cannot be staged."""

    def wait_value(self, address: int, value: int) -> None:
        """Make later work wait until the 32-bit word at a host address has reached `value`.

        Reached, with wrap-around: ``(word - value) mod 2**32 < 2**31``. The word lies in this device's HOST memory and
        is written by host threads or by `write_value`; a thread's atomic store with release order suffices.
        """

    def write_value(self, address: int, value: int) -> None:
        """Write a 32-bit word of HOST memory in queue order, after all data of the work before it."""

    def record(self) -> VendorEvent:
        """Record an event after all work submitted so far."""

    def wait(self, event: VendorEvent) -> None:
        """Make later work wait for an event of any queue of the same vendor."""

    def done(self) -> bool:
        """Whether all submitted work is done. Raises the VendorError of work that failed."""

    def synchronize(self) -> None:
        """Block this thread, without the GIL, until all work submitted so far is done. Raises as `done`."""

    def close(self) -> None:
        """Give the queue back once its work is done; an adopted queue stays open."""
