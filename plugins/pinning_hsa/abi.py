# SPDX-License-Identifier: Apache-2.0
"""The part of hsa.h and hsa_ext_amd.h that the plugin calls: structures, constants, prototypes."""

from __future__ import annotations

from ctypes import CFUNCTYPE, POINTER, Structure, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any, NamedTuple

SUCCESS = 0
ERROR = 0x1000
OUT_OF_RESOURCES = 0x1008

SYSTEM_INFO_VERSION_MAJOR = 0
SYSTEM_INFO_VERSION_MINOR = 1

AGENT_INFO_NAME = 0
AGENT_INFO_DEVICE = 17
AMD_AGENT_INFO_PRODUCT_NAME = 0xA009
DEVICE_TYPE_CPU = 0
DEVICE_TYPE_GPU = 1

POOL_INFO_GLOBAL_FLAGS = 1
POOL_INFO_ALLOC_ALLOWED = 5
POOL_KERNARG = 1
POOL_FINE_GRAINED = 2
POOL_COARSE_GRAINED = 4

ACCESS_NEVER_ALLOWED = 0
AGENT_POOL_INFO_ACCESS = 0

POINTER_TYPES = {1: "HSA_EXT_POINTER_TYPE_HSA", 2: "HSA_EXT_POINTER_TYPE_LOCKED"}
POINTER_HSA = 1
POINTER_LOCKED = 2

SIGNAL_CONDITION_LT = 2
WAIT_STATE_BLOCKED = 0
FOREVER = (1 << 64) - 1


class Handle(Structure):
    """hsa_agent_t, hsa_amd_memory_pool_t and hsa_signal_t, which are alike."""

    _fields_ = [("handle", c_uint64)]


class PointerInfo(Structure):
    """hsa_amd_pointer_info_t, which only grows within a major version; the runtime fills in no more than `size`."""

    _fields_ = [
        ("size", c_uint32),
        ("type", c_int),
        ("agent_base", c_uint64),
        ("host_base", c_uint64),
        ("size_in_bytes", c_size_t),
        ("user_data", c_uint64),
        ("owner", Handle),
        ("global_flags", c_uint32),
    ]


class PitchedPointer(Structure):
    """hsa_pitched_ptr_t: bytes from row to row, and from layer to layer."""

    _fields_ = [("base", c_uint64), ("pitch", c_size_t), ("slice", c_size_t)]


class Dim3(Structure):
    """hsa_dim3_t."""

    _fields_ = [("x", c_uint32), ("y", c_uint32), ("z", c_uint32)]


Visitor = CFUNCTYPE(c_int, Handle, c_void_p)


class Prototype(NamedTuple):
    """What a function returns and takes. None: it returns nothing."""

    result: Any
    arguments: list[Any]


def _status(*arguments: Any) -> Prototype:
    return Prototype(c_int, list(arguments))


PROTOTYPES = {
    "hsa_init": _status(),
    "hsa_status_string": _status(c_int, c_void_p),
    "hsa_system_get_info": _status(c_int, c_void_p),
    "hsa_iterate_agents": _status(Visitor, c_void_p),
    "hsa_agent_get_info": _status(Handle, c_int, c_void_p),
    "hsa_amd_agent_iterate_memory_pools": _status(Handle, Visitor, c_void_p),
    "hsa_amd_memory_pool_get_info": _status(Handle, c_int, c_void_p),
    "hsa_amd_memory_pool_allocate": _status(Handle, c_size_t, c_uint32, c_void_p),
    "hsa_amd_memory_pool_free": _status(c_void_p),
    "hsa_amd_memory_lock": _status(c_void_p, c_size_t, POINTER(Handle), c_int, c_void_p),
    "hsa_amd_memory_lock_to_pool": _status(c_void_p, c_size_t, POINTER(Handle), c_int, Handle, c_uint32, c_void_p),
    "hsa_amd_memory_unlock": _status(c_void_p),
    "hsa_amd_pointer_info": _status(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
    "hsa_amd_agent_memory_pool_get_info": _status(Handle, Handle, c_int, c_void_p),
    "hsa_amd_agents_allow_access": _status(c_uint32, POINTER(Handle), c_void_p, c_void_p),
    "hsa_amd_memory_fill": _status(c_void_p, c_uint32, c_size_t),
    "hsa_memory_copy": _status(c_void_p, c_void_p, c_size_t),
    "hsa_amd_memory_async_copy": _status(c_void_p, Handle, c_void_p, Handle, c_size_t, c_uint32, c_void_p, Handle),
    "hsa_amd_memory_async_copy_rect": _status(
        *(c_void_p, c_void_p, c_void_p, c_void_p, c_void_p),
        *(Handle, c_int, c_uint32, c_void_p, Handle),
    ),
    "hsa_signal_create": _status(c_int64, c_uint32, c_void_p, c_void_p),
    "hsa_signal_destroy": _status(Handle),
    "hsa_signal_load_scacquire": Prototype(c_int64, [Handle]),
    "hsa_signal_store_screlease": Prototype(None, [Handle, c_int64]),
    "hsa_signal_subtract_screlease": Prototype(None, [Handle, c_int64]),
    "hsa_signal_wait_scacquire": Prototype(c_int64, [Handle, c_int, c_int64, c_uint64, c_int]),
}
