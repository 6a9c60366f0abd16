# SPDX-License-Identifier: Apache-2.0
from typing import Any

from pinning.copies.work import NativeCopy
from pinning.plugin import MemoryDevice

class BatchCopy(NativeCopy):
    def __init__(
        self,
        device: MemoryDevice,
        dsts: Any,
        srcs: Any,
        sizes: Any,
        owners: tuple[object, ...],
        engine: str,
        has_kernel: bool,
    ) -> None: ...
    @property
    def counts(self) -> dict[str, int]: ...
    @property
    def sizes(self) -> dict[str, int]: ...
    @property
    def plain(self) -> int: ...
