# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable

from pinning.queues.event import Event

class HostCallback:
    def __init__(self, function: Callable[[], object], event: Event) -> None: ...
    @property
    def function(self) -> int: ...
    @property
    def argument(self) -> int: ...
