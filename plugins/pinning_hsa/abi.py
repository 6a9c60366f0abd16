# SPDX-License-Identifier: Apache-2.0
"""The part of hsa.h and hsa_ext_amd.h that the plugin calls; native code calls the rest."""

from __future__ import annotations

from ctypes import Structure, c_int, c_uint64, c_void_p

SUCCESS = 0

SYSTEM_INFO_VERSION_MAJOR = 0
SYSTEM_INFO_VERSION_MINOR = 1

AGENT_INFO_NAME = 0
AMD_AGENT_INFO_PRODUCT_NAME = 0xA009

ACCESS_NEVER_ALLOWED = 0
AGENT_POOL_INFO_ACCESS = 0


class Handle(Structure):
    """hsa_agent_t and hsa_amd_memory_pool_t, which are alike."""

    _fields_ = [("handle", c_uint64)]


# What each function takes; all return a status.
PROTOTYPES = {
    "hsa_status_string": [c_int, c_void_p],
    "hsa_system_get_info": [c_int, c_void_p],
    "hsa_agent_get_info": [Handle, c_int, c_void_p],
    "hsa_amd_agent_memory_pool_get_info": [Handle, Handle, c_int, c_void_p],
}
