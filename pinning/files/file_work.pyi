# SPDX-License-Identifier: Apache-2.0
import os
from collections.abc import Iterable
from types import TracebackType
from typing import Self

from pinning.copies.work import Copy
from pinning.queues import Event, Queue

class OpenFile:
    def __init__(self, path: str | bytes | os.PathLike[str] | os.PathLike[bytes], create: bool = False) -> None: ...
    @property
    def path(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    def fileno(self) -> int: ...
    def look_for_cold(self, offset: int, nbytes: int) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None: ...

class FileCopy(Copy):
    def cancel(self) -> None: ...

def copy_parts(
    queue: Queue,
    file: OpenFile,
    parts: Iterable[tuple[int, int, int]],
    *,
    in_device: bool,
    writes: bool = False,
    wait_for: Iterable[Event] = (),
    keep: Iterable[object] = (),
    early: bool | None = None,
) -> FileCopy: ...
