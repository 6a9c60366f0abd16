# SPDX-License-Identifier: Apache-2.0
"""The parts of ur_api.h that are called, and all that differs between its releases.

Checked against the headers of intel-sycl-rt 2025.0 to 2026.2, and run on the loaders of 2025.2, 2025.3, 2026.1 and
2026.2. A loader does not tell its release: 2025.2 and 2025.3 both call themselves 0.12 and take different arguments.
What tells them apart is which functions they export.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import c_bool, c_char_p, c_int, c_size_t, c_uint32, c_void_p
from typing import Any

INVALID_OPERATION = 1
UNSUPPORTED_FEATURE = 44
INVALID_ENUMERATION, UNSUPPORTED_ENUMERATION = 53, 54
OVERLAPPING_REGIONS = 62

ADAPTER_INFO_BACKEND = 0
BACKENDS = {1: "Level Zero", 2: "OpenCL", 3: "CUDA", 4: "HIP", 5: "Native CPU", 0x100: "Offload"}
DEVICE_TYPE_ALL = 2
DEVICE_INFO_NAME = 66
DEVICE_INFO_USM_HOST, DEVICE_INFO_USM_DEVICE, DEVICE_INFO_USM_SHARED = 83, 84, 85
DEVICE_INFO_HOST_TASK = 0x9000
ALLOC_INFO_TYPE, ALLOC_INFO_BASE, ALLOC_INFO_SIZE, ALLOC_INFO_DEVICE = 0, 1, 2, 3
USM_HOST = 1
USM_DEVICE = 2
USM_OF_A_DEVICE = {USM_DEVICE: "device memory", 3: "memory shared with a device"}

PEER_ACCESS = 0

QUEUE_INFO_CONTEXT, QUEUE_INFO_DEVICE, QUEUE_INFO_FLAGS, QUEUE_INFO_EMPTY = 0, 1, 3, 6
QUEUE_OUT_OF_ORDER = 0x1
EVENT_INFO_STATUS = 3
EVENT_COMPLETE, EVENT_PENDING = 0, (1, 2, 3)
PROFILING_INFO_END = 3

REGISTER, IMPORT = "urUSMHostAllocRegisterExp", "urUSMImportExp"
# How host memory is locked and unlocked, the better way first: registering came with 2026.2 and reports failures, an
# import may do nothing and report success.
WAYS_TO_LOCK = ((REGISTER, "urUSMHostAllocUnregisterExp"), (IMPORT, "urUSMReleaseExp"))
HOST_TASK = "urEnqueueHostTaskExp"
RECENT = (*WAYS_TO_LOCK[0], HOST_TASK)  # a loader without these is good enough


class Properties(ctypes.Structure):
    """``ur_queue_properties_t`` and ``ur_exp_usm_host_alloc_register_properties_t``."""

    _fields_ = (("stype", c_int), ("next", c_void_p), ("flags", c_uint32))


READ_ONLY = Properties(0x7000, None, 1)
PROFILING_QUEUE = Properties(14, None, 0x2)  # in order, and with the time of events

_INFO = (c_void_p, c_int, c_size_t, c_void_p, c_void_p)
_LIST = (c_uint32, c_void_p, c_void_p)
_EVENTS = (c_uint32, c_void_p, c_void_p)  # how many to wait for, which, and where to put the operation's own
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "urLoaderInit": (c_uint32, c_void_p),
    "urPrintResult": (c_int, c_char_p, c_size_t, c_void_p),
    "urAdapterGet": _LIST,
    "urAdapterGetInfo": _INFO,
    "urPlatformGet": (c_void_p, *_LIST),
    "urPlatformGetApiVersion": (c_void_p, c_void_p),
    "urDeviceGetSelected": (c_void_p, c_int, *_LIST),
    "urDeviceGetInfo": _INFO,
    "urContextCreate": (c_uint32, c_void_p, c_void_p, c_void_p),
    "urContextRelease": (c_void_p,),
    "urQueueCreate": (c_void_p, c_void_p, c_void_p, c_void_p),
    "urQueueRelease": (c_void_p,),
    "urQueueGetInfo": _INFO,
    "urQueueFinish": (c_void_p,),
    "urEventGetInfo": _INFO,
    "urEventGetProfilingInfo": _INFO,
    "urEventWait": (c_uint32, c_void_p),
    "urEventRelease": (c_void_p,),
    "urEnqueueEventsWait": (c_void_p, *_EVENTS),
    "urEnqueueEventsWaitWithBarrier": (c_void_p, *_EVENTS),
    "urEnqueueHostTaskExp": (c_void_p, c_void_p, c_void_p, c_void_p, *_EVENTS),
    "urUsmP2PPeerAccessGetInfoExp": (c_void_p, *_INFO),
    "urUsmP2PEnablePeerAccessExp": (c_void_p, c_void_p),
    "urUSMHostAlloc": (c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "urUSMSharedAlloc": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "urUSMDeviceAlloc": (c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p),
    "urUSMFree": (c_void_p, c_void_p),
    "urUSMGetMemAllocInfo": (c_void_p, *_INFO),
    "urUSMHostAllocRegisterExp": (c_void_p, c_void_p, c_size_t, c_void_p),
    "urUSMHostAllocUnregisterExp": (c_void_p, c_void_p),
    "urUSMImportExp": (c_void_p, c_void_p, c_size_t),
    "urUSMReleaseExp": (c_void_p, c_void_p),
    "urEnqueueUSMMemcpy": (c_void_p, c_bool, c_void_p, c_void_p, c_size_t, *_EVENTS),
    "urEnqueueUSMMemcpy2D": (c_void_p, c_bool, c_void_p, c_size_t, c_void_p, c_size_t, c_size_t, c_size_t, *_EVENTS),
    "urEnqueueUSMFill": (c_void_p, c_void_p, c_size_t, c_void_p, c_size_t, *_EVENTS),
}


def declare(library: ctypes.CDLL) -> dict[str, Callable[..., int]]:
    """The functions that this loader has, each with its C prototype in this release."""
    functions = {}
    for name, arguments in PROTOTYPES.items():
        if hasattr(library, name):
            function = getattr(library, name)
            function.argtypes, function.restype = arguments, c_int
            functions[name] = function
    if hasattr(library, "urGetGlobalProcAddrTable"):  # 2025.2 and before
        functions["urPlatformGet"] = _of_several_adapters(functions["urPlatformGet"])
    return functions


def _of_several_adapters(function: Any) -> Callable[..., int]:
    """``urPlatformGet`` as it was: it took an array of adapters instead of one."""
    function.argtypes = (c_void_p, c_uint32, *_LIST)

    def platform_get(adapter: int, *arguments: object) -> int:
        code: int = function((c_void_p * 1)(adapter), 1, *arguments)
        return code

    return platform_get
