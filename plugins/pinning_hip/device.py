# SPDX-License-Identifier: Apache-2.0
"""One GPU: what pinning's native code does not know of it, on the HIP runtime."""

from __future__ import annotations

import contextlib
from functools import cached_property

from pinning.errors import VendorError
from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryKind
from pinning.plugin.native import NativeDevice
from pinning_hip.driver import PEER_ACCESS_ALREADY_ENABLED, call, constant


class HipDevice(NativeDevice, AutomaticLocking):
    """The GPU `index` of the runtime's list, whose name is `name`. `HipPlugin.device` makes it."""

    def __init__(self, name: str, index: int) -> None:
        self._index = index
        (description,) = call("hipDeviceGetName", 256, index)
        self.description = bytes(description).split(b"\0")[0].decode()
        self._memory_kinds: frozenset[MemoryKind] = frozenset()  # until somebody asks

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    def lock_limit(self) -> LockLimit | None:
        """None: the kernel driver does not count what it locks as locked memory, so RLIMIT_MEMLOCK does not bind it.

        It has a limit of its own, for all processes together, which is nearly all of the machine's memory and is not
        told to anyone; the parameter ``no_system_mem_limit`` of the module amdgpu lifts it.
        """
        return None

    @cached_property
    def pci_address(self) -> str | None:
        """Where the GPU is on the PCI bus."""
        try:
            numbers = [
                call("hipDeviceGetAttribute", constant("hipDeviceAttribute_t", name), self._index)[0]
                for name in (
                    "hipDeviceAttributePciDomainID",
                    "hipDeviceAttributePciBusId",
                    "hipDeviceAttributePciDeviceId",
                )
            ]
        except VendorError:
            return None
        return "{:04x}:{:02x}:{:02x}.0".format(*numbers)

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """HOST and DEVICE, and SHARED (managed memory) where the GPU has it."""
        if not self._memory_kinds:
            asked = constant("hipDeviceAttribute_t", "hipDeviceAttributeManagedMemory")
            (managed,) = call("hipDeviceGetAttribute", asked, self._index)
            shared = {MemoryKind.SHARED} if managed else set()
            self._memory_kinds = frozenset({MemoryKind.HOST, MemoryKind.DEVICE} | shared)
        return self._memory_kinds

    def connection(self, other: Device) -> MemoryConnection:
        """What the GPU `other` can do with DEVICE memory of this one.

        Where `other` can reach it directly, that is enabled for all memory of this GPU, as it must be before use
        (hipDeviceEnablePeerAccess), and stays so; libraries do the same. Otherwise the runtime copies between any two.
        """
        if not isinstance(other, HipDevice):
            return MemoryConnection.NONE
        if other._index == self._index:
            return MemoryConnection.UNIFIED
        (reaches,) = call("hipDeviceCanAccessPeer", other._index, self._index)
        if not reaches:
            return MemoryConnection.MIGRATABLE
        (before,) = call("hipGetDevice")
        call("hipSetDevice", other._index)
        try:
            call("hipDeviceEnablePeerAccess", self._index, 0)
        except VendorError as error:
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise
        finally:
            # That it fails must not undo what was done here, and nothing else brings the thread's device back.
            with contextlib.suppress(VendorError):
                call("hipSetDevice", before)
        return MemoryConnection.UNIFIED
