# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable, Iterator
from enum import IntEnum
from typing import Generic, TypeVar

T = TypeVar("T")

SHORTEST: float
LONGEST: float

class Subsystem(IntEnum):
    MAPS = 0
    CACHE = 1
    LOCKS = 2
    MEMORY = 3
    COPIES = 4
    QUEUES = 5
    ARENAS = 6

class WeakRegistry(Generic[T]):
    def __init__(self) -> None: ...
    def add(self, thing: T) -> None: ...
    def __iter__(self) -> Iterator[T]: ...

def start_thread(function: Callable[..., object], *arguments: object) -> int: ...
def look_after(function: Callable[..., object], *arguments: object, pause: float = ...) -> None: ...
def defer(function: Callable[..., object], *arguments: object) -> None: ...
def run_deferred() -> None: ...
def at_fork(subsystem: Subsystem, function: Callable[[], object]) -> None: ...
def at_exit(subsystem: Subsystem, function: Callable[[], object]) -> None: ...
