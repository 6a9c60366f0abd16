# SPDX-License-Identifier: Apache-2.0
"""One GPU: `CoarseDevice`, `LimitedDevice` and `MemoryDevice` of `pinning.plugin` on the HSA runtime."""

from __future__ import annotations

import ctypes
from functools import cached_property

from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryKind
from pinning.plugin.native import NativeDevice
from pinning_hsa import abi
from pinning_hsa.abi import Handle
from pinning_hsa.driver import call


class HsaDevice(NativeDevice, AutomaticLocking):
    """A GPU of the runtime's list, native/vendors/hsa/hsa.cpp. `HsaPlugin.device` makes it."""

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    @cached_property
    def description(self) -> str:
        """The product and its instruction set, such as ``"AMD Instinct MI300X (gfx942)"``."""
        product, isa = self._text(abi.AMD_AGENT_INFO_PRODUCT_NAME), self._text(abi.AGENT_INFO_NAME)
        return f"{product} ({isa})" if product else isa

    def lock_limit(self) -> LockLimit | None:
        """None: RLIMIT_MEMLOCK does not bind amdgpu, and its own limit is the machine's and cannot be read."""
        return None

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """HOST and DEVICE. What HSA has of SHARED memory, the runtime does not know by its pointer."""
        return frozenset({MemoryKind.HOST, MemoryKind.DEVICE})

    def connection(self, other: Device) -> MemoryConnection:
        """What the GPU `other` can do with DEVICE memory of this one.

        UNIFIED where it reaches it, and then all that `allocate` gives is open to it. NONE elsewhere: the runtime
        copies through the host.
        """
        if not isinstance(other, HsaDevice):
            return MemoryConnection.NONE
        if other.handle == self.handle:
            return MemoryConnection.UNIFIED
        access = ctypes.c_uint32()
        pool, asked = Handle(self.context), abi.AGENT_POOL_INFO_ACCESS
        call("hsa_amd_agent_memory_pool_get_info", Handle(other.handle), pool, asked, ctypes.byref(access))
        return MemoryConnection.NONE if access.value == abi.ACCESS_NEVER_ALLOWED else MemoryConnection.UNIFIED

    def _text(self, attribute: int) -> str:
        text = ctypes.create_string_buffer(64)
        call("hsa_agent_get_info", Handle(self.handle), attribute, text)
        return text.value.decode(errors="replace")
