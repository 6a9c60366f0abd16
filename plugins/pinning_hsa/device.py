# SPDX-License-Identifier: Apache-2.0
"""One GPU: `CoarseDevice`, `LimitedDevice` and `CopyDevice` of `pinning.plugin` on the HSA runtime."""

from __future__ import annotations

import contextlib
import ctypes
import sys

from pinning.errors import AlreadyPinnedError, NotLockedError, VendorError
from pinning.plugin import AutomaticLocking, LockLimit, PinnedInfo
from pinning_hsa import abi
from pinning_hsa.abi import Handle, PointerInfo
from pinning_hsa.agents import Machine, describe, find_pools
from pinning_hsa.copying import copy_asynchronously
from pinning_hsa.driver import call, loaded
from pinning_hsa.locks import LOCKS, Lock


class HsaDevice(AutomaticLocking):
    """The GPU `index` of the runtime's list. `HsaPlugin.device` makes it, once the runtime is initialised.

    A lock is for all GPUs: its device pointer is the same on each, as is that of memory that another device of this
    plugin has locked.
    """

    def __init__(self, index: int, machine: Machine) -> None:
        self.name = f"hsa:{index}"
        self._machine = machine
        self._agent = machine.gpus[index]
        self.description = describe(self._agent)
        self._own_pool = find_pools(self._agent, abi.POOL_COARSE_GRAINED)[0]

    def __repr__(self) -> str:
        return f"<{self.name} {self.description}>"

    # ---- locking ----

    @property
    def coherence(self) -> frozenset[bool]:
        """Both: memory is locked fine-grained, or, where asked, coarse-grained."""
        return frozenset({True, False})

    @property
    def largest_lock(self) -> int:
        """Bytes that one `data_lock` can take: the runtime knows no limit."""
        return sys.maxsize

    def lock_limit(self) -> LockLimit | None:
        """None: RLIMIT_MEMLOCK does not bind amdgpu, and its own limit is the machine's and cannot be read."""
        return None

    def data_lock(self, ptr: int, size: int, read_only: bool | None, coherent: bool = True) -> int:
        """Lock ``[ptr, ptr + size)`` for all GPUs and return the pointer by which they reach it.

        Parameters
        ----------
        ptr, size : int
            A host range in bytes, of any alignment.
        read_only : bool or None
            Ignored: the runtime locks for reading and writing only.
        coherent : bool
            True: fine-grained, by ``hsa_amd_memory_lock_to_pool`` to the host's fine-grained pool. False:
            coarse-grained, as ``hsa_amd_memory_lock`` always does.

        Raises
        ------
        AlreadyPinnedError
            Someone else has pinned the first or the last byte, or another device of this plugin any byte.
        VendorError
            The runtime refused; nothing is locked.
        """
        for end in (ptr, ptr + size - 1):
            if (info := _pointer_info(end)).type in abi.POINTER_TYPES and not self._is_device_memory(info):
                raise _already_pinned(ptr, size, info.type)
        lock = Lock(ptr, size)
        try:
            if not LOCKS.enter(lock):
                raise _already_pinned(ptr, size, abi.POINTER_LOCKED)
            lock.device_ptr = self._lock(ptr, size, coherent)
            return lock.device_ptr
        except VendorError:
            LOCKS.leave(lock)
            raise
        except BaseException:
            # Ctrl-C during a long lock is raised here once the runtime has returned, its result lost.
            with contextlib.suppress(VendorError):
                call("hsa_amd_memory_unlock", ptr)
            LOCKS.leave(lock)
            raise

    def data_unlock(self, ptr: int) -> None:
        """Unlock the range that starts at host address `ptr`.

        Raises
        ------
        NotLockedError
            This plugin has locked no such range; the runtime would say nothing.
        VendorError
            The runtime refused; it is still locked.
        """
        loaded()
        lock = LOCKS.around(ptr)
        if lock is None or lock.base != ptr:
            raise NotLockedError(f"no range that starts at {ptr:#x} is locked on {self.name}")
        call("hsa_amd_memory_unlock", ptr)
        LOCKS.leave(lock)

    def is_pinned_ptr(self, ptr: int) -> PinnedInfo | None:
        """The pinned host range around `ptr`: locked by this plugin, or by anyone else as far as the runtime knows.

        Where the kernel driver supports shared virtual memory (from the GPUs of the Vega generation on), the runtime
        knows what it has allocated itself, but not what others have locked.
        """
        loaded()
        if info := LOCKS.info(ptr):
            return info
        found = _pointer_info(ptr)
        if found.type not in abi.POINTER_TYPES or self._is_device_memory(found):
            return None
        if not 0 <= ptr - found.host_base < found.size_in_bytes:  # `ptr` is a GPU's address of it
            return None
        return PinnedInfo(found.host_base, found.size_in_bytes, found.agent_base)

    # ---- memory of its own ----

    def allocate(self, size: int) -> int:
        """`size` bytes of device memory."""
        ptr = ctypes.c_void_p()
        call("hsa_amd_memory_pool_allocate", self._own_pool, size, 0, ctypes.byref(ptr))
        return ptr.value or 0

    def free(self, ptr: int) -> None:
        """Give back what `allocate` returned."""
        call("hsa_amd_memory_pool_free", ptr)

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done.

        A host range that is not locked, or not as a whole, is copied too: the runtime locks it meanwhile.
        """
        to, source = self._reach(dst, size), self._reach(src, size)
        if to and source:
            copy_asynchronously(to, source, size)
        else:
            call("hsa_memory_copy", dst, src, size)

    def _reach(self, ptr: int, size: int) -> tuple[int, Handle] | None:
        """The address by which a GPU reaches these bytes, and the agent that they belong to; None: not at all."""
        info = self.is_pinned_ptr(ptr)
        if info is None:
            return (ptr, self._agent) if self._is_device_memory(_pointer_info(ptr)) else None
        if ptr + size > info.base + info.size:
            return None
        return info.device_ptr + (ptr - info.base), self._machine.cpu

    def _is_device_memory(self, info: PointerInfo) -> bool:
        owners = {agent.handle for agent in self._machine.gpus}
        return bool(info.type == abi.POINTER_HSA and info.owner.handle in owners)

    def _lock(self, ptr: int, size: int, coherent: bool) -> int:
        gpus = self._machine.gpus
        agents = (Handle * len(gpus))(*gpus)
        agent_ptr = ctypes.c_void_p()
        out = ctypes.byref(agent_ptr)
        try:
            if coherent:
                pool = self._machine.coherent_pool
                call("hsa_amd_memory_lock_to_pool", ptr, size, agents, len(gpus), pool, 0, out)
            else:
                call("hsa_amd_memory_lock", ptr, size, agents, len(gpus), out)
        except VendorError as error:
            if error.code == abi.ERROR:
                advice = (
                    "some of the memory is not mapped, may not be written, or is of the runtime's own allocation: map "
                    "files private and writable (mmap.ACCESS_COPY, numpy's mode 'c')"
                )
                raise VendorError(error.call, error.code, error.name, advice) from None
            raise
        return agent_ptr.value or 0


def _pointer_info(ptr: int) -> PointerInfo:
    info = PointerInfo(size=ctypes.sizeof(PointerInfo))
    if ptr:  # null is an invalid argument
        call("hsa_amd_pointer_info", ptr, ctypes.byref(info), None, None, None)
    return info


def _already_pinned(ptr: int, size: int, kind: int) -> AlreadyPinnedError:
    return AlreadyPinnedError(
        "hsa_amd_pointer_info",
        kind,
        abi.POINTER_TYPES[kind],
        f"[{ptr:#x}, {ptr + size:#x}) is pinned already, in whole or in part, and HSA would lock it twice",
    )
