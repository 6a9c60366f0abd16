# SPDX-License-Identifier: Apache-2.0
"""What is known of a pointer: by the plugin of its own locks and allocations, by the runtime of everyone's."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

from pinning_hsa import abi
from pinning_hsa.abi import Handle, PointerInfo
from pinning_hsa.agents import Machine
from pinning_hsa.driver import call, loaded
from pinning_hsa.locks import LOCKS

# Device memory, by its first byte, that all GPUs may use which can. The runtime tells nobody's permissions cheaply.
PEER_MEMORY: set[int] = set()


class Range(NamedTuple):
    """An allocation or a lock: its first byte's address for the host, and for GPUs. `gpu` has it; None: the host."""

    host: int
    device: int
    size: int
    gpu: int | None

    def offset(self, ptr: int) -> int:
        """Where `ptr` is in it, which is either kind of address."""
        return ptr - self.host if 0 <= ptr - self.host < self.size else ptr - self.device


class Reached(NamedTuple):
    """The address by which a GPU reaches bytes, and the agent that they belong to."""

    ptr: int
    agent: Handle
    is_gpu: bool


def ask(ptr: int) -> PointerInfo:
    """What the runtime says."""
    info = PointerInfo(size=ctypes.sizeof(PointerInfo))
    if ptr:  # null is an invalid argument
        call("hsa_amd_pointer_info", ptr, ctypes.byref(info), None, None, None)
    return info


def gpu_of(machine: Machine, info: PointerInfo) -> int | None:
    """Index of the GPU whose memory it is; None where it is none's."""
    owners = [agent.handle for agent in machine.gpus]
    is_gpus = info.type == abi.POINTER_HSA and info.owner.handle in owners
    return owners.index(info.owner.handle) if is_gpus else None


def range_around(machine: Machine, ptr: int) -> Range | None:
    """What holds the byte at `ptr`, which is the host's address or a GPU's."""
    loaded()
    lock = LOCKS.info(ptr)
    if lock:
        return Range(lock.base, lock.device_ptr, lock.size, None)
    info = ask(ptr)
    if info.type not in abi.POINTER_TYPES:
        return None
    return Range(info.host_base, info.agent_base, info.size_in_bytes, gpu_of(machine, info))


def reach(machine: Machine, ptr: int, size: int, gpu: int) -> Reached | None:
    """How the engines of a GPU reach these bytes; None where they do not, or not all of them."""
    found = range_around(machine, ptr)
    if found is None or found.offset(ptr) + size > found.size:
        return None
    if found.gpu is None:
        return Reached(found.device + found.offset(ptr), machine.cpu, False)
    if found.gpu != gpu and found.device not in PEER_MEMORY:
        return None
    return Reached(ptr, machine.gpus[found.gpu], True)
