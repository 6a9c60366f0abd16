# SPDX-License-Identifier: Apache-2.0
"""The vendors, with each one's names for what the shared tests in tests/vendors/standin_*.py use."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from pinning.plugin import MemoryKind
from standins import libcuda, libhip, libhsa, libur
from standins.cases import Run
from standins.faults import StandInFaults

HOST, DEVICE, SHARED = MemoryKind.HOST, MemoryKind.DEVICE, MemoryKind.SHARED

Failure = tuple[str, int, str]  # call, code and name of a VendorError


@dataclass(frozen=True)
class Vendor:
    """A vendor whose driver is a stand-in.

    Attributes
    ----------
    run : Run
        A child with that driver; its configuration has `count` devices.
    live : callable
        Numbers of the driver's live objects, by kind; those of kind `kept` are kept for reuse.
    shift : int
        From host to device addresses of registered memory, on the first device.
    releases : sequence of str
        Configurations of releases that register memory in different ways.
    allocates : mapping of MemoryKind to (str, str)
        The call that allocates 1000 bytes on the second device, as a pattern, and the call that frees them.
    besides : str
        Other calls that an allocation makes, as a pattern.
    library, version : str
        Of the library; the version of CUDA's is that of the header.
    description, pci_address : str
        Of the third device.
    lost : sequence of str
        Configurations in which the device is lost at some work, with a code.
    lost_name : str
        Name of the code of the last of these.
    nothing : (int, str)
        Code and name of the error of an allocation of 0 bytes.
    register : str
        Name of the call that locks.
    border, copy_border, registered : Failure
        Errors of a queue's copy and of a copy across the border of a lock, and of a second lock.
    asked_to_lock_twice : int
        Calls of the vendor for a second lock: none for HIP, whose older releases would not refuse it.
    out_of_memory : str
        The name of code 2.
    allocation, makes_event, records_event, unregister, device_pointer, makes_context, gives_context_back : str
        Names of calls.
    current : callable
        Makes a device current, as another library does, for a ``with`` block that gets a function: whether it still is.
    makes_current : callable
        Returns the call with which this package makes a device current.
    in_context : str
        Name of a call whose first argument is the context.
    default_streams : sequence of int
        Handles of streams that each device has.
    """

    name: str
    run: Run
    count: int
    live: Callable[[], Mapping[str, int]]
    kept: str
    shift: int
    releases: Sequence[str]
    allocates: Mapping[MemoryKind, tuple[str, str]]
    besides: str
    library: str
    description: str
    version: str = ""
    pci_address: str = ""
    lost: Sequence[str] = ()
    lost_name: str = ""
    nothing: tuple[int, str] = (0, "")
    register: str = ""
    border: Failure = ("", 0, "")
    copy_border: Failure = ("", 0, "")
    registered: Failure = ("", 0, "")
    asked_to_lock_twice: int = 0
    out_of_memory: str = ""
    allocation: str = ""
    makes_event: str = ""
    records_event: str = ""
    unregister: str = ""
    device_pointer: str = ""
    makes_context: str = ""
    gives_context_back: str = ""
    current: Callable[[int], AbstractContextManager[Callable[[], bool]]] = nullcontext  # type: ignore[assignment]
    makes_current: Callable[[Any], str] = str
    in_context: str = ""
    default_streams: Sequence[int] = ()

    @property
    def faults(self) -> StandInFaults:
        faults: StandInFaults = importlib.import_module(f"standins.lib{self.name}").FAULTS
        return faults

    @property
    def plugin(self) -> Any:
        return importlib.import_module(f"pinning_{self.name}").plugin


VENDORS = {
    vendor.name: vendor
    for vendor in (
        Vendor(
            "cuda",
            Run(libcuda.DRIVER, "devices=4", bindings="cuda-bindings"),
            4,
            libcuda.live,
            kept="events",
            shift=1 << 47,
            releases=[""],
            allocates={
                HOST: ("cuMemHostAlloc 1000 3", "cuMemFreeHost"),
                DEVICE: ("cuMemAlloc 1000", "cuMemFree"),
                SHARED: ("cuMemAllocManaged 1000 1", "cuMemFree"),
            },
            besides="cu.*Ctx",
            library="libcuda.so.1",
            description="Stand-in 2",
            pci_address="0001:3d:00.0",
            lost=["work:1:700", "cuMemcpyAsync:2:719", "cuEventRecord:1:719"],
            lost_name="CUDA_ERROR_LAUNCH_FAILED",
            nothing=(1, "CUDA_ERROR_INVALID_VALUE"),
            register="cuMemHostRegister",
            border=("cuMemcpyAsync", 1, "CUDA_ERROR_INVALID_VALUE"),
            copy_border=("cuMemcpy", 1, "CUDA_ERROR_INVALID_VALUE"),
            registered=("cuMemHostRegister", 712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED"),
            asked_to_lock_twice=1,
            out_of_memory="CUDA_ERROR_OUT_OF_MEMORY",
            allocation="cuMemAlloc",
            makes_event="cuEventCreate",
            records_event="cuEventRecord",
            unregister="cuMemHostUnregister",
            device_pointer="cuMemHostGetDevicePointer",
            makes_context="cuDevicePrimaryCtxRetain",
            gives_context_back="cuDevicePrimaryCtxRelease",
            current=libcuda.current,
            makes_current=lambda device: f"cuCtxPushCurrent {device.context:#x}",
            in_context="cuCtxPushCurrent",
            default_streams=[0, 1, 2],
        ),
        Vendor(
            "hip",
            Run(libhip.DRIVER, "devices=8", bindings="hip-python"),
            8,
            libhip.live,
            kept="events",
            shift=1 << 47,
            releases=["", "silent_duplicates"],
            allocates={
                HOST: ("hipHostMalloc 1000 3", "hipHostFree"),
                DEVICE: ("hipMalloc 1000", "hipFree"),
                SHARED: ("hipMallocManaged 1000 1", "hipFree"),
            },
            besides="hip[GS]etDevice ?",
            library="libamdhip64.so",
            version="7.2.0",
            description="Stand-in 2",
            pci_address="0001:3d:00.0",
            lost=["work:1:700", "hipMemcpyAsync:2:719", "hipEventRecord:1:719"],
            lost_name="hipErrorLaunchFailure",
            register="hipHostRegister",
            border=("hipMemcpyAsync", 1, "hipErrorInvalidValue"),
            copy_border=("hipMemcpy", 1, "hipErrorInvalidValue"),
            registered=("hipHostRegister", 712, "hipErrorHostMemoryAlreadyRegistered"),
            out_of_memory="hipErrorOutOfMemory",
            allocation="hipMalloc",
            makes_event="hipEventCreateWithFlags",
            records_event="hipEventRecord",
            unregister="hipHostUnregister",
            device_pointer="hipHostGetDevicePointer",
            current=libhip.current,
            makes_current=lambda device: f"hipSetDevice {device.index}",
            default_streams=[0, 2],
        ),
        Vendor(
            "hsa",
            Run(libhsa.DRIVER, "gpus=4"),
            4,
            libhsa.live,
            kept="",
            shift=1 << 47,
            releases=["", "svm"],
            # Pools of the stand-in: the host's fine-grained one that is not for kernel arguments, the GPU's coarse one.
            allocates={
                HOST: ("hsa_amd_memory_pool_allocate 0xc02 1000 0", "hsa_amd_memory_pool_free"),
                DEVICE: ("hsa_amd_memory_pool_allocate 0xd12 1000 0", "hsa_amd_memory_pool_free"),
            },
            besides="(?!hsa_amd_memory_pool_allocate)",
            library="libhsa-runtime64.so.1",
            version="1.1",
            description="Stand-in 2 (gfx942)",
            nothing=(0x1001, "HSA_STATUS_ERROR_INVALID_ARGUMENT"),
            register="hsa_amd_memory_lock_to_pool",
            registered=("hsa_amd_pointer_info", 2, "HSA_EXT_POINTER_TYPE_LOCKED"),
        ),
        Vendor(
            "ur",
            Run(libur.DRIVER, "devices=2;opencl"),
            3,
            libur.live,
            kept="streams",  # the queue that a device has for its own copies
            shift=0,
            releases=[""],
            allocates={
                HOST: ("urUSMHostAlloc .* 1000", "urUSMFree"),
                DEVICE: ("urUSMDeviceAlloc .* 1000", "urUSMFree"),
                SHARED: ("urUSMSharedAlloc .* 1000", "urUSMFree"),
            },
            besides="(?!urUSM(Host|Device|Shared)Alloc)",
            library="libur_loader.so.0",
            version="0.12 (Level Zero, OpenCL)",
            description="Stand-in 0 (OpenCL)",
            lost=["work:1:20", "urEnqueueUSMMemcpy:2:20", "urEnqueueEventsWait:1:20"],
            lost_name="UR_RESULT_ERROR_DEVICE_LOST",
            nothing=(64, "UR_RESULT_ERROR_INVALID_USM_SIZE"),
            allocation="urUSMDeviceAlloc",
            makes_context="urContextCreate",
            gives_context_back="urContextRelease",
            in_context="urUSMHostAllocRegisterExp",
        ),
    )
}


def this_vendor() -> Vendor:
    """The vendor whose driver this process has."""
    return next(vendor for vendor in VENDORS.values() if vendor.run.driver.variable in os.environ)
