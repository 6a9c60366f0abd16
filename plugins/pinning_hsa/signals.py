# SPDX-License-Identifier: Apache-2.0
"""Signals to tell the end of work."""

from __future__ import annotations

import ctypes
from functools import partial

from pinning.plugin.spares import Spares
from pinning_hsa.abi import Handle
from pinning_hsa.driver import call, loaded


class SpareSignals(Spares[Handle]):
    """Signals of a queue that nobody needs any more, to be used again: one that can be slept on is the kernel's."""

    def __init__(self) -> None:
        super().__init__(_make, partial(call, "hsa_signal_destroy"))

    def take_with(self, value: int) -> Handle:
        """One of them, or a new one, with this value."""
        set_value = loaded().hsa_signal_store_screlease
        signal = self.take()
        set_value(signal, value)
        return signal


def _make() -> Handle:
    signal = Handle()
    call("hsa_signal_create", 0, 0, None, ctypes.byref(signal))
    return signal
