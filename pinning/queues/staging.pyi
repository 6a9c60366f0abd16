# SPDX-License-Identifier: Apache-2.0
from typing import NamedTuple, Protocol

from pinning.plugin import MemoryDevice, VendorQueue

class Limits(NamedTuple):
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

def default_limits() -> Limits: ...

class Staged:
    def give(self) -> None: ...

class Block:
    ptr: int
    nbytes: int

class Staging:
    def __init__(self, device: MemoryDevice) -> None: ...
    def signal(self, queue: VendorQueue) -> Staged: ...
    def wait(self, queue: VendorQueue, signal: Staged) -> Staged | None: ...
    def borrow(self, at_most: int, costs: _Costs) -> Block | None: ...
    @property
    def empty(self) -> bool: ...

def staging_of(device: MemoryDevice) -> Staging: ...
def trim_staging() -> int: ...
