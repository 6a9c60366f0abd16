# SPDX-License-Identifier: Apache-2.0
"""The current device of a thread, which the runtime's memory calls are about."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pinning.errors import VendorError
from pinning_hip.driver import call


@contextlib.contextmanager
def current_device(index: int) -> Iterator[None]:
    """Make the device `index` current in this thread, and afterwards whichever was before."""
    (before,) = call("hipGetDevice")
    if before == index:
        yield
        return
    call("hipSetDevice", index)
    try:
        yield
    finally:
        # That it fails must not undo what was done here, and nothing else brings the thread's device back.
        with contextlib.suppress(VendorError):
            call("hipSetDevice", before)
