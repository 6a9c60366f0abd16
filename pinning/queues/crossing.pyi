# SPDX-License-Identifier: Apache-2.0
"""How a queue of one vendor waits for an event of another.

A queue of the other vendor's, which nothing else uses, waits for the event and then gives a signal; a thread of
libpinning sees the word that this writes, and writes the one that the first queue waits for. No function of the host is
called by a driver and no thread of Python waits, for others may hold the GIL in a call that returns only when all
queues are idle. The helper is submitted to before the queue that waits: what a queue waits for was always submitted
before.
"""

from pinning.plugin import MemoryDevice, VendorQueue
from pinning.queues.event import Event

class Crossing:
    """A wait for an event of another vendor. The queue that waits keeps it until it is past."""

    def submit(self, queue: VendorQueue, device: MemoryDevice) -> None:
        """Have this queue wait. Raises what the vendor does."""

def crossing(event: Event) -> Crossing | None:
    """A wait to be submitted to a queue of another vendor than the event's; None if the event is over.

    Raises
    ------
    VendorError
        The event's vendor refused to wait for it.
    """

def close_idle_helpers() -> None:
    """Give back the queues whose signals are all given."""
