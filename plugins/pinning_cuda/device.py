# SPDX-License-Identifier: Apache-2.0
"""One GPU: what pinning's native code does not know of it, on the CUDA driver."""

from __future__ import annotations

import contextlib
from functools import cached_property

from pinning.errors import VendorError
from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryKind
from pinning.plugin.native import NativeDevice
from pinning_cuda.driver import PEER_ACCESS_ALREADY_ENABLED, TOO_MANY_PEERS, call, device_attribute, peer_attribute


class CudaDevice(NativeDevice, AutomaticLocking):
    """The GPU `index` of the driver's list, whose name is `name`. `CudaPlugin.device` makes it."""

    def __init__(self, name: str, index: int) -> None:
        (self._handle,) = call("cuDeviceGet", index)
        (description,) = call("cuDeviceGetName", 256, self._handle)
        self.description: str = description.split(b"\0")[0].decode()
        (managed,) = call("cuDeviceGetAttribute", device_attribute("MANAGED_MEMORY"), self._handle)
        shared = {MemoryKind.SHARED} if managed else set()
        self._memory_kinds = frozenset({MemoryKind.HOST, MemoryKind.DEVICE} | shared)

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    def lock_limit(self) -> LockLimit | None:
        """None: RLIMIT_MEMLOCK does not bind the NVIDIA driver, and it has no limit of its own."""
        return None

    @cached_property
    def pci_address(self) -> str | None:
        """Where the GPU is on the PCI bus."""
        try:
            numbers = [
                call("cuDeviceGetAttribute", device_attribute(name), self._handle)[0]
                for name in ("PCI_DOMAIN_ID", "PCI_BUS_ID", "PCI_DEVICE_ID")
            ]
        except VendorError:
            return None
        return "{:04x}:{:02x}:{:02x}.0".format(*numbers)

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """HOST and DEVICE, and SHARED (managed memory) where the GPU has it."""
        return self._memory_kinds

    def connection(self, other: Device) -> MemoryConnection:
        """What the GPU `other` can do with DEVICE memory of this one.

        Where `other` can reach it directly, that is enabled for all memory of this GPU, as it must be before use
        (cuCtxEnablePeerAccess), and stays so; libraries do the same. Otherwise the driver copies between any two GPUs.
        """
        if not isinstance(other, CudaDevice):
            return MemoryConnection.NONE
        if other.name == self.name:
            return MemoryConnection.UNIFIED
        (reaches,) = call("cuDeviceCanAccessPeer", other._handle, self._handle)
        if not reaches:
            return MemoryConnection.MIGRATABLE
        ours = self._context
        call("cuCtxPushCurrent", other._context)
        try:
            call("cuCtxEnablePeerAccess", ours, 0)
        except VendorError as error:
            if error.code == TOO_MANY_PEERS:
                return MemoryConnection.MIGRATABLE
            if error.code != PEER_ACCESS_ALREADY_ENABLED:
                raise
        finally:
            # Its code may be that of someone's earlier asynchronous work.
            with contextlib.suppress(VendorError):
                call("cuCtxPopCurrent")
        return MemoryConnection.UNIFIED

    def link_to(self, other: Device) -> str | None:
        """NVLink, where the two reach each other's memory with atomic operations: over PCIe GPUs have none."""
        if not isinstance(other, CudaDevice) or other.name == self.name:
            return None
        try:
            (atomic,) = call(
                "cuDeviceGetP2PAttribute", peer_attribute("NATIVE_ATOMIC_SUPPORTED"), self._handle, other._handle
            )
        except VendorError:
            return None
        return "NVLink" if atomic else None

    @cached_property
    def _context(self) -> object:
        # The primary one, which every library uses. Never released: with it the access of others would end.
        (context,) = call("cuDevicePrimaryCtxRetain", self._handle)
        return context
