# SPDX-License-Identifier: Apache-2.0
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from pinning.interop.memory_of import HostBuffer
from pinning.map.pinned_map import Hold, PinnedMap, Region
from pinning.plugin import Device

class Lock(Hold):
    @property
    def ptr(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def device(self) -> Device: ...
    @property
    def region(self) -> Region | None: ...
    def unlock(self) -> None: ...  # type: ignore[override]  # a Hold says whether it was held
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

def lock(
    buffer: object,
    size: int | None = None,
    *,
    device: Device | str | None = None,
    read_only: bool | None = None,
    piece: int | None = None,
    unit: int | None = None,
    stall_ms: float | None = None,
    coherent: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> Lock: ...
def make_ready(buffer: HostBuffer, on: PinnedMap, progress: Callable[[int, int], object] | None = None) -> None: ...
def unlock_cached(lock: Lock) -> None: ...
def unlock(buffer: object, *, device: Device | str | None = None) -> None: ...
def locked(
    *buffers: object,
    device: Device | str | None = None,
    read_only: bool | None = None,
    coherent: bool | None = None,
) -> AbstractContextManager[tuple[Lock, ...]]: ...
def is_locked(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> bool: ...
def find(buffer: object, size: int | None = None, *, device: Device | str | None = None) -> Region | None: ...
def regions(device: Device | str | None = None, *, idle: bool = False) -> list[Region]: ...
def range_of(buffer: object, size: int | None = None) -> tuple[int, int]: ...
