# SPDX-License-Identifier: Apache-2.0
"""What the tests of the native lockers need for each vendor: its stand-in, and its own calls that pin memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache

from standins import libcuda, libhip, libhost, libhsa, libur
from standins.standin import Driver


@dataclass(frozen=True)
class Vendor:
    """`register` and `unregister` call the driver directly, as other code in this process does.

    `failure` is the error code that calls fail with, and `named` the vendor's name for it. Failures of the calls in
    `unheard` need not be reported. `whole_pages`: the driver registers whole pages.
    """

    device: str
    driver: Driver
    configuration: str
    failure: int
    named: str
    register: Callable[[int, int], None] | None
    unregister: Callable[[int], None] | None
    unheard: frozenset[str] = frozenset()
    whole_pages: bool = False


def _ok(code: int) -> None:
    assert code == 0, code


def _cuda_register(ptr: int, size: int) -> None:
    cuda, context = ctypes.CDLL(libcuda.DRIVER.soname), c_void_p()
    _ok(cuda.cuInit(0))
    _ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    _ok(cuda.cuCtxPushCurrent_v2(context))
    _ok(cuda.cuMemHostRegister_v2(c_void_p(ptr), c_size_t(size), c_uint(3)))


def _cuda_unregister(ptr: int) -> None:
    cuda = ctypes.CDLL(libcuda.DRIVER.soname)
    _ok(cuda.cuMemHostUnregister(c_void_p(ptr)))
    _ok(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))


def _hip_register(ptr: int, size: int) -> None:
    _ok(ctypes.CDLL(libhip.DRIVER.soname).hipHostRegister(c_void_p(ptr), c_size_t(size), c_uint(3)))


def _hip_unregister(ptr: int) -> None:
    _ok(ctypes.CDLL(libhip.DRIVER.soname).hipHostUnregister(c_void_p(ptr)))


def _hsa_register(ptr: int, size: int) -> None:
    agents = (ctypes.c_uint64 * 1)(0xD0)
    hsa = ctypes.CDLL(libhsa.DRIVER.soname)
    _ok(hsa.hsa_init())
    _ok(hsa.hsa_amd_memory_lock(c_void_p(ptr), c_size_t(size), agents, c_int(1), byref(c_void_p())))


def _hsa_unregister(ptr: int) -> None:
    _ok(ctypes.CDLL(libhsa.DRIVER.soname).hsa_amd_memory_unlock(c_void_p(ptr)))


@cache
def _ur_context() -> c_void_p:
    ur = ctypes.CDLL(libur.DRIVER.soname)
    _ok(ur.urLoaderInit(0, None))
    adapter, platform, device, context = c_void_p(), c_void_p(), c_void_p(), c_void_p()
    _ok(ur.urAdapterGet(1, byref(adapter), None))
    _ok(ur.urPlatformGet(adapter, 1, byref(platform), None))
    _ok(ur.urDeviceGetSelected(platform, 2, 1, byref(device), None))
    _ok(ur.urContextCreate(1, byref(device), None, byref(context)))
    return context


def _ur_register(ptr: int, size: int) -> None:
    ur = ctypes.CDLL(libur.DRIVER.soname)
    _ok(ur.urUSMHostAllocRegisterExp(_ur_context(), c_void_p(ptr), c_size_t(size), None))


def _ur_unregister(ptr: int) -> None:
    _ok(ctypes.CDLL(libur.DRIVER.soname).urUSMHostAllocUnregisterExp(_ur_context(), c_void_p(ptr)))


VENDORS = {
    "cuda": Vendor(
        "cuda:1",
        libcuda.DRIVER,
        "devices=2",
        999,
        "CUDA_ERROR_UNKNOWN (999)",
        _cuda_register,
        _cuda_unregister,
        frozenset({"cuCtxGetCurrent", "cuCtxPopCurrent"}),  # the context is pushed then; codes of pops are ignored
    ),
    "hip": Vendor(
        "hip:1",
        libhip.DRIVER,
        "devices=2",
        999,
        "hipErrorUnknown (999)",
        _hip_register,
        _hip_unregister,
        frozenset({"hipGetLastError", "hipSetDevice"}),  # only the hipSetDevice that restores the device
    ),
    "hsa": Vendor(
        "hsa:1",
        libhsa.DRIVER,
        "gpus=2",
        0x1008,
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)",
        _hsa_register,
        _hsa_unregister,
        frozenset({"hsa_status_string"}),
    ),
    "ur": Vendor(
        "ur:1",
        libur.DRIVER,
        "devices=2",
        20,
        "UR_RESULT_ERROR_DEVICE_LOST (20)",
        _ur_register,
        _ur_unregister,
        whole_pages=True,
    ),
    # Not ENOMEM: munlock is tried again after it, because the memory may have been unmapped meanwhile.
    "host": Vendor("host:0", libhost.DRIVER, "", 11, "EAGAIN (11)", None, None),
}
