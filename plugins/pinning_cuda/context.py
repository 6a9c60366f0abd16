# SPDX-License-Identifier: Apache-2.0
"""The context that some of the driver's calls want current in the calling thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from pinning.errors import VendorError
from pinning_cuda.driver import call, functions


@contextlib.contextmanager
def current(context: object) -> Iterator[None]:
    """Make the context current in this thread, and afterwards whichever was before."""
    call("cuCtxPushCurrent", context)
    try:
        yield
    finally:
        # Its code may be that of someone's earlier asynchronous work, which must not undo what was done here.
        with contextlib.suppress(VendorError):
            call("cuCtxPopCurrent")


class PrimaryContext:
    """A device's primary context, the one that the CUDA runtime and so every library uses.

    It is retained at its first use and never released, because what was locked in it may outlive any owner of ours.
    """

    def __init__(self, device: object) -> None:
        self._device = device
        self._handle: object = None
        self._lock = threading.Lock()

    def current(self) -> contextlib.AbstractContextManager[None]:
        """Make it current in this thread, and afterwards whichever was before."""
        return current(self.handle)

    @property
    def handle(self) -> object:
        """The driver's handle."""
        if self._handle is None:
            (handle,) = call("cuDevicePrimaryCtxRetain", self._device)
            with self._lock:
                first = self._handle is None
                self._handle = handle
            if not first:  # another thread was quicker
                call("cuDevicePrimaryCtxRelease", self._device)
        return self._handle


class FunctionsInContext:
    """The functions of the driver, each called with a context current."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def in_context(*arguments: object) -> Any:
            function = getattr(functions, name)
            code, before = functions.cuCtxGetCurrent()
            if not code and int(before) == int(self._context):
                return function(*arguments)
            with current(self._context):
                return function(*arguments)

        setattr(self, name, in_context)
        return in_context
