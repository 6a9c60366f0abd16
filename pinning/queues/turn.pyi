# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

from pinning.queues.event import Event

class Turn:
    """A Python function that a queue calls in its turn, as a C function for `VendorQueue.call`.

    What the function raises goes to `event`, or where that is gone, to `sys.unraisablehook`.
    """

    def __init__(self, function: Callable[[], object], event: Event) -> None: ...
    @property
    def function(self) -> int: ...
    @property
    def argument(self) -> int: ...
