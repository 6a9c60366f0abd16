# SPDX-License-Identifier: Apache-2.0
"""One device: `AutomaticLocking` and `MemoryDevice` of `pinning.plugin` on Unified Runtime."""

from __future__ import annotations

import ctypes
import mmap
from functools import cached_property

from pinning.errors import VendorError
from pinning.plugin import AutomaticLocking, Device, MemoryConnection, MemoryKind
from pinning.plugin.native import NativeDevice
from pinning_ur import release
from pinning_ur.loader import asked, call, exports

_Text = ctypes.c_char * 256

_SUPPORT = {
    MemoryKind.HOST: release.DEVICE_INFO_USM_HOST,
    MemoryKind.DEVICE: release.DEVICE_INFO_USM_DEVICE,
    MemoryKind.SHARED: release.DEVICE_INFO_USM_SHARED,
}
_ACCESS = 0x1


class UrDevice(NativeDevice, AutomaticLocking):
    """A device of a platform, native/vendors/ur/ur.cpp. `UrPlugin.device` makes it, once the loader is loaded.

    Its `context`, in which memory is locked and allocated, is that of all devices of its platform.
    """

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    @cached_property
    def description(self) -> str:
        """Its name and its adapter's, such as ``"Intel(R) Data Center GPU Max 1550 (Level Zero)"``."""
        name = asked(_Text, "urDeviceGetInfo", self.handle, release.DEVICE_INFO_NAME).value.decode()
        return f"{name} ({self.adapter})"

    @cached_property
    def adapter(self) -> str:
        """The adapter that drives it, such as ``"Level Zero"``."""
        return backend_name(
            asked(ctypes.c_int, "urPlatformGetInfo", self.platform, release.PLATFORM_INFO_BACKEND).value
        )

    @property
    def platform(self) -> int:
        """Its ``ur_platform_handle_t``."""
        return asked(ctypes.c_void_p, "urDeviceGetInfo", self.handle, release.DEVICE_INFO_PLATFORM).value or 0

    @cached_property
    def can_lock(self) -> bool:
        """Whether its adapter can lock host memory, of which no call but such a call tells.

        It is asked to unregister a page that nobody has registered, which is wrong where it can, and unsupported where
        it cannot.
        """
        page = mmap.mmap(-1, mmap.PAGESIZE)
        address = ctypes.addressof(ctypes.c_char.from_buffer(page))
        return any(self._supports(unlock, address) for unlock in release.WAYS_TO_UNLOCK)

    @cached_property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """Those that the device can reach: all three, for most."""
        return frozenset(
            kind
            for kind, support in _SUPPORT.items()
            if asked(ctypes.c_uint32, "urDeviceGetInfo", self.handle, support).value & _ACCESS
        )

    def connection(self, other: Device) -> MemoryConnection:
        """What the device `other` can do with DEVICE memory of this one.

        Where `other` can reach it directly, that is enabled for all memory of this device, and stays so. Otherwise
        copies go through the host: of two devices that cannot, no adapter promises more.
        """
        if not isinstance(other, UrDevice) or other.context != self.context:
            return MemoryConnection.NONE
        if other.handle == self.handle:
            return MemoryConnection.UNIFIED
        try:
            pair = other.handle, self.handle
            if not asked(ctypes.c_int, "urUsmP2PPeerAccessGetInfoExp", *pair, release.PEER_ACCESS).value:
                return MemoryConnection.NONE
            call("urUsmP2PEnablePeerAccessExp", *pair)
        except VendorError as error:
            if error.code == release.UNSUPPORTED_FEATURE:
                return MemoryConnection.NONE
            if error.code != release.INVALID_OPERATION:  # how some say that it is enabled already
                raise
        return MemoryConnection.UNIFIED

    def _supports(self, unlock: str, address: int) -> bool:
        if not exports(unlock):
            return False
        try:
            call(unlock, self.context, address)
        except VendorError as error:
            return error.code != release.UNSUPPORTED_FEATURE
        return True


def backend_name(backend: int) -> str:
    """What an adapter is called, such as ``"Level Zero"``."""
    return release.BACKENDS.get(backend, f"unknown adapter {backend}")
