# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

from pinning.queues.event import Event

class Gate:
    """Where a queue waits until a thread of the host opens it.

    `function` and `argument` are for `VendorQueue.call`. The gate must live until that call has returned.
    """

    def __init__(self) -> None: ...
    @property
    def function(self) -> int: ...
    @property
    def argument(self) -> int: ...
    @property
    def is_open(self) -> bool: ...
    def open(self) -> None:
        """Let through whoever waits, and whoever comes. A gate is never shut again."""

class Turn:
    """A Python function that a queue calls in its turn, as a C function for `VendorQueue.call`.

    What the function raises goes to `event`, or where that is gone, to `sys.unraisablehook`.
    """

    def __init__(self, function: Callable[[], object], event: Event) -> None: ...
    @property
    def function(self) -> int: ...
    @property
    def argument(self) -> int: ...

def gate_for(event: Event) -> Gate:
    """A gate that is opened once the event of another vendor is over, however it went."""
