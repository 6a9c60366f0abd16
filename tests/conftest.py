# SPDX-License-Identifier: Apache-2.0
"""What holds for all tests."""

from __future__ import annotations

import gc
import importlib
import signal
from collections.abc import Iterator

import pytest

devices = importlib.import_module("pinning.devices")  # `pinning.devices` itself is the function

# A shell has its background jobs ignore Ctrl-C, and what they start inherits that; but tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_COLLECT_EVERY = 100
_forgotten = 0


@pytest.fixture(autouse=True)
def forget_maps() -> Iterator[None]:
    """Let go of the maps of devices that tests have made: each reserves 196 GiB of address space, for ever."""
    yield
    global _forgotten
    of_plugins = {id(device) for device in devices.devices()} if devices.plugins.cache_info().currsize else set()
    for key, each in list(devices._maps.items()):
        if key not in of_plugins and not len(each):
            del devices._maps[key]
            _forgotten += 1
            if _forgotten % _COLLECT_EVERY == 0:  # a map and its device may be a cycle
                gc.collect()
