# SPDX-License-Identifier: Apache-2.0
"""Work that threads of libpinning do for vendors' queues: staged copies, copies in the host, signals between vendors.

`pinning/staging.hpp` has how it works, `docs/copies.md` why nothing can hang in it.
"""

from typing import NamedTuple, Protocol

from pinning.plugin import MemoryDevice, VendorQueue

class Limits(NamedTuple):
    """How much of the machine staging may use; `pinning.copies.Costs` says what each is."""

    ring_bytes: int
    staging_bytes: int
    chunk_bytes: int
    threads: int
    threads_to_device: int
    threads_to_host: int

class _Costs(Protocol):
    ring_bytes: int
    staging_bytes: int
    chunk_bytes: int
    threads: int
    threads_to_device: int
    threads_to_host: int

def default_limits() -> Limits:
    """Those that suit the processors that this process may run on."""

class Staged:
    """A copy, a signal or a wait in a queue. Keep it until the queue's work is over.

    When it is collected no thread touches the host's memory any more, even if the device is lost.
    """

    def give(self) -> None:
        """Of a signal: as if its queue had come to it."""

class Block:
    """Pinned memory of the host that is this object's until it is collected."""

    ptr: int
    nbytes: int

class Staging:
    """The rings of pinned memory of one device. One submission to a queue at a time, as everywhere."""

    def __init__(self, device: MemoryDevice) -> None: ...
    def copy_to_device(
        self, queue: VendorQueue, there: int, host: int, size: int, costs: _Costs, early: bool = False
    ) -> Staged | None:
        """Copy pageable memory. None where there is no pinned memory to do it with, or the queue waits for no values.

        `early`: the bytes may be read before the copy's turn, for nothing that is submitted already writes them.

        Raises
        ------
        VendorError
            The vendor refused a step. What was submitted before it is done by then.
        """

    def copy_to_host(self, queue: VendorQueue, host: int, there: int, size: int, costs: _Costs) -> Staged | None:
        """The other way."""

    def copy_in_host(self, queue: VendorQueue, dst: int, src: int, size: int, costs: _Costs) -> Staged:
        """Copy within the host's memory, in the queue's turn; the ranges may overlap. Raises as `copy_to_device`."""

    def signal(self, queue: VendorQueue) -> Staged:
        """A signal that is given when the queue comes to it. Raises as `copy_to_device`."""

    def wait(self, queue: VendorQueue, signal: Staged) -> Staged | None:
        """Have later work wait for a signal in a queue of any device, once for each; None if it was given already."""

    def borrow(self, at_most: int, costs: _Costs) -> Block | None:
        """Pinned memory of a ring, for whoever copies through it in its own way; None where there is none."""

    def trim(self) -> int:
        """Give back what is idle; returns how many bytes."""

    @property
    def empty(self) -> bool:
        """Whether it has no pinned memory."""

def staging_of(device: MemoryDevice) -> Staging:
    """The one of this device."""

def trim_staging() -> int:
    """Give the pinned memory of idle rings back, of all devices; returns how many bytes."""
