# SPDX-License-Identifier: Apache-2.0
"""What the tests of the native lockers need for each vendor: its stand-in, and its own calls that pin memory."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import byref, c_int, c_size_t, c_uint, c_void_p
from dataclasses import dataclass
from functools import cache

from standins import libcuda, libhip, libhost, libhsa, libur
from standins.standin import Driver


@dataclass(frozen=True)
class Vendor:
    """`pinned` has memory pinned by the driver directly, as other code in this process may.

    `failure` is the error code that calls fail with, and `named` the vendor's name for it. Failures of the calls in
    `unheard` need not be reported. `whole_pages`: the driver registers whole pages.
    """

    device: str
    driver: Driver
    configuration: str
    failure: int
    named: str
    pinned: Callable[[int, int], AbstractContextManager[None]] | None
    unheard: frozenset[str] = frozenset()
    whole_pages: bool = False


def _ok(code: int) -> None:
    assert code == 0, code


@contextmanager
def _pinned(
    driver: Driver, register: str, unregister: str, ptr: int, size: int, *more: object, first: tuple[object, ...] = ()
) -> Iterator[None]:
    library = ctypes.CDLL(driver.soname)
    _ok(getattr(library, register)(*first, c_void_p(ptr), c_size_t(size), *more))
    try:
        yield
    finally:
        _ok(getattr(library, unregister)(*first, c_void_p(ptr)))


@contextmanager
def _pinned_by_cuda(ptr: int, size: int) -> Iterator[None]:
    cuda, context = ctypes.CDLL(libcuda.DRIVER.soname), c_void_p()
    _ok(cuda.cuInit(0))
    _ok(cuda.cuDevicePrimaryCtxRetain(byref(context), 0))
    _ok(cuda.cuCtxPushCurrent_v2(context))
    with _pinned(libcuda.DRIVER, "cuMemHostRegister_v2", "cuMemHostUnregister", ptr, size, c_uint(3)):
        yield
    _ok(cuda.cuCtxPopCurrent_v2(byref(c_void_p())))


def _pinned_by_hip(ptr: int, size: int) -> AbstractContextManager[None]:
    return _pinned(libhip.DRIVER, "hipHostRegister", "hipHostUnregister", ptr, size, c_uint(3))


def _pinned_by_hsa(ptr: int, size: int) -> AbstractContextManager[None]:
    _ok(ctypes.CDLL(libhsa.DRIVER.soname).hsa_init())
    more = (ctypes.c_uint64 * 1)(0xD0), c_int(1), byref(c_void_p())  # the agents, and where the address goes
    return _pinned(libhsa.DRIVER, "hsa_amd_memory_lock", "hsa_amd_memory_unlock", ptr, size, *more)


def _pinned_by_ur(ptr: int, size: int) -> AbstractContextManager[None]:
    names = "urUSMHostAllocRegisterExp", "urUSMHostAllocUnregisterExp"
    return _pinned(libur.DRIVER, *names, ptr, size, None, first=(_ur_context(),))


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


VENDORS = {
    "cuda": Vendor(
        "cuda:1",
        libcuda.DRIVER,
        "devices=2",
        999,
        "CUDA_ERROR_UNKNOWN (999)",
        _pinned_by_cuda,
        frozenset({"cuCtxGetCurrent", "cuCtxPopCurrent"}),  # the context is pushed then; codes of pops are ignored
    ),
    "hip": Vendor(
        "hip:1",
        libhip.DRIVER,
        "devices=2",
        999,
        "hipErrorUnknown (999)",
        _pinned_by_hip,
        frozenset({"hipGetLastError", "hipSetDevice"}),  # only the hipSetDevice that restores the device
    ),
    "hsa": Vendor(
        "hsa:1",
        libhsa.DRIVER,
        "gpus=2",
        0x1008,
        "HSA_STATUS_ERROR_OUT_OF_RESOURCES (4104)",
        _pinned_by_hsa,
        frozenset({"hsa_status_string"}),
    ),
    "ur": Vendor(
        "ur:1",
        libur.DRIVER,
        "devices=2",
        20,
        "UR_RESULT_ERROR_DEVICE_LOST (20)",
        _pinned_by_ur,
        whole_pages=True,
    ),
    # Not ENOMEM: munlock is tried again after it, because the memory may have been unmapped meanwhile.
    "host": Vendor("host:0", libhost.DRIVER, "", 11, "EAGAIN (11)", None),
}
