# SPDX-License-Identifier: Apache-2.0
"""The platforms that the loader's adapters offer, and the context of each."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import NamedTuple

from pinning.errors import VendorError
from pinning_ur import release
from pinning_ur.loader import asked, call, listed, made
from pinning_ur.registrations import Registrations

_Text = ctypes.c_char * 256


class OnFirstUse:
    """A handle made at its first use and kept for good. Where two threads make one at once, one is given back."""

    def __init__(self, make: Callable[[], int], give_back: str) -> None:
        self._make = make
        self._give_back = give_back
        self._handle: int | None = None
        self._lock = threading.Lock()

    def __call__(self) -> int:
        if self._handle is None:
            handle = self._make()
            with self._lock:
                first = self._handle is None
                if first:
                    self._handle = handle
            if not first:
                call(self._give_back, handle)
        assert self._handle is not None
        return self._handle


class Platform:
    """Devices that share a context, and with it what is locked.

    Attributes
    ----------
    adapter : str
        The adapter that drives it, such as ``"Level Zero"``.
    devices : list of tuple of int and str
        Their handles and names, of those that ONEAPI_DEVICE_SELECTOR selects.
    """

    def __init__(self, adapter: str, handle: int) -> None:
        self.adapter = adapter
        self.handle = handle
        handles = listed("urDeviceGetSelected", handle, release.DEVICE_TYPE_ALL)
        self.devices = [(device, _name(device)) for device in handles]
        self.context = OnFirstUse(self._make_context, "urContextRelease")
        self.registrations = Registrations(self.context, adapter)

    def version(self) -> str:
        """The version of Unified Runtime that it speaks, such as ``"0.12"``."""
        version = ctypes.c_uint32()
        call("urPlatformGetApiVersion", self.handle, ctypes.byref(version))
        return f"{version.value >> 16}.{version.value & 0xFFFF}"

    def _make_context(self) -> int:
        handles = (ctypes.c_void_p * len(self.devices))(*(handle for handle, _ in self.devices))
        return made("urContextCreate", len(self.devices), handles, None)


class Found(NamedTuple):
    """All platforms with a device, every adapter's name, and what went wrong with an adapter while others work."""

    platforms: list[Platform]
    adapters: list[str]
    problems: list[str]


def find_platforms() -> Found:
    """Ask every adapter of the loader, which is initialised. Raises VendorError if none can be asked."""
    found = Found([], [], [])
    for adapter in listed("urAdapterGet"):
        try:
            backend = asked(ctypes.c_int, "urAdapterGetInfo", adapter, release.ADAPTER_INFO_BACKEND).value
            name = release.BACKENDS.get(backend, f"unknown adapter {backend}")
            found.adapters.append(name)
            platforms = [Platform(name, handle) for handle in listed("urPlatformGet", adapter)]
            found.platforms.extend(platform for platform in platforms if platform.devices)
        except VendorError as error:
            found.problems.append(f"an adapter does not work: {error}")
    return found


def _name(device: int) -> str:
    return asked(_Text, "urDeviceGetInfo", device, release.DEVICE_INFO_NAME).value.decode()
