# SPDX-License-Identifier: Apache-2.0
"""The parts of ur_api.h that the plugin calls; native code calls the rest."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any

INVALID_OPERATION = 1
UNSUPPORTED_FEATURE = 44

ADAPTER_INFO_BACKEND, PLATFORM_INFO_BACKEND = 0, 6
BACKENDS = {1: "Level Zero", 2: "OpenCL", 3: "CUDA", 4: "HIP", 5: "Native CPU", 0x100: "Offload"}
DEVICE_INFO_PLATFORM, DEVICE_INFO_NAME = 63, 66
DEVICE_INFO_USM_HOST, DEVICE_INFO_USM_DEVICE, DEVICE_INFO_USM_SHARED = 83, 84, 85

PEER_ACCESS = 0

REGISTER, IMPORT = "urUSMHostAllocRegisterExp", "urUSMImportExp"
# What undoes each way to lock host memory. The first came with 2026.2; loaders before do not export it.
WAYS_TO_UNLOCK = ("urUSMHostAllocUnregisterExp", "urUSMReleaseExp")

_INFO = (c_void_p, c_int, c_size_t, c_void_p, c_void_p)
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "urPrintResult": (c_int, c_char_p, c_size_t, c_void_p),
    "urAdapterGet": (c_uint32, c_void_p, c_void_p),
    "urAdapterGetInfo": _INFO,
    "urPlatformGetInfo": _INFO,
    "urPlatformGetApiVersion": (c_void_p, c_void_p),
    "urDeviceGetInfo": _INFO,
    "urUsmP2PPeerAccessGetInfoExp": (c_void_p, *_INFO),
    "urUsmP2PEnablePeerAccessExp": (c_void_p, c_void_p),
    REGISTER: (c_void_p, c_void_p, c_size_t, c_void_p),
    "urUSMHostAllocUnregisterExp": (c_void_p, c_void_p),
    "urUSMReleaseExp": (c_void_p, c_void_p),
}


def declare(library: ctypes.CDLL) -> dict[str, Callable[..., int]]:
    """The functions that this loader has, each with its C prototype."""
    functions = {}
    for name, arguments in PROTOTYPES.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
            functions[name] = function
    return functions
