# SPDX-License-Identifier: Apache-2.0
"""In-order queues and events as a vendor has them: CUDA's and HIP's streams, signals of HSA, a worker thread."""

from __future__ import annotations

from typing import Protocol


class VendorEvent(Protocol):
    """A point in a queue: reached when all that was submitted before it is done. Given back when it is collected."""

    def done(self) -> bool:
        """Whether it is reached. Raises the VendorError of the work before it, if that failed."""

    def wait(self) -> None:
        """Block this thread, without the GIL, until it is reached. Raises as `done`."""

    def seconds_since(self, earlier: VendorEvent) -> float:
        """Time between two reached points of one device, in seconds, by the device's clock where it has one."""


class VendorQueue(Protocol):
    """Work in order. Any thread may submit; the caller sees to it that no two do at once. Submitting does not block.

    Every method may raise `VendorError`; then nothing was submitted.
    """

    @property
    def handle(self) -> int:
        """The vendor's own handle, such as a cudaStream_t; 0 where there is none."""

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes. Where an end is pageable host memory, it may block until that has been read or written."""

    def copy_2d(self, dst: int, dst_pitch: int, src: int, src_pitch: int, width: int, height: int) -> None:
        """Copy `height` rows of `width` bytes, whose starts are so many bytes apart."""

    def fill(self, ptr: int, value: bytes, count: int) -> None:
        """Write the 1, 2 or 4 bytes of `value` `count` times."""

    def call(self, function: int, argument: int) -> None:
        """Call the C function ``void (*function)(void *argument)`` in its turn, on a thread without the GIL.

        Later work waits until it returns. It may wait for other threads of the host, not for work of the device.
        """

    @property
    def waits_for_values(self) -> bool:
        """Whether it has `wait_value` and `write_value`; without them pageable memory cannot be staged."""

    def wait_value(self, address: int, value: int) -> None:
        """What is submitted from now on waits until the 32-bit word at a host address has reached `value`.

        Reached, on a wrapping scale: ``(word - value) mod 2**32 < 2**31``. The word lies in this device's HOST memory
        and is written by threads of the host or by `write_value`; a thread's atomic store with release order suffices.
        """

    def write_value(self, address: int, value: int) -> None:
        """Write a 32-bit word of HOST memory in its turn, after all data of the work before it."""

    def record(self) -> VendorEvent:
        """An event after all that was submitted so far."""

    def wait(self, event: VendorEvent) -> None:
        """What is submitted from now on waits for an event of any queue of the same vendor."""

    def done(self) -> bool:
        """Whether all that was submitted is done. Raises the VendorError of work that failed."""

    def synchronize(self) -> None:
        """Block this thread, without the GIL, until all that was submitted so far is done. Raises as `done`."""

    def close(self) -> None:
        """Give the queue back once its work is done; one that was adopted stays."""
