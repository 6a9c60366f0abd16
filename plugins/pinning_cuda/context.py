# SPDX-License-Identifier: Apache-2.0
"""The context that the driver's memory calls want current in the calling thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from pinning.errors import VendorError
from pinning_cuda.driver import call


class PrimaryContext:
    """A device's primary context, the one that the CUDA runtime and so every library uses.

    It is retained at its first use and never released, because what was locked in it may outlive any owner of ours.
    """

    def __init__(self, device: object) -> None:
        self._device = device
        self._handle: object = None
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def current(self) -> Iterator[None]:
        """Make the context current in this thread, and afterwards whichever was before."""
        call("cuCtxPushCurrent", self._retained())
        try:
            yield
        finally:
            # Its code may be that of someone's earlier asynchronous work, which must not undo what was done here.
            with contextlib.suppress(VendorError):
                call("cuCtxPopCurrent")

    def _retained(self) -> object:
        if self._handle is None:
            (handle,) = call("cuDevicePrimaryCtxRetain", self._device)
            with self._lock:
                first = self._handle is None
                self._handle = handle
            if not first:  # another thread was quicker
                call("cuDevicePrimaryCtxRelease", self._device)
        return self._handle
