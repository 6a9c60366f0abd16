# SPDX-License-Identifier: Apache-2.0
"""What the runtime finds in the machine: CPU and GPU agents, and their memory pools."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import NamedTuple

from pinning.errors import PluginUnavailableError
from pinning_hsa import abi
from pinning_hsa.abi import Handle
from pinning_hsa.driver import call


class Machine(NamedTuple):
    """The agents of all devices, and the host's pool to which memory is locked so that it is coherent."""

    cpu: Handle
    gpus: tuple[Handle, ...]
    coherent_pool: Handle


def find_machine() -> Machine:
    """Ask the runtime for its agents.

    Raises
    ------
    PluginUnavailableError
        There is no GPU.
    """
    agents = _visited(lambda visitor: call("hsa_iterate_agents", visitor, None))
    types = [_number("hsa_agent_get_info", agent, abi.AGENT_INFO_DEVICE) for agent in agents]
    gpus = tuple(agent for agent, kind in zip(agents, types, strict=True) if kind == abi.DEVICE_TYPE_GPU)
    if not gpus:
        raise PluginUnavailableError(
            "the HSA runtime finds no AMD GPU: compare `rocminfo` with the variable ROCR_VISIBLE_DEVICES"
        )
    cpu = agents[types.index(abi.DEVICE_TYPE_CPU)]
    fine = find_pools(cpu, abi.POOL_FINE_GRAINED)
    return Machine(cpu, gpus, fine[0])


def find_pools(agent: Handle, grain: int) -> list[Handle]:
    """The agent's pools of this grain from which memory may be allocated; those for kernel arguments last."""
    found = []
    for pool in _visited(lambda visitor: call("hsa_amd_agent_iterate_memory_pools", agent, visitor, None)):
        if _pool_info(pool, abi.POOL_INFO_ALLOC_ALLOWED):  # of pools in the global segment only, which alone have flags
            flags = _pool_info(pool, abi.POOL_INFO_GLOBAL_FLAGS)
            if flags & grain:
                found.append((flags & abi.POOL_KERNARG, pool))
    return [pool for _, pool in sorted(found, key=lambda each: each[0])]


def reaches(agent: Handle, pool: Handle) -> bool:
    """Whether the agent can use memory of this pool, once that is allowed."""
    access = ctypes.c_uint32()
    call("hsa_amd_agent_memory_pool_get_info", agent, pool, abi.AGENT_POOL_INFO_ACCESS, ctypes.byref(access))
    return access.value != abi.ACCESS_NEVER_ALLOWED


def describe(agent: Handle) -> str:
    """The product and its instruction set, such as ``"AMD Instinct MI300X (gfx942)"``."""
    product, isa = (_text(agent, attribute) for attribute in (abi.AMD_AGENT_INFO_PRODUCT_NAME, abi.AGENT_INFO_NAME))
    return f"{product} ({isa})" if product else isa


def _visited(iterate: Callable[[object], None]) -> list[Handle]:
    found = []

    def visit(handle: Handle, _data: object) -> int:
        found.append(Handle(handle.handle))
        return abi.SUCCESS

    iterate(abi.Visitor(visit))
    return found


def _pool_info(pool: Handle, attribute: int) -> int:
    return _number("hsa_amd_memory_pool_get_info", pool, attribute)


def _number(function: str, handle: Handle, attribute: int) -> int:
    value = ctypes.c_uint32()  # the largest of the types asked for; a bool fills its first byte
    call(function, handle, attribute, ctypes.byref(value))
    return value.value


def _text(agent: Handle, attribute: int) -> str:
    text = ctypes.create_string_buffer(64)
    call("hsa_agent_get_info", agent, attribute, text)
    return text.value.decode(errors="replace")
