# SPDX-License-Identifier: Apache-2.0
"""One GPU: `CoarseDevice`, `LimitedDevice` and `MemoryDevice` of `pinning.plugin` on the HSA runtime."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import weakref

from pinning.errors import AlreadyPinnedError, NotLockedError, PinningError, VendorError
from pinning.plugin import AutomaticLocking, Device, LockLimit, MemoryConnection, MemoryInfo, MemoryKind, PinnedInfo
from pinning_hsa import abi, pointers
from pinning_hsa.abi import Handle
from pinning_hsa.agents import Machine, describe, find_pools, reaches
from pinning_hsa.copying import copy_and_wait
from pinning_hsa.driver import call, loaded
from pinning_hsa.locks import LOCKS, Lock
from pinning_hsa.pointers import PEER_MEMORY, Reached
from pinning_hsa.queue import HsaQueue
from pinning_hsa.work import Worker


class HsaDevice(AutomaticLocking):
    """The GPU `index` of the runtime's list. `HsaPlugin.device` makes it, once the runtime is initialised.

    A lock is for all GPUs: its device pointer is the same on each, as is that of memory that another device of this
    plugin has locked.
    """

    def __init__(self, index: int, machine: Machine) -> None:
        self.name = f"hsa:{index}"
        self._index = index
        self._machine = machine
        self._agent = machine.gpus[index]
        self.description = describe(self._agent)
        self._own_pool = find_pools(self._agent, abi.POOL_COARSE_GRAINED)[0]
        others = (agent for agent in machine.gpus if agent is not self._agent)
        self._peers = tuple(agent for agent in others if reaches(agent, self._own_pool))
        self._workers: weakref.WeakSet[Worker] = weakref.WeakSet()

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
            info = pointers.ask(end)
            if info.type in abi.POINTER_TYPES and pointers.gpu_of(self._machine, info) is None:
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
        found = pointers.range_around(self._machine, ptr)
        if found is None or found.gpu is not None or not 0 <= ptr - found.host < found.size:  # a GPU's address of it
            return None
        return PinnedInfo(found.host, found.size, found.device)

    # ---- memory ----

    @property
    def memory_kinds(self) -> frozenset[MemoryKind]:
        """HOST and DEVICE. What HSA has of SHARED memory, the runtime does not know by its pointer."""
        return frozenset({MemoryKind.HOST, MemoryKind.DEVICE})

    def allocate(self, size: int, kind: MemoryKind = MemoryKind.DEVICE) -> int:
        """`size` bytes, aligned to a page: of the GPU's coarse-grained pool, or of the host's fine-grained one.

        HOST memory is for all GPUs, DEVICE memory for those too that can reach it.

        Raises
        ------
        PinningError
            The kind is SHARED.
        VendorError
            The runtime refused, perhaps for want of memory; nothing is allocated.
        """
        match kind:
            case MemoryKind.HOST:
                pool, users = self._machine.coherent_pool, self._machine.gpus
            case MemoryKind.DEVICE:
                pool, users = self._own_pool, self._peers
            case MemoryKind.SHARED:
                raise PinningError(
                    f"{self.name} has no memory of kind SHARED: use a device of the plugin hip, or HOST memory, "
                    "which GPUs reach over the bus"
                )
        ptr = ctypes.c_void_p()
        call("hsa_amd_memory_pool_allocate", pool, size, 0, ctypes.byref(ptr))
        address = ptr.value or 0
        if users:
            try:
                call("hsa_amd_agents_allow_access", len(users), (Handle * len(users))(*users), None, ptr)
            except BaseException:
                with contextlib.suppress(VendorError):
                    call("hsa_amd_memory_pool_free", ptr)
                raise
            if kind is MemoryKind.DEVICE:
                PEER_MEMORY.add(address)
        return address

    def free(self, ptr: int, kind: MemoryKind = MemoryKind.DEVICE) -> None:
        """Give back what `allocate` returned for this kind. The runtime does not wait for work that uses it.

        Raises
        ------
        VendorError
            The runtime refused; it is still allocated.
        """
        peers = ptr in PEER_MEMORY
        PEER_MEMORY.discard(ptr)  # before somebody else is given the address
        try:
            call("hsa_amd_memory_pool_free", ptr)
        except VendorError:
            if peers:
                PEER_MEMORY.add(ptr)
            raise

    def memory_info(self, ptr: int) -> MemoryInfo | None:
        """The allocation or lock around `ptr`, of anyone in this process as far as the runtime knows, on any GPU."""
        found = pointers.range_around(self._machine, ptr)
        if found is None:
            return None
        if found.gpu is None:
            return MemoryInfo(MemoryKind.HOST, found.host, found.size, None)
        return MemoryInfo(MemoryKind.DEVICE, found.device, found.size, found.gpu)

    def connection(self, other: Device) -> MemoryConnection:
        """What the GPU `other` can do with DEVICE memory of this one.

        UNIFIED where it reaches it, and then all that `allocate` gives is open to it. NONE elsewhere: the runtime
        copies through the host.
        """
        if not isinstance(other, HsaDevice):
            return MemoryConnection.NONE
        users = {self._agent.handle, *(peer.handle for peer in self._peers)}
        return MemoryConnection.UNIFIED if other._agent.handle in users else MemoryConnection.NONE

    def copy(self, dst: int, src: int, size: int) -> None:
        """Copy `size` bytes between host and device in either direction, and wait until it is done.

        A host range that is not locked, or not as a whole, is copied too: the runtime locks it meanwhile.
        """
        to, source = self._reach(dst, size), self._reach(src, size)
        if to and source and (to.is_gpu or source.is_gpu):
            copy_and_wait(to, source, size)
        else:
            call("hsa_memory_copy", dst, src, size)

    # ---- queues ----

    def make_queue(self) -> HsaQueue:
        """A new in-order queue, with a thread of its own.

        Raises
        ------
        VendorError
            There is no thread to be had.
        """
        loaded()
        worker = Worker()
        self._workers.add(worker)
        return HsaQueue(self._machine, self._index, worker)

    def adopt_queue(self, handle: int) -> HsaQueue:
        """Refused: a queue of HSA's runs kernels and no copies, so there is no order to take part in.

        Raises
        ------
        PinningError
            Always.
        """
        raise PinningError(
            f"{self.name} cannot adopt the queue {handle:#x}: HSA's queues run no copies; make one with pinning.Queue, "
            "or adopt a HIP stream on a device of the plugin hip"
        )

    def synchronize(self) -> None:
        """Wait until all work of all queues of this device is over; the runtime does not know of others' copies."""
        loaded()
        for tail in [worker.tail for worker in list(self._workers)]:
            if tail is not None:
                tail.wait()

    def _reach(self, ptr: int, size: int) -> Reached | None:
        return pointers.reach(self._machine, ptr, size, self._index)

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


def _already_pinned(ptr: int, size: int, kind: int) -> AlreadyPinnedError:
    return AlreadyPinnedError(
        "hsa_amd_pointer_info",
        kind,
        abi.POINTER_TYPES[kind],
        f"[{ptr:#x}, {ptr + size:#x}) is pinned already, in whole or in part, and HSA would lock it twice",
    )
