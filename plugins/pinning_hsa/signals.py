# SPDX-License-Identifier: Apache-2.0
"""Signals to tell the end of work."""

from __future__ import annotations

import ctypes
from collections import deque

from pinning.errors import PinningError
from pinning_hsa.abi import Handle
from pinning_hsa.driver import call, loaded


class SpareSignals:
    """Signals of a queue that nobody needs any more, to be used again: one that can be slept on is the kernel's."""

    _MOST = 64

    def __init__(self) -> None:
        self._signals: deque[Handle] = deque()
        self._most = self._MOST

    def take(self, value: int) -> Handle:
        """One of them, or a new one, with this value."""
        set_value = loaded().hsa_signal_store_screlease
        try:
            signal = self._signals.pop()
        except IndexError:
            signal = Handle()
            call("hsa_signal_create", value, 0, None, ctypes.byref(signal))
        else:
            set_value(signal, value)
        return signal

    def give(self, signal: Handle) -> None:
        """Keep a signal for later, or destroy it when there are enough."""
        self._signals.append(signal)
        self._destroy_beyond(self._most)

    def close(self) -> None:
        """Destroy them, and from now on all that are given."""
        self._most = 0
        self._destroy_beyond(0)

    def __del__(self) -> None:
        self.close()

    def _destroy_beyond(self, count: int) -> None:
        # Two threads may do this at once, and finalizers, which have nobody to tell of a failure.
        while len(self._signals) > count:
            try:
                signal = self._signals.popleft()
            except IndexError:
                return
            try:
                call("hsa_signal_destroy", signal)
            except PinningError:
                self._signals.append(signal)
                return
